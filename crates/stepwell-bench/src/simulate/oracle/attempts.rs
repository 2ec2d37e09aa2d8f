//! The log of all action attempts: which process made them, for which run, and which result was committed.

use std::collections::BTreeMap;

use serde_json::Value;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{HistoryEntry, RunId, Timestamp};

use super::super::model::{Move, retry_pause_ms};
use super::super::process::number_of;
use super::super::tally::Tally;
use super::super::time::micros;
use super::super::trace::Trace;
use super::moves::due;
use super::{Applied, Oracle, Shadow};

/// An attempt as the action sees it.
pub(crate) struct FailedAttempt {
    pub(crate) run: RunId,
    pub(crate) activation: ActivationId,
    pub(crate) transition: String,
    pub(crate) key: String,
    pub(crate) attempt: u32,
    pub(crate) process: usize,
}

/// The end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Succeeded,
    Failed,
    FailedForGood,
    Panicked,
    /// The engine dropped it before its end.
    Dropped,
    /// The process died during the attempt.
    Died,
}

struct Try {
    tried: FailedAttempt,
    /// Fence at the start, if the process owned the run.
    fence: Option<u64>,
    ended: Option<Ending>,
    committed: bool,
}

/// All attempts of a simulation; the index in `all` is the token of an attempt.
#[derive(Default)]
pub(super) struct Attempts {
    all: Vec<Try>,
    of: BTreeMap<(RunId, ActivationId), Vec<usize>>,
    keys: BTreeMap<String, (RunId, ActivationId)>,
    /// Earliest time of the next retry, in microseconds.
    not_before: BTreeMap<(RunId, ActivationId), i64>,
}

impl Attempts {
    pub(super) fn died(&mut self, process: usize) {
        let theirs = self.all.iter_mut().filter(|known| known.tried.process == process);
        theirs.filter(|known| known.ended.is_none()).for_each(|known| known.ended = Some(Ending::Died));
    }

    /// Records a manual retry of a run: earlier crashes and retry pauses no longer count.
    pub(super) fn forgive(&mut self, run: RunId) {
        self.not_before.retain(|(of, _), _| *of != run);
        let theirs = self.all.iter_mut().filter(|known| known.tried.run == run);
        theirs
            .filter(|known| known.ended == Some(Ending::Died))
            .for_each(|known| known.ended = Some(Ending::Dropped));
    }

    /// Returns the attempts of an activation, oldest first.
    fn of(&self, run: RunId, activation: ActivationId) -> impl Iterator<Item = &Try> {
        let known = self.of.get(&(run, activation)).into_iter().flatten();
        known.map(|token| &self.all[*token])
    }
}

/// Returns the ledger record of an activation.
pub(super) fn ledger_of(ledger: &Value, activation: ActivationId) -> &Value {
    let attempts = ledger["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    attempts.iter().find(|attempts| attempts["activation"] == activation).unwrap_or(&Value::Null)
}

impl Oracle {
    /// Checks and records the start of an attempt. Returns its unique token.
    pub(crate) fn try_started(
        &mut self,
        now: i64,
        action: &str,
        tried: FailedAttempt,
        trace: &mut Trace,
    ) -> (usize, Result<(), String>) {
        let token = self.attempts.all.len();
        let FailedAttempt { run, activation, transition, attempt, process, .. } = &tried;
        let name = self.name(*run);
        trace.line(
            now,
            format_args!(
                "p{process} attempts {name} `{transition}` #{activation}, attempt {attempt}, token {token}"
            ),
        );
        let shadow = self.runs.get(run);
        let owned = shadow.filter(|shadow| shadow.owner.map(number_of) == Some(*process));
        let fence = owned.map(|shadow| shadow.fence);
        let verdict = self.check_try(now, action, &tried, fence);
        let of = (*run, *activation);
        self.attempts.keys.entry(tried.key.clone()).or_insert(of);
        self.attempts.of.entry(of).or_default().push(token);
        self.attempts.all.push(Try { tried, fence, ended: None, committed: false });
        (token, verdict)
    }

    fn check_try(
        &self,
        now: i64,
        action: &str,
        tried: &FailedAttempt,
        fence: Option<u64>,
    ) -> Result<(), String> {
        let FailedAttempt { run, activation, transition, key, attempt, process } = tried;
        let Some(shadow) = self.runs.get(run) else {
            return Err(format!("p{process} works on run {run}, which was never started"));
        };
        let name = &shadow.name;
        let known = shadow.flow.by_transition(transition).filter(|known| known.action == action);
        let known = known.ok_or_else(|| format!("{name}: `{transition}` has no action `{action}`"))?;
        // The owner cannot know yet that another process has ended the run.
        if fence.is_none() && !shadow.snapshot.is_terminal() {
            let owner = shadow.owner.map(number_of);
            return Err(format!("{name}: p{process} attempts `{transition}`, but the owner is {owner:?}"));
        }
        if self.attempts.keys.get(key).is_some_and(|of| *of != (*run, *activation)) {
            return Err(format!("{name}: the key {key} belongs to another activation"));
        }
        if now < shadow.begins {
            return Err(format!("{name}: `{transition}` was attempted before the run's start time"));
        }
        let moved = shadow.snapshot.activation(*activation);
        if let Some(due) = moved.and_then(|moved| due(shadow, known, moved)).filter(|due| now < *due) {
            return Err(format!("{name}: `{transition}` was attempted at {now}, before it was due at {due}"));
        }
        if let Some(due) = moved.and_then(|moved| due(shadow, known, moved)) {
            let again = self.attempts.of(*run, *activation).next().is_some();
            self.check_late(shadow, transition, due, now)
                .or_else(|late| if again { Ok(()) } else { Err(late) })?;
        }
        let early = self.attempts.not_before.get(&(*run, *activation)).filter(|at| now < **at);
        if let Some(at) = early.filter(|_| fence.is_some()) {
            return Err(format!("{name}: `{transition}` was retried at {now}, before {at}"));
        }
        self.check_earlier_tries(shadow, tried, *attempt, fence)
    }

    fn check_earlier_tries(
        &self,
        shadow: &Shadow,
        tried: &FailedAttempt,
        attempt: u32,
        fence: Option<u64>,
    ) -> Result<(), String> {
        let FailedAttempt { run, activation, transition, key, process, .. } = tried;
        let name = &shadow.name;
        let mut died = 0;
        for earlier in self.attempts.of(*run, *activation) {
            if earlier.tried.key != *key {
                return Err(format!("{name}: two attempts of activation {activation} have different keys"));
            }
            if earlier.tried.transition != *transition {
                continue;
            }
            if earlier.ended.is_none() && earlier.tried.process == *process && earlier.fence == fence {
                return Err(format!("{name}: `{transition}` runs twice concurrently in p{process}"));
            }
            if earlier.committed && fence.is_some() {
                return Err(format!("{name}: `{transition}` was attempted after its result was committed"));
            }
            let known_dead = earlier.ended == Some(Ending::Died) && earlier.fence.is_some();
            if known_dead && fence.is_some() && earlier.tried.attempt >= attempt {
                return Err(format!(
                    "{name}: attempt {attempt} of `{transition}` does not count an attempt that died"
                ));
            }
            died += u32::from(known_dead);
        }
        if died >= self.settings.max_crashes && fence.is_some() {
            return Err(format!("{name}: `{transition}` is retried after {died} crashes"));
        }
        Ok(())
    }

    /// Records the end of an attempt; only the first end counts.
    pub(crate) fn try_ended(&mut self, now: i64, token: usize, ending: Ending, trace: &mut Trace) {
        if let Some(known) = self.attempts.all.get_mut(token).filter(|known| known.ended.is_none()) {
            known.ended = Some(ending);
            trace.line(now, format_args!("token {token}: {ending:?}"));
        }
    }

    /// Checks that a result is committed once, by the process that owned the run during the whole attempt.
    pub(super) fn check_result(
        &mut self,
        applied: &Applied<'_>,
        run: RunId,
        entry: &HistoryEntry,
        known: &Move,
        moved: ActivationId,
    ) -> Result<(), String> {
        if known.action.is_empty() {
            return Ok(());
        }
        let Some(shadow) = self.runs.get(&run) else { return Ok(()) };
        let (name, word) = (&shadow.name, &entry.action);
        let token = entry.output.as_ref().and_then(|output| output["token"].as_u64());
        let made = token.and_then(|token| self.attempts.all.get_mut(token as usize));
        let Some(made) = made else {
            return Err(format!("{name}: `{word}` was committed without an attempt"));
        };
        let FailedAttempt { run: of, activation, transition, process, .. } = &made.tried;
        if (*of, *activation, transition.as_str()) != (run, moved, known.transition) {
            return Err(format!("{name}: `{word}` was committed with the result of another step"));
        }
        if made.ended != Some(Ending::Succeeded) || made.committed {
            return Err(format!("{name}: `{word}` was committed twice, or its attempt did not succeed"));
        }
        let owner = shadow.owner.map(number_of);
        if *process != applied.process || owner != Some(*process) || made.fence != Some(shadow.fence) {
            return Err(format!(
                "{name}: the result of p{process} under fence {:?} was committed by p{}, but the owner was \
                 {owner:?} under fence {}",
                made.fence, applied.process, shadow.fence
            ));
        }
        if applied.commit.step.as_ref().is_none_or(|step| step.fence != Some(shadow.fence)) {
            return Err(format!("{name}: a result was committed without a fence"));
        }
        made.committed = true;
        if known.action == "work" {
            let of = self.notes.entry(run).or_default();
            of.insert(known.transition, token.unwrap_or_default());
        }
        Ok(())
    }

    /// Checks that the recorded failures are true, and that the pause before the next retry is respected.
    pub(super) fn check_ledger(
        &mut self,
        applied: &Applied<'_>,
        run: RunId,
        ledger: &Value,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let Some(shadow) = self.runs.get(&run) else { return Ok(()) };
        let name = &shadow.name;
        for attempts in ledger["attempts"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let activation = attempts["activation"].as_u64().unwrap_or_default();
            let count = |attempts: &Value| attempts["retries"].as_u64().unwrap_or_default();
            let (before, now) = (count(ledger_of(&shadow.ledger, activation)), count(attempts));
            if now <= before {
                continue;
            }
            tally.retries += 1;
            let transition = attempts["transition"].as_str().unwrap_or_default();
            let action = shadow.flow.by_transition(transition).map(|known| known.action).unwrap_or_default();
            let pause = retry_pause_ms(action, now).filter(|_| now == before + 1);
            let Some(pause) = pause else {
                return Err(format!("{name}: retry {now} after {before} is not allowed"));
            };
            let at = applied.issued + pause as i64 * 1_000;
            let next = attempts["next"].as_str().and_then(|next| next.parse::<Timestamp>().ok()).map(micros);
            if next.is_none_or(|next| next < at) {
                return Err(format!("{name}: retry {now} is planned for {next:?}, expected not before {at}"));
            }
            let failed = self.attempts.of(run, activation).filter(|made| made.ended.is_some()).count() as u64;
            if failed < now {
                return Err(format!("{name}: {now} failures were recorded for {failed} attempts"));
            }
            self.attempts.not_before.insert((run, activation), at);
        }
        self.check_stop(run, ledger, tally)
    }

    /// Checks that a run fails only for a reason in its script, or after too many crashes.
    fn check_stop(&mut self, run: RunId, ledger: &Value, tally: &mut Tally) -> Result<(), String> {
        let Some(shadow) = self.runs.get(&run) else { return Ok(()) };
        let stopped = &ledger["stopped"];
        if stopped.is_null() || shadow.stopped().is_some() {
            return Ok(());
        }
        let code = stopped["error"]["code"].as_str().unwrap_or_default();
        let activation = stopped["activation"].as_u64().unwrap_or_default();
        let crashes =
            shadow.entered.get(&activation).map_or(0, |(_, fence)| shadow.fence.saturating_sub(*fence));
        let allowed = match (code, shadow.flow.name) {
            ("scripted", "mended") => true,
            ("scripted", "child") => shadow.snapshot.context()["fails"] == true,
            ("crashed", _) => crashes >= u64::from(self.settings.max_crashes),
            _ => false,
        };
        tally.crash_limits += u64::from(code == "crashed");
        if allowed {
            Ok(())
        } else {
            Err(format!("{}: failed without a reason after {crashes} crashes: {stopped}", shadow.name))
        }
    }

    /// Returns the ends of all attempts of an activation; `None` for one that still runs.
    pub(super) fn tries_of(&self, run: RunId, activation: ActivationId) -> Vec<Option<Ending>> {
        self.attempts.of(run, activation).map(|made| made.ended).collect()
    }

    /// Returns the activations with attempts.
    pub(super) fn tried(&self) -> impl Iterator<Item = (RunId, ActivationId)> {
        self.attempts.of.keys().copied()
    }
}
