//! Whether a checkpoint follows from the one before: by the model's table, for each activation, and in the data.

use serde_json::Value;
use stepwell_core::snapshot::{Activation, ActivationStatus, ChildEnd, Finished};
use stepwell_core::{Entry, RunId, Snapshot};
use stepwell_store::{Loaded, Status};

use super::super::model::{Move, To, counts, retry_pause_ms};
use super::super::tally::Tally;
use super::super::time::micros;
use super::{Applied, Oracle, Shadow, checkpoint, places, read_snapshot};

/// How late, in a quiet time, something that is due may happen.
const LATE_US: i64 = 1_500_000;
/// After the last fault it takes this long until everything is quiet.
const SETTLES_US: i64 = 8_000_000;

impl Oracle {
    /// A run has a new version.
    pub(super) fn moved(
        &mut self,
        applied: &Applied<'_>,
        run: RunId,
        loaded: &Loaded,
        entry: &Entry,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let Some(shadow) = self.runs.get(&run) else { return Ok(()) };
        let name = shadow.name.clone();
        let version = shadow.history.len() as u64;
        let (commit, written, state) = checkpoint(applied.memory, run, version)?;
        if commit != applied.commit.id {
            return Err(format!("{name}: version {version} is not what was committed"));
        }
        let after = read_snapshot(&name, &state)?;
        if after.version() != version || entry.version != version {
            return Err(format!("{name}: version {version} calls itself {}", after.version()));
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
        // It was decided between the step before and its own, and counts from then on.
        let decided = micros(entry.at).clamp(shadow.issued.min(applied.issued), applied.issued);
        for activation in after.activations() {
            shadow.entered.entry(activation.id).or_insert((decided, loaded.head.fence));
            shadow.newest_activation = shadow.newest_activation.max(activation.id);
        }
        shadow.snapshot = after;
        shadow.history.push((commit, written, state));
        Ok(())
    }

    /// A run was ended by command: by an operator, by its parent or by its deadline.
    fn cancelled(
        &self,
        applied: &Applied<'_>,
        shadow: &Shadow,
        after: &Snapshot,
        entry: &Entry,
    ) -> Option<Result<(), String>> {
        let allowed = match entry.action.as_str() {
            "__operator:cancel" => true,
            "__deadline" => {
                let deadline = shadow.ledger["deadline"].as_str().and_then(|at| at.parse().ok());
                deadline.is_some_and(|deadline| micros(deadline) <= applied.issued)
            }
            "__parent:cancel" => {
                let parent = shadow.parent.as_ref().and_then(|parent| self.runs.get(&parent.run));
                parent.is_some_and(|parent| parent.snapshot.finished() == Some(&Finished::Cancelled))
            }
            _ => return None,
        };
        let (name, word) = (&shadow.name, &entry.action);
        let ended = after.finished() == Some(&Finished::Cancelled) && after.activations().is_empty();
        Some(if allowed && ended { Ok(()) } else { Err(format!("{name}: `{word}` without a reason")) })
    }

    /// A timer does not fire before it is due, nor long after if nothing keeps the engine from it.
    fn check_time(
        &self,
        applied: &Applied<'_>,
        shadow: &Shadow,
        known: &Move,
        moved: &Activation,
    ) -> Result<(), String> {
        let name = &shadow.name;
        if applied.issued < shadow.begins {
            return Err(format!("{name}: it moved before it was to begin, at {}", shadow.begins));
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

    /// In quiet times, and with room for it, what is due happens soon.
    pub(super) fn check_late(&self, shadow: &Shadow, what: &str, due: i64, now: i64) -> Result<(), String> {
        let was_quiet = self.calm || self.quiet_since.is_some_and(|since| due > since + SETTLES_US);
        let is_free = !matches!(shadow.status, Status::Suspended | Status::Failed);
        if was_quiet && is_free && now > due + LATE_US && self.settings.max_runs > 2 {
            return Err(format!("{}: `{what}` came at {now}, due at {due}, in quiet times", shadow.name));
        }
        Ok(())
    }

    /// Children end once each, as they truly did, and the wait ends when it may.
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
                Err(format!("{name}: {begun} of {wanted} children"))
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
            child.stopped().is_some() || child.snapshot.finished() == Some(&Finished::Cancelled)
        });
        match known.to {
            To::Step("bereft") if failed => return Ok(()),
            To::Step(_) => return Err(format!("{name}: it gave its children up, and none has failed")),
            _ => {}
        }
        let new: Vec<_> = now.iter().filter(|(number, _)| !before.contains_key(*number)).collect();
        let [(number, end)] = new[..] else {
            return Err(format!("{name}: {} children ended in one version", new.len()));
        };
        let child = self.children_of(shadow).find(|(child, _)| child == number);
        let Some((_, child)) = child else { return Err(format!("{name}: it has no child {number}")) };
        if !ended_so(child, end) {
            return Err(format!("{name}: its child {} did not end so: {end:?}", child.name));
        }
        let all = now.len() as u32 == total;
        if all != matches!(known.to, To::Resolved) {
            return Err(format!("{name}: {} of {total} children have ended, and it goes on", now.len()));
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

/// A child has ended like this.
fn ended_so(child: &Shadow, end: &ChildEnd) -> bool {
    match (end, child.snapshot.finished()) {
        (ChildEnd::Completed { output }, Some(Finished::Completed { output: Some(own), .. })) => {
            output == own
        }
        (ChildEnd::Cancelled, Some(Finished::Cancelled)) => true,
        (ChildEnd::Failed { .. }, None) => child.stopped().is_some() && child.status == Status::Failed,
        _ => false,
    }
}

/// When a move by a timer is due.
pub(super) fn due(shadow: &Shadow, known: &Move, moved: &Activation) -> Option<i64> {
    let (entered, _) = shadow.entered.get(&moved.id)?;
    Some(entered + known.after_ms? as i64 * 1_000)
}

/// The move of the model that a checkpoint is, and the activation it moves.
fn find_move<'a>(
    shadow: &'a Shadow,
    after: &Snapshot,
    entry: &Entry,
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
    Err(format!("{name}: from {before:?} to {now:?} by `{word}` {:?} is no move of it", entry.transitions))
}

fn is_waiting(activation: &Activation) -> bool {
    activation.status == ActivationStatus::Waiting
}

/// What did not move stays as it is, and numbers are not used again.
fn check_others(shadow: &Shadow, after: &Snapshot, known: &Move, moved: &Activation) -> Result<(), String> {
    let name = &shadow.name;
    let ends_others = matches!(known.to, To::End | To::Join { .. });
    for other in shadow.snapshot.activations().iter().filter(|other| other.id != moved.id) {
        match after.activation(other.id) {
            Some(now) if now == other => {}
            Some(_) => {
                return Err(format!("{name}: activation {} changed beside the one that moved", other.id));
            }
            None if ends_others => {}
            None => return Err(format!("{name}: activation {} went with another", other.id)),
        }
    }
    let stays = matches!(known.to, To::Resolved | To::Counted);
    if after.activation(moved.id).is_some() != stays {
        return Err(format!("{name}: activation {} moved and is still there, or the reverse", moved.id));
    }
    let known_before = |id| shadow.snapshot.activation(id).is_some();
    let new = after.activations().iter().filter(|activation| !known_before(activation.id));
    for activation in new {
        if activation.id <= shadow.newest_activation {
            return Err(format!("{name}: the number {} is used again", activation.id));
        }
    }
    Ok(())
}

/// An action changes its own two fields and nothing else.
fn check_context(shadow: &Shadow, after: &Snapshot, entry: &Entry, known: &Move) -> Result<(), String> {
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

/// An operator's patch changes the data as it says and nothing else.
fn check_patch(shadow: &Shadow, applied: &Applied<'_>, after: &Snapshot) -> Result<(), String> {
    let audit = applied.commit.audit.iter().find(|audit| audit.operation == "run.patch");
    let detail = audit.and_then(|audit| serde_json::from_slice::<Value>(&audit.detail).ok());
    let number = detail.map_or(Value::Null, |detail| detail["detail"]["fields"]["patched"].clone());
    let mut expected = shadow.snapshot.context().clone();
    expected["patched"] = number;
    if *after.context() == expected && after.activations() == shadow.snapshot.activations() {
        return Ok(());
    }
    Err(format!("{}: a patch left the data as {}, expected {expected}", shadow.name, after.context()))
}

/// An action is given up only after its last retry.
fn check_spent(shadow: &Shadow, entry: &Entry, moved: &Activation) -> Result<(), String> {
    if entry.action != "__error:try" {
        return Ok(());
    }
    let retries = super::tries::ledger_of(&shadow.ledger, moved.id)["retries"].as_u64().unwrap_or_default();
    if retry_pause_ms("flaky", retries + 1).is_none() {
        return Ok(());
    }
    Err(format!("{}: it was given up after {retries} retries", shadow.name))
}
