//! Proves the guarantees about the server: the cost of the API, no loss after a kill, and no harm from slow sockets.

use std::process::Command;

use serde_json::Value;

use super::Size;
use super::figures::{at_least, at_most, exactly, line_with, measured, one, verdict};

/// Minimum ratio of signals per second over HTTP, with 64 clients, to the same signals in process.
const LEAST_RATIO: f64 = 0.4;

const FIGURES: &[&str] = &["signals_per_s", "raw_per_s", "ratio", "p50_us", "p99_us", "rss_mb"];

/// Maximum ratio of the p99 of requests with slow sockets to the p99 without.
const MOST_SLOWER: f64 = 2.0;

/// Kills the server under load and checks that every acknowledged write exists once.
pub(super) fn kill_server(size: Size) -> Result<(), String> {
    let kills = if size == Size::Full { 100 } else { 5 };
    let kill = |more: &[&str]| -> Result<Command, String> {
        let mut command = Command::new(super::bench(size)?);
        command.args(["kill-server", "--json", "--stepwell"]).arg(super::server(size)?).args(more);
        Ok(command)
    };
    let lines = super::measured(&mut kill(&["--kills", &kills.to_string()])?, size)?;
    let line = one(&lines)?;
    measured(line, &["acknowledged", "sent_again"])?;
    verdict(exactly(line, "kills", kills)? & exactly(line, "missing", 0)? & exactly(line, "doubled", 0)?)?;
    // The same with clients that expect two writes too many: the check must find them.
    let (status, line) = super::answered(&mut kill(&["--kills", "2", "--plant"])?, "", size)?;
    let missing = line["missing"].as_u64().unwrap_or_default();
    let is_seen =
        super::judged(!status.success() && missing == 2, &format!("planted: missing {missing}, must be 2"));
    if is_seen { Ok(()) } else { Err(format!("the planted mistake was not found: {line}")) }
}

/// Opens slow sockets and checks that they are closed in time and that other requests stay fast.
pub(super) fn slow_sockets(size: Size) -> Result<(), String> {
    let sockets = if size == Size::Full { 2_000 } else { 100 };
    let mut command = Command::new(super::bench(size)?);
    command.args(["slow-sockets", "--json", "--stepwell"]).arg(super::server(size)?);
    command.args(["--sockets", &sockets.to_string()]);
    if size == Size::Short {
        command.args(["--measured-ms", "500"]);
    }
    judge_sockets(&super::measured(&mut command, size)?, sockets, size)
}

fn judge_sockets(lines: &[Value], sockets: u64, size: Size) -> Result<(), String> {
    let line = one(lines)?;
    measured(line, &["p99_before_us", "p99_meanwhile_us", "ratio"])?;
    let are_closed = exactly(line, "closed", sockets)?;
    let is_quick = size == Size::Short || at_most(line, "ratio", MOST_SLOWER)?;
    verdict(are_closed && is_quick)
}

pub(super) fn prove(size: Size) -> Result<(), String> {
    let mut command = Command::new(super::bench(size)?);
    command.args(["http", "--store", "sqlite", "--json"]);
    command.args((size == Size::Short).then_some("--short"));
    judge(&super::measured(&mut command, size)?, size)
}

fn judge(lines: &[Value], size: Size) -> Result<(), String> {
    let many = line_with(lines, "clients", 64)?;
    measured(many, FIGURES)?;
    if size == Size::Short {
        return Ok(());
    }
    verdict(at_least(many, "ratio", LEAST_RATIO)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_bar_is_judged_at_full_size_only() {
        let line = |ratio: f64| {
            [
                json!({"clients": 64, "signals_per_s": 40.0, "raw_per_s": 100.0, "ratio": ratio, "p50_us": 900.0,
                "p99_us": 2_000, "rss_mb": 30.0}),
            ]
        };
        judge(&line(0.4), Size::Full).unwrap();
        assert!(judge(&line(0.39), Size::Full).unwrap_err().contains("a bar was missed"));
        judge(&line(0.1), Size::Short).unwrap();
        assert!(judge(&[], Size::Short).unwrap_err().contains("no line with clients 64"));
    }

    #[test]
    fn open_sockets_and_slow_requests_fail() {
        let line = |closed: u64, ratio: f64| {
            [json!({"closed": closed, "ratio": ratio, "p99_before_us": 500.0, "p99_meanwhile_us": 600.0})]
        };
        judge_sockets(&line(100, 1.9), 100, Size::Full).unwrap();
        assert!(judge_sockets(&line(99, 1.0), 100, Size::Short).is_err());
        assert!(judge_sockets(&line(100, 2.1), 100, Size::Full).is_err());
        judge_sockets(&line(100, 2.1), 100, Size::Short).unwrap();
    }
}
