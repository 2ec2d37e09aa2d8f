//! Checks on signals: an acknowledged signal exists, is not lost, and is applied once.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stepwell::Signalled;
use stepwell_core::{HistoryEntry, RunId};
use stepwell_store::{Loaded, RunUpdate};

use super::super::time::micros;
use super::{Applied, Oracle, Shadow};

/// The observed signals. Each is identified by the text in its payload.
#[derive(Default)]
pub(super) struct Signals {
    /// Signals ever seen of a run: in its inbox, in its ledger or in its history.
    seen: BTreeMap<RunId, BTreeSet<String>>,
    applied: BTreeMap<RunId, BTreeSet<String>>,
    /// Signals buffered for a run and not applied yet.
    held: BTreeMap<RunId, BTreeMap<String, Held>>,
    answers: BTreeMap<(RunId, String), Signalled>,
}

/// A signal that was received and not applied yet.
#[derive(Debug, Clone)]
struct Held {
    name: String,
    /// Sequence number in the inbox; `None` if the signal is in the ledger.
    seq: Option<u64>,
    expires: Option<i64>,
}

fn text(payload: &Value) -> Option<String> {
    payload["sig"].as_str().map(str::to_owned)
}

impl Signals {
    /// Checks and records the signal that a step applies.
    pub(super) fn taken(
        &mut self,
        shadow: &Shadow,
        applied: &Applied<'_>,
        step: &RunUpdate,
        entry: &HistoryEntry,
    ) -> Result<(), String> {
        let (run, name) = (step.head.run, &shadow.name);
        let word = entry.action.as_str();
        let by_signal = matches!(word, "ADD" | "CLOSE") || word.starts_with("__resolve_wait:");
        let Some(sig) = entry.payload.as_ref().filter(|_| by_signal).and_then(text) else { return Ok(()) };
        let held = self.held.entry(run).or_default();
        if let Some(expires) = held.get(&sig).and_then(|held| held.expires).filter(|at| *at < applied.issued)
        {
            let late = micros(entry.at) - expires;
            if late > 0 {
                return Err(format!("{name}: the signal `{sig}` was applied {late} us after it had expired"));
            }
        }
        let done = self.applied.entry(run).or_default();
        let own = held.get(&sig).and_then(|held| held.seq);
        let older = |(sig, held): &(&String, &Held)| {
            let known = held.seq.is_some_and(|seq| seq <= step.head.inbox_seen);
            held.name == word && known && held.seq < own && !done.contains(*sig)
        };
        if let Some((_, older)) = held.iter().find(older) {
            return Err(format!("{name}: the signal `{sig}` was applied before the older {older:?}"));
        }
        self.seen.entry(run).or_default().insert(sig.clone());
        if done.insert(sig.clone()) {
            return Ok(());
        }
        let issued = applied.issued;
        Err(format!(
            "{name}: the signal `{sig}` was applied twice, the second time by a step issued at {issued}"
        ))
    }

    /// Checks that a buffered signal stays buffered until it is applied, has expired, or the run ends.
    pub(super) fn check_run(
        &mut self,
        applied: &Applied<'_>,
        shadow: &Shadow,
        loaded: &Loaded,
    ) -> Result<(), String> {
        let (run, name) = (loaded.head.run, &shadow.name);
        let held = held_of(shadow, loaded)?;
        let done = self.applied.entry(run).or_default();
        if let Some(sig) = held.keys().find(|sig| done.contains(*sig)) {
            return Err(format!("{name}: the signal `{sig}` was applied and is still buffered"));
        }
        self.seen.entry(run).or_default().extend(held.keys().cloned());
        let before = self.held.insert(run, held.clone()).unwrap_or_default();
        if shadow.snapshot.is_terminal() {
            return Ok(());
        }
        let gone = before.iter().filter(|(sig, _)| !held.contains_key(*sig) && !done.contains(*sig));
        let recorded = applied.commit.audit.iter().any(|audit| audit.operation == "signal.expired");
        for (sig, gone) in gone {
            if !recorded || gone.expires.is_none_or(|expires| expires > applied.issued) {
                return Err(format!("{name}: the signal `{sig}` was buffered and disappeared"));
            }
        }
        let seen =
            applied.commit.step.as_ref().filter(|step| step.head.run == run).map(|step| step.head.inbox_seen);
        let begun = held.iter().find(|(sig, held)| held.seq.is_none() && !before.contains_key(*sig));
        let known = |held: &&Held| {
            held.seq.is_some_and(|seq| Some(seq) <= seen) && held.expires > Some(applied.issued)
        };
        match (begun, before.values().find(known)) {
            (Some((sig, begun)), Some(older)) if begun.name == older.name => {
                Err(format!("{name}: the signal `{sig}` was started before the older {older:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the buffered signals of a run: those in its inbox and in its ledger.
fn held_of(shadow: &Shadow, loaded: &Loaded) -> Result<BTreeMap<String, Held>, String> {
    let mut held = BTreeMap::new();
    for message in &loaded.inbox {
        let body: Value = serde_json::from_slice(&message.body).unwrap_or(Value::Null);
        let Some(sig) = text(&body["payload"]) else { continue };
        let name = body["name"].as_str().unwrap_or_default().to_owned();
        let kept = Held { name, seq: Some(message.seq), expires: message.expires_at.map(micros) };
        if held.insert(sig.clone(), kept).is_some() {
            return Err(format!("{}: the signal `{sig}` is buffered twice", shadow.name));
        }
    }
    for attempts in shadow.ledger["attempts"].as_array().map(Vec::as_slice).unwrap_or_default() {
        if let Some(sig) = text(&attempts["payload"]) {
            let name = attempts["cause"]["signal"].as_str().unwrap_or_default().to_owned();
            held.entry(sig).or_insert(Held { name, seq: None, expires: None });
        }
    }
    Ok(held)
}

impl Oracle {
    /// Checks an acknowledged signal: it must exist, and its answer must not change.
    pub(crate) fn acknowledged(
        &mut self,
        run: RunId,
        sig: &str,
        answer: Option<Signalled>,
    ) -> Result<(), String> {
        let name = self.name(run);
        if !self.signals.seen.get(&run).is_some_and(|seen| seen.contains(sig)) {
            return Err(format!(
                "{name}: the signal `{sig}` was acknowledged ({answer:?}) and does not exist"
            ));
        }
        let Some(answer) = answer else { return Ok(()) };
        let first = *self.signals.answers.entry((run, sig.to_owned())).or_insert(answer);
        if first != answer {
            return Err(format!("{name}: the signal `{sig}` got the answer {first:?} and then {answer:?}"));
        }
        Ok(())
    }

    /// Checks an acknowledged start: the run must exist and belong to the plan.
    pub(crate) fn started(&self, plan: u64, run: RunId) -> Result<(), String> {
        if !self.runs.contains_key(&run) {
            return Err(format!(
                "the start of plan {plan} was acknowledged as run {run}, which does not exist"
            ));
        }
        let known = self.plans.get(&plan).is_some_and(|runs| runs.contains(&run));
        if known {
            Ok(())
        } else {
            Err(format!("the key of plan {plan} returned another run, {}", self.name(run)))
        }
    }

    /// Returns `true` if a run has applied this signal.
    pub(crate) fn has_applied(&self, run: RunId, sig: &str) -> bool {
        self.signals.applied.get(&run).is_some_and(|applied| applied.contains(sig))
    }
}
