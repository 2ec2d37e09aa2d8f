//! Checks that a checkpoint follows from the previous one: by the model, for each activation, and in the data.

use serde_json::{Value, json};
use stepwell_core::snapshot::{Activation, ActivationStatus, ChildEnd, RunEnd};
use stepwell_core::{HistoryEntry, RunId, Snapshot};
use stepwell_store::{Loaded, Status};

use super::super::model::{Move, To, counts, retry_pause_ms};
use super::super::tally::Tally;
use super::super::time::micros;
use super::{Applied, Oracle, Shadow, checkpoint, places, read_snapshot};

/// Maximum delay of a due timer in quiet times, in microseconds.
const LATE_US: i64 = 1_500_000;
/// Time after the last fault until the simulation counts as quiet, in microseconds.
const SETTLES_US: i64 = 8_000_000;

impl Oracle {
    /// Checks and records a new version of a run.
    pub(super) fn moved(
        &mut self,
        applied: &Applied<'_>,
        run: RunId,
        loaded: &Loaded,
        entry: &HistoryEntry,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let Some(shadow) = self.runs.get(&run) else { return Ok(()) };
        let name = shadow.name.clone();
        let version = shadow.history.len() as u64;
        let (commit, written, state) = checkpoint(applied.memory, run, version)?;
        if commit != applied.commit.id {
            return Err(format!("{name}: version {version} was not written by this commit"));
        }
        let after = read_snapshot(&name, &state)?;
        if after.version() != version || entry.version != version {
            return Err(format!("{name}: version {version} has the version number {}", after.version()));
        }
        if let Some(cancelled) = self.cancelled(applied, shadow, &after, entry) {
            cancelled?;
            tally.cancelled += 1;
        } else if entry.action == "__operator:patch" {
            check_patch(shadow, applied, &after)?;
        } else {
            let (known, moved) = find_move(shadow, &after, entry)?;
            check_others(shadow, &after, known, moved)?;
            check_context(shadow, &after, entry, known)?;
            self.check_time(applied, shadow, known, moved)?;
            self.check_children(shadow, &after, known, moved)?;
            check_spent(shadow, entry, moved)?;
            let (moved, timer) = (moved.id, known.after_ms.is_some());
            self.check_result(applied, run, entry, known, moved)?;
            tally.timers += u64::from(timer);
            if counts(known.action) {
                self.counted += 1;
                self.runs.entry(run).and_modify(|shadow| shadow.counted += 1);
            }
        }
        let Some(shadow) = self.runs.get_mut(&run) else { return Ok(()) };
        // The decision was made between the previous step and this one; timers count from then.
        let decided = micros(entry.at).clamp(shadow.issued.min(applied.issued), applied.issued);
        for activation in after.activations() {
            shadow.entered.entry(activation.id).or_insert((decided, loaded.head.fence));
            shadow.newest_activation = shadow.newest_activation.max(activation.id);
        }
        shadow.snapshot = after;
        shadow.history.push((commit, written, state));
        Ok(())
    }

    /// Checks a cancellation by an operator, the parent or the deadline. Returns `None` for other entries.
    fn cancelled(
        &self,
        applied: &Applied<'_>,
        shadow: &Shadow,
        after: &Snapshot,
        entry: &HistoryEntry,
    ) -> Option<Result<(), String>> {
        let allowed = match entry.action.as_str() {
            "__operator:cancel" => true,
            "__deadline" => {
                let deadline = shadow.ledger["deadline"].as_str().and_then(|at| at.parse().ok());
                deadline.is_some_and(|deadline| micros(deadline) <= applied.issued)
            }
            "__parent:cancel" => {
                let parent = shadow.parent.as_ref().and_then(|parent| self.runs.get(&parent.run));
                parent.is_some_and(|parent| parent.snapshot.finished() == Some(&RunEnd::Cancelled))
            }
            _ => return None,
        };
        let (name, word) = (&shadow.name, &entry.action);
        let ended = after.finished() == Some(&RunEnd::Cancelled) && after.activations().is_empty();
        Some(if allowed && ended { Ok(()) } else { Err(format!("{name}: `{word}` without a reason")) })
    }

    /// Checks that a timer does not fire before it is due, nor long after in quiet times.
    fn check_time(
        &self,
        applied: &Applied<'_>,
        shadow: &Shadow,
        known: &Move,
        moved: &Activation,
    ) -> Result<(), String> {
        let name = &shadow.name;
        if applied.issued < shadow.begins {
            return Err(format!("{name}: moved before its start time {}", shadow.begins));
        }
        let Some(due) = due(shadow, known, moved) else { return Ok(()) };
        let late = applied.issued - due;
        if late < 0 {
            return Err(format!("{name}: `{}` fired {} us before it was due", known.word, -late));
        }
        if known.action.is_empty() {
            self.check_late(shadow, known.word, due, applied.issued)
        } else {
            Ok(())
        }
    }

    /// Checks that due work happens soon in quiet times, if the engine has capacity.
    pub(super) fn check_late(&self, shadow: &Shadow, what: &str, due: i64, now: i64) -> Result<(), String> {
        let was_quiet = self.calm || self.quiet_since.is_some_and(|since| due > since + SETTLES_US);
        let is_free = !matches!(shadow.status, Status::Suspended | Status::Failed);
        if was_quiet && is_free && now > due + LATE_US && self.settings.max_runs > 2 {
            return Err(format!("{}: `{what}` happened at {now}, due at {due}, in quiet times", shadow.name));
        }
        Ok(())
    }

    /// Checks that each child ends once, as it really did, and that the wait ends after the last child.
    fn check_children(
        &self,
        shadow: &Shadow,
        after: &Snapshot,
        known: &Move,
        moved: &Activation,
    ) -> Result<(), String> {
        let name = &shadow.name;
        if known.transition == "spawn" {
            let wanted = shadow.snapshot.context()["children"].as_array().map_or(0, Vec::len);
            let parent = shadow.snapshot.instance_id();
            let begun = self.runs.values().filter(|run| run.parent.as_ref().is_some_and(|p| p.run == parent));
            let begun = begun.count();
            return if begun == wanted {
                Ok(())
            } else {
                Err(format!("{name}: started {begun} of {wanted} children"))
            };
        }
        if known.from != "kids" || known.transition == "gather" {
            return Ok(());
        }
        let ended = |activation: Option<&Activation>| {
            let children = activation.and_then(|activation| activation.children.clone());
            children.map(|children| (children.total, children.ended)).unwrap_or_default()
        };
        let ((total, before), (_, now)) = (ended(Some(moved)), ended(after.activation(moved.id)));
        let failed = self.children_of(shadow).any(|(_, child)| {
            child.stopped().is_some() || child.snapshot.finished() == Some(&RunEnd::Cancelled)
        });
        match known.to {
            To::Step("bereft") if failed => return Ok(()),
            To::Step(_) => return Err(format!("{name}: stopped waiting although no child has failed")),
            _ => {}
        }
        let new: Vec<_> = now.iter().filter(|(number, _)| !before.contains_key(*number)).collect();
        let [(number, end)] = new[..] else {
            return Err(format!("{name}: {} children ended in one version", new.len()));
        };
        let child = self.children_of(shadow).find(|(child, _)| child == number);
        let Some((_, child)) = child else { return Err(format!("{name}: has no child {number}")) };
        if !ended_so(child, end) {
            return Err(format!("{name}: child {} did not end as recorded: {end:?}", child.name));
        }
        let all = now.len() as u32 == total;
        if all != matches!(known.to, To::Resolved) {
            return Err(format!("{name}: wrong move after {} of {total} children have ended", now.len()));
        }
        Ok(())
    }

    fn children_of<'a>(&'a self, shadow: &'a Shadow) -> impl Iterator<Item = (u32, &'a Shadow)> {
        let parent = shadow.snapshot.instance_id();
        self.runs.values().filter_map(move |child| {
            let of = child.parent.as_ref().filter(|of| of.run == parent)?;
            Some((of.child, child))
        })
    }
}

/// Returns `true` if the child has ended as recorded.
fn ended_so(child: &Shadow, end: &ChildEnd) -> bool {
    match (end, child.snapshot.finished()) {
        (ChildEnd::Completed { output }, Some(RunEnd::Completed { output: Some(own), .. })) => output == own,
        (ChildEnd::Cancelled, Some(RunEnd::Cancelled)) => true,
        (ChildEnd::Failed { .. }, None) => child.stopped().is_some() && child.status == Status::Failed,
        _ => false,
    }
}

/// Returns the due time of a timer's move.
pub(super) fn due(shadow: &Shadow, known: &Move, moved: &Activation) -> Option<i64> {
    let (entered, _) = shadow.entered.get(&moved.id)?;
    Some(entered + known.after_ms? as i64 * 1_000)
}

/// Finds the model's move for a checkpoint, and the activation that moves.
fn find_move<'a>(
    shadow: &'a Shadow,
    after: &Snapshot,
    entry: &HistoryEntry,
) -> Result<(&'static Move, &'a Activation), String> {
    let (before, now) = (shadow.places(), places(after));
    let transition = entry.transitions.first().map(ToString::to_string).unwrap_or_default();
    for known in shadow.flow.moves(&entry.action, &transition) {
        let Some(at) = before.iter().position(|(place, waits)| place == known.from && *waits == known.waits)
        else {
            continue;
        };
        let mut rest = before.clone();
        let left = rest.remove(at);
        let moved =
            shadow.snapshot.activations().iter().find(|a| a.place == *left.0 && is_waiting(a) == left.1);
        if known.to.enter(rest, &left) == now
            && after.is_terminal() == matches!(known.to, To::End)
            && let Some(moved) = moved
        {
            return Ok((known, moved));
        }
    }
    let (name, word) = (&shadow.name, &entry.action);
    Err(format!(
        "{name}: the model has no move from {before:?} to {now:?} by `{word}` {:?}",
        entry.transitions
    ))
}

fn is_waiting(activation: &Activation) -> bool {
    activation.status == ActivationStatus::Waiting
}

/// Checks that other activations are unchanged and that no activation id is reused.
fn check_others(shadow: &Shadow, after: &Snapshot, known: &Move, moved: &Activation) -> Result<(), String> {
    let name = &shadow.name;
    let ends_others = matches!(known.to, To::End | To::Join { .. });
    for other in shadow.snapshot.activations().iter().filter(|other| other.id != moved.id) {
        match after.activation(other.id) {
            Some(now) if now == other => {}
            Some(_) => {
                return Err(format!("{name}: activation {} changed although another one moved", other.id));
            }
            None if ends_others => {}
            None => return Err(format!("{name}: activation {} ended although another one moved", other.id)),
        }
    }
    let stays = matches!(known.to, To::Resolved | To::Counted);
    if after.activation(moved.id).is_some() != stays {
        return Err(format!("{name}: activation {} should have ended and did not, or the reverse", moved.id));
    }
    let known_before = |id| shadow.snapshot.activation(id).is_some();
    let new = after.activations().iter().filter(|activation| !known_before(activation.id));
    for activation in new {
        if activation.id <= shadow.newest_activation {
            return Err(format!("{name}: the activation id {} was reused", activation.id));
        }
    }
    Ok(())
}

/// Checks that an action changes its own two fields and nothing else.
fn check_context(
    shadow: &Shadow,
    after: &Snapshot,
    entry: &HistoryEntry,
    known: &Move,
) -> Result<(), String> {
    let mut expected = shadow.snapshot.context().clone();
    if !known.action.is_empty() {
        let output = entry.output.clone().unwrap_or(Value::Null);
        expected[format!("mark-{}", known.transition)] = output["token"].clone();
        expected[known.transition] = output;
    }
    if *after.context() == expected {
        return Ok(());
    }
    let (name, word) = (&shadow.name, &entry.action);
    Err(format!("{name}: `{word}` left the data as {}, expected {expected}", after.context()))
}

/// Checks that an operator's patch changes the named field to a number and nothing else.
fn check_patch(shadow: &Shadow, applied: &Applied<'_>, after: &Snapshot) -> Result<(), String> {
    let audit = applied.commit.audit.iter().find(|audit| audit.operation == "run.patch");
    let detail = audit.and_then(|audit| serde_json::from_slice::<Value>(&audit.detail).ok());
    let is_named = detail.is_some_and(|detail| detail["detail"]["fields"] == json!(["/patched"]));
    let mut expected = shadow.snapshot.context().clone();
    expected["patched"] = Value::Null;
    if is_named && after.context()["patched"].is_number() {
        expected["patched"] = after.context()["patched"].clone();
    }
    if *after.context() == expected && after.activations() == shadow.snapshot.activations() {
        return Ok(());
    }
    Err(format!("{}: a patch left the data as {}, expected {expected}", shadow.name, after.context()))
}

/// Checks that an action fails permanently only after its last retry.
fn check_spent(shadow: &Shadow, entry: &HistoryEntry, moved: &Activation) -> Result<(), String> {
    if entry.action != "__error:try" {
        return Ok(());
    }
    let retries =
        super::attempts::ledger_of(&shadow.ledger, moved.id)["retries"].as_u64().unwrap_or_default();
    if retry_pause_ms("flaky", retries + 1).is_none() {
        return Ok(());
    }
    Err(format!("{}: failed permanently after only {retries} retries", shadow.name))
}
