//! Checks at the end of a simulation: every run has ended, and everything written still exists.

use std::collections::BTreeMap;

use serde_json::Value;
use stepwell_core::RunId;
use stepwell_core::snapshot::RunEnd;
use stepwell_store::{DocumentQuery, HistoryQuery, MemoryStore, RunQuery, Status, Store};

use super::super::world::at_once;
use super::attempts::Ending;
use super::{Oracle, SCOPE, Shadow};

impl Oracle {
    /// Returns a run that has not ended.
    pub(crate) fn unended(&self) -> Option<&Shadow> {
        self.runs.values().find(|shadow| !shadow.has_ended() && !self.sleeps_on(shadow))
    }

    /// Returns `true` for a child that outlasts the simulation, whose parent has completed without it.
    fn sleeps_on(&self, shadow: &Shadow) -> bool {
        let parent = shadow.parent.as_ref().and_then(|parent| self.runs.get(&parent.run));
        let left =
            parent.is_some_and(|parent| matches!(parent.snapshot.finished(), Some(RunEnd::Completed { .. })));
        shadow.flow.name == "napper" && shadow.status == Status::Waiting && left
    }

    /// Checks the store after the simulation.
    pub(crate) fn finish(&self, memory: &MemoryStore) -> Result<(), String> {
        let query = RunQuery { limit: 1_000, ..RunQuery::default() };
        let page = at_once(memory.runs(SCOPE, query)).map_err(|error| error.to_string())?;
        let there: BTreeMap<RunId, _> = page.items.into_iter().map(|row| (row.run, row)).collect();
        for (run, shadow) in &self.runs {
            let name = &shadow.name;
            let row = there.get(run).ok_or_else(|| format!("{name}: the run no longer exists"))?;
            if row.version != shadow.version || row.status != shadow.status {
                return Err(format!("{name}: found version {}, expected {}", row.version, shadow.version));
            }
            self.check_history(memory, *run, shadow)?;
            self.check_documents(memory, *run, shadow)?;
            self.check_end(shadow)?;
        }
        if there.len() != self.runs.len() {
            return Err(format!("found {} runs, but {} were started", there.len(), self.runs.len()));
        }
        self.check_calm_tries()
    }

    /// Checks that every checkpoint exists as it was written, without gaps.
    fn check_history(&self, memory: &MemoryStore, run: RunId, shadow: &Shadow) -> Result<(), String> {
        let query = HistoryQuery { run, from: 0, with_state: true, limit: 1_000 };
        let page = at_once(memory.history(SCOPE, query)).map_err(|error| error.to_string())?;
        let found = page.items.into_iter().map(|row| (row.version, row.commit, row.entry, row.state));
        let expected = shadow.history.iter().enumerate();
        let expected = expected.map(|(version, (commit, entry, state))| {
            (version as u64, *commit, entry.clone(), Some(state.clone()))
        });
        if found.eq(expected) {
            return Ok(());
        }
        Err(format!("{}: the history differs from what was written", shadow.name))
    }

    /// Checks that the documents are those of the committed steps.
    fn check_documents(&self, memory: &MemoryStore, run: RunId, shadow: &Shadow) -> Result<(), String> {
        let query =
            DocumentQuery { run, at: None, key: None, kind: None, tag: None, limit: 100, cursor: None };
        let page = at_once(memory.documents(SCOPE, query)).map_err(|error| error.to_string())?;
        let token = |body: &[u8]| serde_json::from_slice::<Value>(body).ok()?["token"].as_u64();
        let found: BTreeMap<_, _> =
            page.items.iter().map(|note| (note.key.as_str(), token(&note.body))).collect();
        let expected = self.notes.get(&run).cloned().unwrap_or_default();
        let expected: BTreeMap<_, _> = expected.into_iter().map(|(key, token)| (key, Some(token))).collect();
        if found == expected {
            return Ok(());
        }
        Err(format!("{}: found documents {found:?}, expected {expected:?}", shadow.name))
    }

    /// Checks that a run has ended as its script says.
    fn check_end(&self, shadow: &Shadow) -> Result<(), String> {
        let (name, context) = (&shadow.name, shadow.snapshot.context());
        let place = match shadow.snapshot.finished() {
            Some(RunEnd::Completed { place, .. }) => place.as_str(),
            Some(RunEnd::Cancelled) => "cancelled",
            None => shadow.stopped().unwrap_or("nowhere"),
        };
        let children: Vec<_> = context["children"].as_array().cloned().unwrap_or_default();
        let own_fault = children.iter().any(|child| child == "fails");
        let crashed = self.runs.values().any(|run| run.stopped() == Some("crashed"));
        let wrong = match (shadow.flow.name, place) {
            ("flaky", "done") => context["fails"] == "always",
            ("flaky", "repaired") => context["fails"] == "never" && !self.timed_out(shadow),
            ("chain", "done") => self.told_nobody(shadow),
            ("parent", "done") => own_fault,
            ("parent", "sad") => !own_fault && !crashed && !self.cancels_children(shadow),
            ("child", "done") => context["fails"] == true,
            ("inbox", "done") => context["wants"].as_array().into_iter().flatten().any(|sig| {
                !self.has_applied(shadow.snapshot.instance_id(), sig.as_str().unwrap_or_default())
            }),
            (_, "nowhere") => !self.sleeps_on(shadow),
            _ => false,
        };
        if wrong {
            return Err(format!("{name}: ended in `{place}`, but its script is {context}"));
        }
        self.check_below_cancelled(shadow)
    }

    /// Returns `true` if a chain did not signal the run it should have signalled, although that run completed.
    fn told_nobody(&self, shadow: &Shadow) -> bool {
        let told = shadow.snapshot.context()["tells"].as_str().and_then(|run| run.parse::<RunId>().ok());
        let told = told.and_then(|run| self.runs.get(&run)).filter(|told| told.status == Status::Completed);
        let sig = format!("told by {}", shadow.snapshot.instance_id());
        told.is_some_and(|told| !self.has_applied(told.snapshot.instance_id(), &sig))
    }

    /// Returns `true` if an action of the run exceeded its timeout.
    fn timed_out(&self, shadow: &Shadow) -> bool {
        let run = shadow.snapshot.instance_id();
        self.tried()
            .filter(|(of, _)| *of == run)
            .any(|(_, activation)| self.tries_of(run, activation).contains(&Some(Ending::Dropped)))
    }

    fn cancels_children(&self, shadow: &Shadow) -> bool {
        let run = shadow.snapshot.instance_id();
        let child_of = |other: &&Shadow| other.parent.as_ref().is_some_and(|parent| parent.run == run);
        self.runs.values().filter(child_of).any(|child| child.status == Status::Cancelled)
    }

    /// Checks that a child of a cancelled run has ended.
    fn check_below_cancelled(&self, shadow: &Shadow) -> Result<(), String> {
        let parent = shadow.parent.as_ref().and_then(|parent| self.runs.get(&parent.run));
        let cancelled = parent.is_some_and(|parent| parent.status == Status::Cancelled);
        if cancelled && !shadow.has_ended() {
            return Err(format!("{}: still active although its parent was cancelled", shadow.name));
        }
        Ok(())
    }

    /// Checks that without faults every step has one attempt, and more only after a failure.
    fn check_calm_tries(&self) -> Result<(), String> {
        if !self.calm {
            return Ok(());
        }
        for (run, activation) in self.tried() {
            let ends = self.tries_of(run, activation);
            let failed = [Some(Ending::Failed), Some(Ending::FailedForGood), Some(Ending::Panicked)];
            let succeeded = ends.iter().filter(|end| !failed.contains(end)).count();
            let name = self.name(run);
            let may_repeat = name.ends_with("flaky") || name.ends_with("race") || name.ends_with("gate");
            if succeeded > 1 && !may_repeat {
                return Err(format!("{name}: activation {activation} had attempts {ends:?} without a fault"));
            }
        }
        Ok(())
    }
}
