//! Signals: what was acknowledged is there, is not lost on the way, and is applied once.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stepwell::Signalled;
use stepwell_core::{Entry, RunId};
use stepwell_store::{Loaded, Step};

use super::{Applied, Oracle, Shadow};

/// What is known of signals; each is told by the text in its payload.
#[derive(Default)]
pub(super) struct Signals {
    /// Everything that was ever seen of a run: in its inbox, beside its state, or in its history.
    seen: BTreeMap<RunId, BTreeSet<String>>,
    applied: BTreeMap<RunId, BTreeSet<String>>,
    /// What is kept for a run and not applied.
    held: BTreeMap<RunId, BTreeSet<String>>,
    answers: BTreeMap<(RunId, String), Signalled>,
}

fn text(payload: &Value) -> Option<String> {
    payload["sig"].as_str().map(str::to_owned)
}

impl Signals {
    /// A step takes messages and applies signals.
    pub(super) fn taken(
        &mut self,
        shadow: &Shadow,
        applied: &Applied<'_>,
        step: &Step,
        entry: Option<&Entry>,
    ) -> Result<(), String> {
        let (run, name) = (step.head.run, &shadow.name);
        let Some(entry) = entry else { return Ok(()) };
        let by_signal = matches!(entry.action.as_str(), "ADD" | "CLOSE") || entry.action.starts_with("__resolve_wait:");
        let Some(sig) = entry.payload.as_ref().filter(|_| by_signal).and_then(text) else { return Ok(()) };
        self.seen.entry(run).or_default().insert(sig.clone());
        if self.applied.entry(run).or_default().insert(sig.clone()) {
            return Ok(());
        }
        let issued = applied.issued;
        Err(format!("{name}: the signal `{sig}` was applied twice, the second time by a step of {issued}"))
    }

    /// What is kept for a run stays kept until it is applied or the run ends.
    pub(super) fn look_at(&mut self, shadow: &Shadow, loaded: &Loaded) -> Result<(), String> {
        let (run, name) = (loaded.head.run, &shadow.name);
        let mut held = BTreeSet::new();
        for message in &loaded.inbox {
            let body: Value = serde_json::from_slice(&message.body).unwrap_or(Value::Null);
            if let Some(sig) = text(&body["payload"])
                && !held.insert(sig.clone())
            {
                return Err(format!("{name}: the signal `{sig}` is kept twice"));
            }
        }
        for tries in shadow.ledger["tries"].as_array().map(Vec::as_slice).unwrap_or_default() {
            held.extend(text(&tries["payload"]));
        }
        let applied = self.applied.entry(run).or_default();
        if let Some(sig) = held.iter().find(|sig| applied.contains(*sig)) {
            return Err(format!("{name}: the signal `{sig}` was applied and is still kept"));
        }
        let before = self.held.insert(run, held.clone()).unwrap_or_default();
        let lost = before.iter().find(|sig| !held.contains(*sig) && !applied.contains(*sig));
        self.seen.entry(run).or_default().extend(held.iter().cloned());
        match lost.filter(|_| !shadow.snapshot.is_terminal()) {
            Some(sig) => Err(format!("{name}: the signal `{sig}` was kept and is gone")),
            None => Ok(()),
        }
    }
}

impl Oracle {
    /// A signal was acknowledged.
    pub(crate) fn acknowledged(&mut self, run: RunId, sig: &str, answer: Signalled) -> Result<(), String> {
        let name = self.name(run);
        if !self.signals.seen.get(&run).is_some_and(|seen| seen.contains(sig)) {
            return Err(format!("{name}: the signal `{sig}` was acknowledged ({answer:?}) and is nowhere"));
        }
        let first = *self.signals.answers.entry((run, sig.to_owned())).or_insert(answer);
        if first != answer {
            return Err(format!("{name}: the signal `{sig}` was answered {first:?} and then {answer:?}"));
        }
        Ok(())
    }

    /// A start was acknowledged.
    pub(crate) fn started(&self, plan: u64, run: RunId) -> Result<(), String> {
        if !self.runs.contains_key(&run) {
            return Err(format!("the start of plan {plan} was acknowledged as run {run}, and there is none"));
        }
        let known = self.plans.get(&plan).is_some_and(|runs| runs.contains(&run));
        if known { Ok(()) } else { Err(format!("the key of plan {plan} was answered with {}", self.name(run))) }
    }

    /// The signals a run has applied.
    pub(crate) fn has_applied(&self, run: RunId, sig: &str) -> bool {
        self.signals.applied.get(&run).is_some_and(|applied| applied.contains(sig))
    }
}
