//! Proves the guarantees about PostgreSQL beyond a single measurement.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::figures::{at_least, at_most, exactly, line_with, measured, one, verdict};
use super::{Size, judged, kill, kill_engine, number};
use crate::artifacts::{Artifacts, Kind};
use crate::{process, stores};

/// Minimum ratio of steps per second, with 64 concurrent workflows, to the bare loop's commits.
const LEAST_RATIO: f64 = 0.55;
/// Minimum ratio of the rate of the second half of many workflows to that of the first half.
const LEAST_HALF: f64 = 0.85;
/// Maximum ratio of the median step of a single workflow to the bare loop's commit.
const MOST_P50: f64 = 1.5;
/// Minimum ratio of steps per second, with very many tenants, to single-statement transactions.
const LEAST_SINGLE: f64 = 0.5;
/// Maximum ratio of the slowest tenant's mean step to the median step.
const MOST_WAIT: f64 = 10.0;
/// Maximum time until the first step of a tenant with one run, while another has very many due runs, in milliseconds.
const MOST_MS: f64 = 250.0;

const TESTS_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs the engine's tests on PostgreSQL, the store's own tests, and the kill tests. The short form skips the first
/// two, because `cargo xtask test` has separate steps for them.
pub(super) fn suite(size: Size) -> Result<(), String> {
    if size == Size::Full {
        let built = Artifacts::of(&["--test", stores::ENGINE, "--test", stores::POSTGRES_STORE])?;
        for (name, target) in [("engine", stores::ENGINE), ("store", stores::POSTGRES_STORE)] {
            let mut command = built.find(Kind::Test, target)?.command();
            let (passed, failed) = tests(command.arg("-q").env(stores::WHICH, "postgres"))?;
            println!("{}", json!({"suite": name, "store": "postgres", "passed": passed, "failed": failed}));
            if !judged(failed == 0 && passed > 100, &format!("{name}: {passed} passed, {failed} failed")) {
                return Err(format!("the {name}'s tests failed on PostgreSQL"));
            }
        }
    }
    kill::prove_postgres(size)?;
    kill_engine::prove_postgres(size)
}

/// Runs tests and returns the numbers of passed and failed ones.
fn tests(command: &mut Command) -> Result<(u64, u64), String> {
    eprintln!("running {}", process::shown(command));
    let captured = process::capture(command, "", TESTS_LIMIT, |_| ())?;
    let counts = |word: &str| -> u64 {
        let results = captured.stdout.lines().filter(|line| line.starts_with("test result:"));
        let parts = results.flat_map(|line| line.split([';', '.']));
        parts.filter_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok()).sum()
    };
    let (passed, failed) = (counts(" passed"), counts(" failed"));
    if !captured.status.success() {
        let at = captured.stdout.find("failures:").unwrap_or_default();
        eprintln!("{}", &captured.stdout[at..]);
        return Ok((passed, failed.max(1)));
    }
    Ok((passed, failed))
}

/// Checks three processes that share one server.
pub(super) fn three(size: Size) -> Result<(), String> {
    let mut command = Command::new(super::bench(size)?);
    command.args(["three-processes", "--json"]);
    command.args((size == Size::Short).then_some("--short"));
    judge_three(&super::measured(&mut command, size)?, size)
}

fn judge_three(lines: &[Value], size: Size) -> Result<(), String> {
    let [processes, server] = lines else { return Err(format!("expected two lines, got {}", lines.len())) };
    measured(processes, &["process_kills", "repeated_effects"])?;
    measured(server, &["connections_cut"])?;
    if size == Size::Full {
        measured(server, &["process_kills", "server_kills"])?;
    }
    let mut all_met = true;
    for line in lines {
        let workflows = if size == Size::Full { 1_000 } else { line["workflows"].as_u64().unwrap_or(1_000) };
        all_met &= exactly(line, "finished", workflows)?;
        all_met &= exactly(line, "steps_committed", workflows * 10)?;
        for field in ["gaps", "duplicates", "missing_effects", "wrong_keys", "crashed", "failed"] {
            all_met &= exactly(line, field, 0)?;
        }
    }
    all_met &= exactly(processes, "uncounted_tries", 0)?;
    verdict(all_met).map_err(|_| "the guarantee was violated, see above".to_owned())
}

/// Checks fairness between tenants, with notifications and without.
pub(super) fn fair(size: Size) -> Result<(), String> {
    for without in [false, true] {
        let mut command = Command::new(super::bench(size)?);
        command.args(["fair", "--json"]).args(without.then_some("--no-notify"));
        command.args((size == Size::Short).then_some("--short"));
        judge_fair(&super::measured(&mut command, size)?, size)?;
    }
    Ok(())
}

fn judge_fair(lines: &[Value], size: Size) -> Result<(), String> {
    let line = one(lines)?;
    measured(line, &["runs_due", "starts", "p50_ms", "max_ms"])?;
    let starts = line["starts"].as_u64().unwrap_or_default();
    if size == Size::Short {
        return Ok(());
    }
    let mut all_met = exactly(line, "runs_due", 100_000)?;
    all_met &= exactly(line, "starts", 100)?;
    all_met &= exactly(line, "while_crowded", starts)?;
    all_met &= exactly(line, "within_250_ms", starts)?;
    all_met &= at_most(line, "max_ms", MOST_MS)?;
    verdict(all_met)
}

/// Checks the cost of a step on PostgreSQL against a bare loop on the same server.
pub(super) fn ten_step(size: Size) -> Result<(), String> {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(super::bench(size)?);
        command.args(["ten-step", "--store", "postgres", "--json"]).args(arguments);
        command.args((size == Size::Short).then_some("--short"));
        super::measured(&mut command, size)
    };
    let workflows = if size == Size::Full { "30000" } else { "640" };
    let mut all_met = judge_steps(&run(&["--slices", "15"])?, size)?;
    all_met &= judge_halves(&run(&["--in-flight", "64", "--workflows", workflows])?, size)?;
    all_met &= judge_tenants(&run(&["--in-flight", "64", "--tenants", "1000"])?, size)?;
    verdict(all_met)
}

const FIGURES: &[&str] = &["steps_per_s", "raw_per_s", "ratio", "p50_us", "p99_us", "raw_p50_us", "rss_mb"];

fn judge_steps(lines: &[Value], size: Size) -> Result<bool, String> {
    let (many, alone) = (line_with(lines, "in_flight", 64)?, line_with(lines, "in_flight", 1)?);
    measured(many, FIGURES)?;
    measured(alone, FIGURES)?;
    if size == Size::Short {
        return Ok(true);
    }
    let (p50, raw) = (number(alone, "p50_us")?, number(alone, "raw_p50_us")?);
    let what = format!("alone: p50 {p50:.0} µs, at most {MOST_P50} times the bare {raw:.0} µs");
    Ok(at_least(many, "ratio", LEAST_RATIO)? & judged(p50 <= MOST_P50 * raw, &what))
}

fn judge_halves(lines: &[Value], size: Size) -> Result<bool, String> {
    let line = one(lines)?;
    measured(line, &["first_half_steps_per_s", "second_half_steps_per_s", "half_ratio"])?;
    if size == Size::Short { Ok(true) } else { at_least(line, "half_ratio", LEAST_HALF) }
}

fn judge_tenants(lines: &[Value], size: Size) -> Result<bool, String> {
    let line = one(lines)?;
    measured(line, &["steps_per_s", "raw_per_s", "ratio", "p50_us", "slowest_tenant_ratio"])?;
    if size == Size::Short {
        return Ok(true);
    }
    Ok(at_least(line, "ratio", LEAST_SINGLE)? & at_most(line, "slowest_tenant_ratio", MOST_WAIT)?)
}

/// Checks that every statement names the tenant, in the sources and in the statistics of the server.
pub(super) fn no_tenantless_sql(size: Size) -> Result<(), String> {
    let built = Artifacts::of(&["--lib", "--test", stores::POSTGRES_STORE])?;
    let mut lib = built.find(Kind::Test, "stepwell_postgres")?.command();
    let (passed, failed) = tests(lib.args(["-q", "statements::"]))?;
    if failed > 0 || passed == 0 {
        return Err("a statement names no tenant".to_owned());
    }
    if size == Size::Short {
        // The statistics of the server are checked by one of the store's tests, which have run already.
        return Ok(());
    }
    let mut asked = built.find(Kind::Test, stores::POSTGRES_STORE)?.command();
    asked.args(["every_executed_statement_on_tenant_data_names_a_tenant", "--nocapture"]);
    eprintln!("running {}", process::shown(&asked));
    let captured = process::capture(&mut asked, "", TESTS_LIMIT, |_| ())?;
    process::succeeded(&asked, captured.status)?;
    let line = captured.stdout.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = line.filter(Value::is_object).ok_or("the test did not print figures")?;
    println!("{line}");
    measured(&line, &["statements", "name_the_tenant"])?;
    verdict(exactly(&line, "tenantless", 0)? & exactly(&line, "span_tenants", 2)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_lines() -> [Value; 2] {
        let line = json!({"workflows": 1_000, "finished": 1_000, "steps_committed": 10_000, "gaps": 0,
            "duplicates": 0, "missing_effects": 0, "wrong_keys": 0, "crashed": 0, "failed": 0,
            "uncounted_tries": 0, "process_kills": 9, "connections_cut": 9, "server_kills": 9,
            "repeated_effects": 3});
        [line.clone(), line]
    }

    #[test]
    fn lost_or_duplicated_work_fails() {
        judge_three(&three_lines(), Size::Full).unwrap();
        for field in ["gaps", "duplicates", "missing_effects", "wrong_keys", "crashed", "failed"] {
            let mut broken = three_lines();
            broken[1][field] = json!(1);
            assert!(judge_three(&broken, Size::Full).is_err(), "{field}");
        }
        let mut unhurt = three_lines();
        unhurt[1]["server_kills"] = json!(0);
        assert!(judge_three(&unhurt, Size::Full).is_err());
        let mut uncounted = three_lines();
        uncounted[0]["uncounted_tries"] = json!(1);
        assert!(judge_three(&uncounted, Size::Full).is_err());
    }

    #[test]
    fn one_late_start_fails() {
        let line = json!({"runs_due": 100_000, "starts": 100, "while_crowded": 100, "within_250_ms": 100,
            "p50_ms": 20.0, "max_ms": 249.0});
        judge_fair(std::slice::from_ref(&line), Size::Full).unwrap();
        for (field, value) in [("within_250_ms", 99), ("while_crowded", 99), ("max_ms", 251)] {
            let mut late = line.clone();
            late[field] = json!(value);
            assert!(judge_fair(&[late], Size::Full).is_err(), "{field}");
        }
    }

    #[test]
    fn speed_is_judged_at_full_size_only() {
        let halves =
            json!({"first_half_steps_per_s": 100, "second_half_steps_per_s": 84, "half_ratio": 0.84});
        assert!(!judge_halves(std::slice::from_ref(&halves), Size::Full).unwrap());
        assert!(judge_halves(&[halves], Size::Short).unwrap());
        let tenants = |ratio: f64, slowest: f64| {
            let line = json!({"steps_per_s": 1.0, "raw_per_s": 2.0, "ratio": ratio, "p50_us": 1.0,
                "slowest_tenant_ratio": slowest});
            judge_tenants(&[line], Size::Full).unwrap()
        };
        assert!(tenants(0.5, 10.0) && !tenants(0.49, 1.0) && !tenants(0.6, 10.1));
    }
}
