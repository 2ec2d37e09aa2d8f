//! The log of the actions: who tried what, for whom, and whose result was committed.

use std::collections::BTreeMap;

use serde_json::Value;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{Entry, RunId, Timestamp};

use super::super::model::{Move, retry_pause_ms};
use super::super::process::number_of;
use super::super::tally::Tally;
use super::super::time::micros;
use super::super::trace::Trace;
use super::moves::due;
use super::{Applied, Oracle, Shadow};

/// A try as the action knows it.
pub(crate) struct Tried {
    pub(crate) run: RunId,
    pub(crate) activation: ActivationId,
    pub(crate) transition: String,
    pub(crate) key: String,
    pub(crate) attempt: u32,
    pub(crate) process: usize,
}

/// How a try ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Succeeded,
    Failed,
    FailedForGood,
    Panicked,
    /// Nobody waited for its end.
    Dropped,
    /// Its process died.
    Died,
}

struct Try {
    tried: Tried,
    /// The owner was the process itself, under this fence, when it began.
    fence: Option<u64>,
    ended: Option<Ending>,
    committed: bool,
}

/// The log.
#[derive(Default)]
pub(super) struct Tries {
    all: Vec<Try>,
    of: BTreeMap<(RunId, ActivationId), Vec<usize>>,
    keys: BTreeMap<String, (RunId, ActivationId)>,
    /// Retries are not made before.
    not_before: BTreeMap<(RunId, ActivationId), i64>,
}

impl Tries {
    pub(super) fn died(&mut self, process: usize) {
        let theirs = self.all.iter_mut().filter(|known| known.tried.process == process);
        theirs.filter(|known| known.ended.is_none()).for_each(|known| known.ended = Some(Ending::Died));
    }

    /// Somebody has retried a run by hand: it begins anew, whatever has happened to it.
    pub(super) fn forgive(&mut self, run: RunId) {
        self.not_before.retain(|(of, _), _| *of != run);
        let theirs = self.all.iter_mut().filter(|known| known.tried.run == run);
        theirs
            .filter(|known| known.ended == Some(Ending::Died))
            .for_each(|known| known.ended = Some(Ending::Dropped));
    }

    /// The tries of an activation, oldest first.
    fn of(&self, run: RunId, activation: ActivationId) -> impl Iterator<Item = &Try> {
        let known = self.of.get(&(run, activation)).into_iter().flatten();
        known.map(|token| &self.all[*token])
    }
}

/// What a ledger says of an activation.
pub(super) fn ledger_of(ledger: &Value, activation: ActivationId) -> &Value {
    let tries = ledger["tries"].as_array().map(Vec::as_slice).unwrap_or_default();
    tries.iter().find(|tries| tries["activation"] == activation).unwrap_or(&Value::Null)
}

impl Oracle {
    /// A try begins; it gets a token that nobody else has.
    pub(crate) fn try_started(
        &mut self,
        now: i64,
        action: &str,
        tried: Tried,
        trace: &mut Trace,
    ) -> (usize, Result<(), String>) {
        let token = self.tries.all.len();
        let Tried { run, activation, transition, attempt, process, .. } = &tried;
        let name = self.name(*run);
        trace.line(
            now,
            format_args!(
                "p{process} tries {name} `{transition}` #{activation}, attempt {attempt}, token {token}"
            ),
        );
        let shadow = self.runs.get(run);
        let owned = shadow.filter(|shadow| shadow.owner.map(number_of) == Some(*process));
        let fence = owned.map(|shadow| shadow.fence);
        let verdict = self.check_try(now, action, &tried, fence);
        let of = (*run, *activation);
        self.tries.keys.entry(tried.key.clone()).or_insert(of);
        self.tries.of.entry(of).or_default().push(token);
        self.tries.all.push(Try { tried, fence, ended: None, committed: false });
        (token, verdict)
    }

    fn check_try(&self, now: i64, action: &str, tried: &Tried, fence: Option<u64>) -> Result<(), String> {
        let Tried { run, activation, transition, key, attempt, process } = tried;
        let Some(shadow) = self.runs.get(run) else {
            return Err(format!("p{process} works on run {run}, which never began"));
        };
        let name = &shadow.name;
        let known = shadow.flow.by_transition(transition).filter(|known| known.action == action);
        let known = known.ok_or_else(|| format!("{name}: `{transition}` has no action `{action}`"))?;
        // That somebody else has ended the run, its owner cannot know yet.
        if fence.is_none() && !shadow.snapshot.is_terminal() {
            let owner = shadow.owner.map(number_of);
            return Err(format!("{name}: p{process} tries `{transition}`, and the run belongs to {owner:?}"));
        }
        if self.tries.keys.get(key).is_some_and(|of| *of != (*run, *activation)) {
            return Err(format!("{name}: the key {key} was that of another activation"));
        }
        if now < shadow.begins {
            return Err(format!("{name}: `{transition}` was tried before the run was to begin"));
        }
        let moved = shadow.snapshot.activation(*activation);
        if let Some(due) = moved.and_then(|moved| due(shadow, known, moved)).filter(|due| now < *due) {
            return Err(format!("{name}: `{transition}` was tried at {now}, before it was due at {due}"));
        }
        if let Some(due) = moved.and_then(|moved| due(shadow, known, moved)) {
            let again = self.tries.of(*run, *activation).next().is_some();
            self.check_late(shadow, transition, due, now)
                .or_else(|late| if again { Ok(()) } else { Err(late) })?;
        }
        let early = self.tries.not_before.get(&(*run, *activation)).filter(|at| now < **at);
        if let Some(at) = early.filter(|_| fence.is_some()) {
            return Err(format!("{name}: `{transition}` was tried again at {now}, before {at}"));
        }
        self.check_earlier_tries(shadow, tried, *attempt, fence)
    }

    fn check_earlier_tries(
        &self,
        shadow: &Shadow,
        tried: &Tried,
        attempt: u32,
        fence: Option<u64>,
    ) -> Result<(), String> {
        let Tried { run, activation, transition, key, process, .. } = tried;
        let name = &shadow.name;
        let mut died = 0;
        for earlier in self.tries.of(*run, *activation) {
            if earlier.tried.key != *key {
                return Err(format!("{name}: two tries of activation {activation} have different keys"));
            }
            if earlier.tried.transition != *transition {
                continue;
            }
            if earlier.ended.is_none() && earlier.tried.process == *process && earlier.fence == fence {
                return Err(format!("{name}: `{transition}` runs twice at once in p{process}"));
            }
            if earlier.committed && fence.is_some() {
                return Err(format!("{name}: `{transition}` was tried after its result was committed"));
            }
            let known_dead = earlier.ended == Some(Ending::Died) && earlier.fence.is_some();
            if known_dead && fence.is_some() && earlier.tried.attempt >= attempt {
                return Err(format!(
                    "{name}: attempt {attempt} of `{transition}` does not count the one that died"
                ));
            }
            died += u32::from(known_dead);
        }
        if died >= self.settings.max_crashes && fence.is_some() {
            return Err(format!("{name}: `{transition}` is tried again after {died} deaths"));
        }
        Ok(())
    }

    /// A try has ended; only the first end counts.
    pub(crate) fn try_ended(&mut self, now: i64, token: usize, ending: Ending, trace: &mut Trace) {
        if let Some(known) = self.tries.all.get_mut(token).filter(|known| known.ended.is_none()) {
            known.ended = Some(ending);
            trace.line(now, format_args!("token {token}: {ending:?}"));
        }
    }

    /// A result is committed for the process that owned the run all along, once.
    pub(super) fn check_result(
        &mut self,
        applied: &Applied<'_>,
        run: RunId,
        entry: &Entry,
        known: &Move,
        moved: ActivationId,
    ) -> Result<(), String> {
        if known.action.is_empty() {
            return Ok(());
        }
        let Some(shadow) = self.runs.get(&run) else { return Ok(()) };
        let (name, word) = (&shadow.name, &entry.action);
        let token = entry.output.as_ref().and_then(|output| output["token"].as_u64());
        let made = token.and_then(|token| self.tries.all.get_mut(token as usize));
        let Some(made) = made else { return Err(format!("{name}: `{word}` was committed without a try")) };
        let Tried { run: of, activation, transition, process, .. } = &made.tried;
        if (*of, *activation, transition.as_str()) != (run, moved, known.transition) {
            return Err(format!("{name}: `{word}` was committed with the result of another step"));
        }
        if made.ended != Some(Ending::Succeeded) || made.committed {
            return Err(format!("{name}: `{word}` was committed twice, or its try did not succeed"));
        }
        let owner = shadow.owner.map(number_of);
        if *process != applied.process || owner != Some(*process) || made.fence != Some(shadow.fence) {
            return Err(format!(
                "{name}: the result of p{process} under fence {:?} was committed by p{}, and the run belonged to \
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

    /// What is recorded of failed tries is true, and the pause before the next one is kept.
    pub(super) fn check_ledger(
        &mut self,
        applied: &Applied<'_>,
        run: RunId,
        ledger: &Value,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let Some(shadow) = self.runs.get(&run) else { return Ok(()) };
        let name = &shadow.name;
        for tries in ledger["tries"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let activation = tries["activation"].as_u64().unwrap_or_default();
            let count = |tries: &Value| tries["retries"].as_u64().unwrap_or_default();
            let (before, now) = (count(ledger_of(&shadow.ledger, activation)), count(tries));
            if now <= before {
                continue;
            }
            tally.retries += 1;
            let transition = tries["transition"].as_str().unwrap_or_default();
            let action = shadow.flow.by_transition(transition).map(|known| known.action).unwrap_or_default();
            let pause = retry_pause_ms(action, now).filter(|_| now == before + 1);
            let Some(pause) = pause else {
                return Err(format!("{name}: retry {now} after {before} is one too many"));
            };
            let at = applied.issued + pause as i64 * 1_000;
            let next = tries["next"].as_str().and_then(|next| next.parse::<Timestamp>().ok()).map(micros);
            if next.is_none_or(|next| next < at) {
                return Err(format!("{name}: retry {now} is planned for {next:?}, not for {at}"));
            }
            let failed = self.tries.of(run, activation).filter(|made| made.ended.is_some()).count() as u64;
            if failed < now {
                return Err(format!("{name}: {now} failures were recorded of {failed} tries"));
            }
            self.tries.not_before.insert((run, activation), at);
        }
        self.check_stop(run, ledger, tally)
    }

    /// A run stands still only for a reason that the script gave.
    fn check_stop(&mut self, run: RunId, ledger: &Value, tally: &mut Tally) -> Result<(), String> {
        let Some(shadow) = self.runs.get(&run) else { return Ok(()) };
        let stopped = &ledger["stopped"];
        if stopped.is_null() || shadow.stopped().is_some() {
            return Ok(());
        }
        let code = stopped["error"]["code"].as_str().unwrap_or_default();
        let activation = stopped["activation"].as_u64().unwrap_or_default();
        let deaths =
            shadow.entered.get(&activation).map_or(0, |(_, fence)| shadow.fence.saturating_sub(*fence));
        let allowed = match (code, shadow.flow.name) {
            ("scripted", "mended") => true,
            ("scripted", "child") => shadow.snapshot.context()["fails"] == true,
            ("crashed", _) => deaths >= u64::from(self.settings.max_crashes),
            _ => false,
        };
        tally.crash_limits += u64::from(code == "crashed");
        if allowed {
            Ok(())
        } else {
            Err(format!("{}: it stands still after {deaths} deaths: {stopped}", shadow.name))
        }
    }

    /// How often an activation was tried, and how often that ended like this.
    pub(super) fn tries_of(&self, run: RunId, activation: ActivationId) -> Vec<Option<Ending>> {
        self.tries.of(run, activation).map(|made| made.ended).collect()
    }

    /// The activations that were tried.
    pub(super) fn tried(&self) -> impl Iterator<Item = (RunId, ActivationId)> {
        self.tries.of.keys().copied()
    }
}
