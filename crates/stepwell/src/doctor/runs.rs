//! Checks of runs: failed, suspended, unclaimed, orphaned and long-running ones.

use stepwell_core::{Failure, Timestamp};
use stepwell_store::{Claim, Loaded, ProcessId, RunFilter, RunQuery, Status};

use super::finding::{Example, FindingKind, Remedy, Severity, span};
use super::{Doctor, ProcessSeen};
use crate::error::EngineError;
use crate::events;
use crate::ledger::Ledger;
use crate::loaded_run::LoadedRun;
use crate::registry::OWN;
use crate::runner::learn;
use crate::schedule;

impl Doctor<'_> {
    /// Loads runs with a status that needs attention, newest first.
    async fn in_need(&mut self, at: &'static str, status: Status) -> Result<Vec<Loaded>, EngineError> {
        let (mut found, mut cursor, mut rows) = (Vec::new(), None, 0);
        let is_all = loop {
            let limit = self.options.limit.saturating_sub(rows);
            if limit == 0 {
                break false;
            }
            let query = RunQuery {
                filter: RunFilter { status: vec![status], ..RunFilter::default() },
                limit,
                cursor,
                ..RunQuery::default()
            };
            let page = self.engine.store().runs(self.engine.scope(), query).await?;
            rows += (page.items.len() + page.bad.len()) as u32;
            self.unreadable(&page.bad);
            for summary in &page.items {
                // The run may have been deleted or changed after it was listed.
                let loaded = self.load(summary.run).await?;
                found.extend(loaded.filter(|loaded| loaded.head.status == status));
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => break true,
            }
        };
        self.scanned(at, rows as usize, is_all);
        Ok(found)
    }

    /// Reports failed runs, grouped by their error.
    pub(super) async fn failed(&mut self) -> Result<(), EngineError> {
        for loaded in self.in_need("failed runs", Status::Failed).await? {
            self.failed_one(&loaded);
        }
        Ok(())
    }

    pub(super) fn failed_one(&mut self, loaded: &Loaded) {
        let run = loaded.head.run;
        let ledger = ledger(loaded);
        let stopped = ledger.stopped.as_ref();
        let none = Failure::new("unreadable", "the run's row was unreadable, so the run was set to failed");
        let error = stopped.map_or(&none, |stopped| &stopped.error);
        let tried = ledger.failures.last().map(|tried| format!(" (step `{}`)", tried.transition));
        let example = Example {
            run: Some(run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(stopped.map_or(loaded.updated_at, |stopped| stopped.at)),
            why: format!("{}{}", error.message, tried.unwrap_or_default()),
            remedies: match is_own(loaded) {
                true => vec![Remedy::Explain(run), Remedy::Retry(run)],
                false => vec![Remedy::Explain(run), Remedy::Retry(run), Remedy::Cancel(run)],
            },
        };
        let (kind, what) = match loaded.workflow.as_str() {
            events::WORKFLOW => {
                (FindingKind::EventsFailed, format!("the delivery of events has failed: `{}`", error.code))
            }
            schedule::WORKFLOW => {
                (FindingKind::SchedulesStopped, format!("schedules have failed: `{}`", error.code))
            }
            _ if error.code == "crashed" => (
                FindingKind::AttemptsCrashing,
                format!("runs of `{}` have crashed processes", loaded.workflow),
            ),
            name => (FindingKind::RunsFailed, format!("runs of `{name}` have failed: `{}`", error.code)),
        };
        let why = match kind {
            FindingKind::AttemptsCrashing => {
                "processes crashed during the same step too often; the step is not retried automatically"
            }
            _ => "they stay failed until an operator retries, moves or cancels them",
        };
        self.findings.add(Severity::Error, kind, what, why, example);
        self.inbox(loaded);
    }

    /// Reports runs that an operator has suspended.
    pub(super) async fn suspended(&mut self) -> Result<(), EngineError> {
        for loaded in self.in_need("suspended runs", Status::Suspended).await? {
            self.suspended_one(&loaded);
        }
        Ok(())
    }

    pub(super) fn suspended_one(&mut self, loaded: &Loaded) {
        let run = loaded.head.run;
        let example = Example {
            run: Some(run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(loaded.updated_at),
            why: format!("suspended for {}", span(self.now.ms_since(loaded.updated_at))),
            remedies: vec![Remedy::Resume(run), Remedy::Cancel(run)],
        };
        let what = format!("runs of `{}` are suspended", loaded.workflow);
        let why = "an operator has suspended them; they do not continue until they are resumed";
        self.findings.add(Severity::Info, FindingKind::RunsSuspended, what, why, example);
        self.inbox(loaded);
    }

    /// Checks runs that are due or will be soon, and runs that expired processes own.
    pub(super) async fn due(&mut self) -> Result<(), EngineError> {
        let expired: Vec<_> = self.engine.inner.expired();
        let soon = self.now.plus_ms(self.options.soon_ms);
        let found = self.free_or_of(soon, expired).await?;
        self.scanned("runs that are due now or soon", found.len(), found.len() < self.options.limit as usize);
        for loaded in found {
            self.due_one(&loaded).await?;
        }
        Ok(())
    }

    /// Reads unowned runs that are due by `now`, and runs that these processes own. It claims none of them.
    async fn free_or_of(
        &mut self,
        now: Timestamp,
        owners: Vec<ProcessId>,
    ) -> Result<Vec<Loaded>, EngineError> {
        let claim = Claim { by: None, now, limit: self.options.limit, definitions: None, expired: owners };
        let page = self.engine.store().claim(self.engine.scope(), claim).await?;
        self.unreadable(&page.bad);
        for loaded in &page.items {
            self.damage(loaded);
        }
        Ok(page.items)
    }

    pub(super) async fn due_one(&mut self, loaded: &Loaded) -> Result<(), EngineError> {
        let wake = loaded.head.wake.filter(|wake| *wake <= self.now);
        let is_dead = loaded.head.owner.is_some();
        let missing = self.missing(loaded).await?;
        let since = if is_dead { Some(loaded.updated_at) } else { wake };
        let late = since.filter(|since| self.is_late(*since));
        match (late, missing.is_empty()) {
            (Some(since), false) => self.unserved(loaded, since, missing),
            (Some(since), true) if is_dead => self.orphaned(loaded, since),
            (Some(since), true) => self.late(loaded, since),
            (None, _) => {}
        }
        self.attempts(loaded);
        self.inbox(loaded);
        Ok(())
    }

    fn unserved(&mut self, loaded: &Loaded, since: Timestamp, missing: Vec<String>) {
        let run = loaded.head.run;
        let what = format!("no process serves runs of `{}`: {} missing", loaded.workflow, verb(&missing));
        let why = "a process claims only runs whose definition, actions and guards it has; this one lacks something, \
                   and no other has claimed them. They have not failed, and continue as soon as a process has \
                   everything they need";
        let example = Example {
            run: Some(run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(since),
            why: format!("due for {}", span(self.now.ms_since(since))),
            remedies: vec![Remedy::Register(missing), Remedy::Cancel(run)],
        };
        self.findings.add(Severity::Error, FindingKind::RunsUnserved, what, why, example);
    }

    fn orphaned(&mut self, loaded: &Loaded, since: Timestamp) {
        let owner = loaded.head.owner.map(|owner| owner.0.to_string()).unwrap_or_default();
        let example = Example {
            run: Some(loaded.head.run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(since),
            why: format!(
                "process {owner} owned it and has expired; the last commit was {} ago",
                span(self.now.ms_since(since))
            ),
            remedies: vec![Remedy::Serve, Remedy::Explain(loaded.head.run)],
        };
        let what = format!("runs of `{}` are owned by expired processes", loaded.workflow);
        self.findings.add(Severity::Error, FindingKind::RunsOrphaned, what, self.why_not_taken(), example);
    }

    fn late(&mut self, loaded: &Loaded, since: Timestamp) {
        let example = Example {
            run: Some(loaded.head.run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(since),
            why: format!("late by {}", span(self.now.ms_since(since))),
            remedies: vec![self.to_be_taken(), Remedy::Explain(loaded.head.run)],
        };
        let what = format!("runs of `{}` are due, but no process claims them", loaded.workflow);
        self.findings.add(Severity::Error, FindingKind::RunsLate, what, self.why_not_taken(), example);
    }

    /// Returns the number of other processes that are alive.
    fn others(&self) -> usize {
        self.processes.iter().filter(|seen| seen.alive && !seen.is_this).count()
    }

    /// Explains why runs that this process could serve are not claimed.
    fn why_not_taken(&self) -> String {
        let (most, free) = (self.engine.inner.options.max_runs, self.engine.inner.concurrency.free());
        match (most, free, self.others()) {
            (0, _, 0) => "no process that executes runs is alive; this one only serves requests".to_owned(),
            (0, _, others) => format!(
                "this process only serves requests; {others} other processes are alive, but they are busy, lack an \
                 action or guard, or only serve requests too"
            ),
            (most, 0, _) => {
                format!("this process already executes {most} runs, which is its maximum (`engine.max_runs`)")
            }
            (most, free, others) => format!(
                "this process could execute {free} more runs (of {most}), and {others} other processes are alive; \
                 if this persists, check its log"
            ),
        }
    }

    fn to_be_taken(&self) -> Remedy {
        let (most, free) = (self.engine.inner.options.max_runs, self.engine.inner.concurrency.free());
        match (most, free) {
            (1.., 0) => Remedy::Advice(
                "raise `engine.max_runs`, find steps that take long (`runsLong`), or start another process"
                    .to_owned(),
            ),
            _ => Remedy::Serve,
        }
    }

    /// Checks runs that live processes own.
    pub(super) async fn at_work(&mut self) -> Result<(), EngineError> {
        let living: Vec<_> = self.processes.iter().filter(|seen| seen.alive).map(ProcessSeen::id).collect();
        if living.is_empty() {
            return Ok(());
        }
        let found = self.free_or_of(Timestamp::MIN, living).await?;
        self.scanned("runs owned by live processes", found.len(), found.len() < self.options.limit as usize);
        for loaded in &found {
            self.at_work_one(loaded);
        }
        Ok(())
    }

    pub(super) fn at_work_one(&mut self, loaded: &Loaded) {
        self.attempts(loaded);
        self.inbox(loaded);
        let taken = self.now.ms_since(loaded.updated_at);
        if self.engine.inner.is_undriven(self.engine.scope(), loaded, self.now) {
            self.undriven(loaded, taken);
            return;
        }
        if taken <= self.options.long_ms {
            return;
        }
        let run = loaded.head.run;
        let owner = loaded.head.owner.map(|owner| owner.0.to_string()).unwrap_or_default();
        let example = Example {
            run: Some(run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(loaded.updated_at),
            why: format!("process {owner} has been running the same step for {}", span(taken)),
            remedies: vec![Remedy::Explain(run), Remedy::Cancel(run)],
        };
        let what = format!("steps of `{}` take long", loaded.workflow);
        let why = "an action has not returned; one without a timeout may never do so";
        self.findings.add(Severity::Warning, FindingKind::RunsLong, what, why, example);
    }

    fn undriven(&mut self, loaded: &Loaded, idle_ms: u64) {
        let run = loaded.head.run;
        let example = Example {
            run: Some(run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(loaded.updated_at),
            why: format!("this process owns it, but has not executed it for {}", span(idle_ms)),
            remedies: vec![Remedy::RunMaintenance, Remedy::Explain(run)],
        };
        let what = format!("runs of `{}` are owned by this process, but are not executed", loaded.workflow);
        let why = "this is a bug in the engine: please report it. The next maintenance continues them";
        self.findings.add(Severity::Error, FindingKind::RunsUndriven, what, why, example);
    }

    /// Reports steps during which processes crashed, and steps that keep failing.
    pub(super) fn attempts(&mut self, loaded: &Loaded) {
        let run = loaded.head.run;
        let tenant = self.engine.scope().tenant();
        // A crash is counted when the run is loaded for execution, so load it the same way.
        let ledger = match LoadedRun::new(&self.engine.inner.registry, tenant, loaded.clone()) {
            Ok(loaded_run) => loaded_run.ledger,
            Err(_) => ledger(loaded),
        };
        let example = |why: String, remedies: Vec<Remedy>| Example {
            run: Some(run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(loaded.updated_at),
            why,
            remedies,
        };
        if ledger.stopped.is_some() {
            return;
        }
        let crashes = ledger.crashes.values().max().copied().unwrap_or(0);
        if crashes >= self.options.crashes {
            let most = self.engine.inner.options.max_crashes;
            let why = format!("{crashes} processes crashed during its step; at {most} crashes the run fails");
            let example = example(why, vec![Remedy::Explain(run), Remedy::Cancel(run)]);
            let what = format!("processes crash while they execute runs of `{}`", loaded.workflow);
            let why = "a step may crash its process; check the logs of the crashed processes";
            self.findings.add(Severity::Warning, FindingKind::AttemptsCrashing, what, why, example);
        }
        for attempts in ledger.attempts.iter().filter(|attempts| attempts.failed >= self.options.failures) {
            let last = ledger.failures.iter().rev().find(|tried| tried.transition == attempts.transition);
            let last = last.map(|tried| format!(": {}", tried.error)).unwrap_or_default();
            let next = attempts.next.map(|next| format!(", next attempt at {next}")).unwrap_or_default();
            let example = example(
                format!("step `{}` has failed {} times{next}{last}", attempts.transition, attempts.failed),
                vec![Remedy::Explain(run)],
            );
            let (kind, what) = match loaded.workflow.as_str() {
                events::WORKFLOW => {
                    (FindingKind::EventsFailed, "the delivery of events is being retried".to_owned())
                }
                name => (
                    FindingKind::AttemptsFailing,
                    format!("step `{}` of `{name}` fails and is retried", attempts.transition),
                ),
            };
            let why = "it continues when the cause is repaired, and fails when its retries are used up";
            self.findings.add(Severity::Warning, kind, what, why, example);
        }
    }

    /// Reports an inbox that is nearly full.
    pub(super) fn inbox(&mut self, loaded: &Loaded) {
        let (kept, most) = (loaded.inbox.len() as u64, self.engine.inner.limits().inbox);
        if kept * 100 < most * self.options.inbox_percent {
            return;
        }
        let run = loaded.head.run;
        let mut names: Vec<_> = loaded.inbox.iter().map(|message| message.topic.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let example = Example {
            run: Some(run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: loaded.inbox.first().map(|message| message.received_at),
            why: format!("{kept} of {most} messages: {}", names.join(", ")),
            remedies: vec![Remedy::Explain(run), Remedy::Cancel(run)],
        };
        let what = format!("inboxes of runs of `{}` are nearly full", loaded.workflow);
        let why = "the runs do not accept these signals at their current places; a full inbox refuses further signals";
        self.findings.add(Severity::Warning, FindingKind::InboxesFull, what, why, example);
    }

    /// Lists what a run needs and neither this process nor remote workers have: definition, actions, guards.
    pub(super) async fn missing(&self, loaded: &Loaded) -> Result<Vec<String>, EngineError> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope());
        if inner.registry.by_hash(scope.tenant(), loaded.definition).is_none() {
            learn(inner, scope, loaded.definition).await?;
        }
        let Some(workflow) = inner.registry.by_hash(scope.tenant(), loaded.definition) else {
            return Ok(vec![format!("definition {} of `{}`", loaded.definition.short(), loaded.workflow)]);
        };
        let missing_parts = inner.registry.missing(&workflow.definition, |_, _| false);
        if missing_parts.is_empty() {
            return Ok(missing_parts);
        }
        let known = inner.catalogue_of(scope).await?;
        Ok(inner.registry.missing(&workflow.definition, |name, version| known.offers_action(name, version)))
    }
}

impl ProcessSeen {
    fn id(&self) -> ProcessId {
        self.process
    }
}

/// Joins the missing items with the matching verb: "action `x` is", "action `x`, guard `y` are".
fn verb(missing: &[String]) -> String {
    format!("{} {}", missing.join(", "), if missing.len() == 1 { "is" } else { "are" })
}

/// Reads the ledger of a run. An unreadable ledger counts as empty.
pub(super) fn ledger(loaded: &Loaded) -> Ledger {
    Ledger::read(loaded.ledger.as_ref()).unwrap_or_default()
}

/// Returns `true` for the engine's own runs: schedules and events.
pub(super) fn is_own(loaded: &Loaded) -> bool {
    loaded.workflow.starts_with(OWN)
}
