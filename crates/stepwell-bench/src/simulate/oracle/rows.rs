//! Checks that a run without an owner has a wake time no later than the first due timer, retry or message.

use serde_json::Value;
use stepwell_core::{RunId, Timestamp};
use stepwell_store::{CellFilter, CellQuery, Loaded, Space, Status, Store};

use super::super::actions::COUNTERS;
use super::super::model::counts;
use super::super::time::{micros, timestamp};
use super::super::world::at_once;
use super::{Applied, Oracle, SCOPE, Shadow};

impl Oracle {
    /// Checks that the rows of a run touched by a commit are consistent.
    pub(super) fn check_run(&mut self, applied: &Applied<'_>, run: RunId) -> Result<(), String> {
        let Some(shadow) = self.runs.get(&run) else { return Ok(()) };
        let loaded = at_once(applied.memory.load(SCOPE, run)).map_err(|error| error.to_string())?;
        let loaded = loaded.ok_or_else(|| format!("{}: the run no longer exists", shadow.name))?;
        self.signals.check_run(applied, shadow, &loaded)?;
        check_status(shadow, &loaded)?;
        check_wake(shadow, &loaded, applied.now)
    }

    /// Checks that the counter cells equal the committed increments.
    pub(super) fn check_counters(&self, applied: &Applied<'_>) -> Result<(), String> {
        let Some(step) = &applied.commit.step else { return Ok(()) };
        let Some(shadow) = self.runs.get(&step.head.run) else { return Ok(()) };
        if !shadow.flow.moves.iter().any(|known| counts(known.action)) {
            return Ok(());
        }
        let key = step.head.run.to_string();
        for (key, expected) in [(key.as_str(), shadow.counted), ("total", self.counted)] {
            let found = counter(applied, key)?;
            if found != expected {
                let name = &shadow.name;
                return Err(format!(
                    "{name}: the counter `{key}` is {found} after {expected} committed steps"
                ));
            }
        }
        Ok(())
    }
}

fn counter(applied: &Applied<'_>, key: &str) -> Result<u64, String> {
    let query = CellQuery {
        space: Space::Kv,
        owner: COUNTERS.to_owned(),
        filter: CellFilter::Key(key.to_owned()),
        now: timestamp(applied.now),
        include_deleted: false,
        limit: 1,
        cursor: None,
    };
    let page = at_once(applied.memory.cells(SCOPE, query)).map_err(|error| error.to_string())?;
    let value = page.items.first().and_then(|cell| cell.value.as_ref()).and_then(Value::as_u64);
    Ok(value.unwrap_or_default())
}

/// Checks that the status of a run matches its state.
fn check_status(shadow: &Shadow, loaded: &Loaded) -> Result<(), String> {
    let (name, status) = (&shadow.name, loaded.head.status);
    let fits = match status {
        Status::Completed | Status::Cancelled => shadow.snapshot.is_terminal(),
        Status::Failed => shadow.stopped().is_some() && !shadow.snapshot.is_terminal(),
        _ => !shadow.snapshot.is_terminal(),
    };
    if fits { Ok(()) } else { Err(format!("{name}: status {status} contradicts its snapshot")) }
}

/// Checks that a run without an owner wakes at the first thing that is due.
fn check_wake(shadow: &Shadow, loaded: &Loaded, now: i64) -> Result<(), String> {
    let head = &loaded.head;
    if head.owner.is_some() || head.status.is_final() {
        return Ok(());
    }
    let (name, ledger) = (&shadow.name, &shadow.ledger);
    let instant = |value: &Value| value.as_str().and_then(|at| at.parse::<Timestamp>().ok()).map(micros);
    let mut due: Vec<(i64, &str)> =
        instant(&ledger["deadline"]).map(|at| (at, "its deadline")).into_iter().collect();
    let cancels = loaded.inbox.iter().filter(|message| message.topic == "cancel");
    due.extend(cancels.map(|_| (now, "its parent's cancellation")));
    if !matches!(head.status, Status::Failed | Status::Suspended | Status::Pending) {
        let attempts = ledger["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
        due.extend(
            attempts
                .iter()
                .filter_map(|attempts| instant(&attempts["next"]))
                .map(|at| (at, "its next attempt")),
        );
        let timers = shadow.snapshot.activations().iter().flat_map(|activation| &activation.timers);
        due.extend(timers.map(|timer| (micros(timer.at), "its timer")));
        let ends = loaded.inbox.iter().filter(|message| message.topic == "child");
        due.extend(ends.map(|_| (now, "the end of a child")));
        let in_use = attempts.iter().any(|attempts| !attempts["next"].is_null());
        let signals = loaded.inbox.iter().filter_map(|message| message.topic.strip_prefix("signal:"));
        let places = shadow.places();
        let takes = |signal: &&str| !in_use && shadow.flow.takes(signal, &places);
        due.extend(signals.filter(takes).map(|_| (now, "a signal")));
    }
    if head.status == Status::Pending {
        due.push((shadow.begins, "its start"));
    }
    let Some((at, what)) = due.into_iter().min() else { return Ok(()) };
    match head.wake.map(micros) {
        Some(wake) if wake <= at.max(now) => Ok(()),
        wake => Err(format!("{name}: {what} is due at {at}, but its wake time is {wake:?}")),
    }
}
