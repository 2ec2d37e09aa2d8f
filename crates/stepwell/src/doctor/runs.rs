//! What is wrong with runs: those that stand still, those that nobody takes, those whose process is gone.

use stepwell_core::{Failure, Timestamp};
use stepwell_store::{Claim, Loaded, ProcessId, RunQuery, Status};

use super::finding::{Example, Kind, Remedy, Severity, span};
use super::{Doctor, ProcessSeen};
use crate::error::EngineError;
use crate::events;
use crate::ledger::Ledger;
use crate::registry::OWN;
use crate::runner::learn;
use crate::schedule;
use crate::standing::Standing;

impl Doctor<'_> {
    /// Runs of a status that needs somebody, newest first.
    async fn in_need(&mut self, at: &'static str, status: Status) -> Result<Vec<Loaded>, EngineError> {
        let (mut found, mut cursor, mut rows) = (Vec::new(), None, 0);
        let is_all = loop {
            let limit = self.options.limit.saturating_sub(rows);
            if limit == 0 {
                break false;
            }
            let query = RunQuery { status: Some(status), limit, cursor, ..RunQuery::default() };
            let page = self.engine.store().runs(self.engine.scope(), query).await?;
            rows += (page.items.len() + page.bad.len()) as u32;
            self.unreadable(&page.bad);
            for summary in &page.items {
                // It may be gone or have moved since.
                let loaded = self.load(summary.run).await?;
                found.extend(loaded.filter(|loaded| loaded.head.status == status));
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => break true,
            }
        };
        self.looked(at, rows as usize, is_all);
        Ok(found)
    }

    /// Runs that stand still with an error.
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
        let none = Failure::new("unreadable", "its row could not be read, so that it was put aside");
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
                (Kind::EventsFailed, format!("events could not be delivered: `{}`", error.code))
            }
            schedule::WORKFLOW => {
                (Kind::SchedulesStopped, format!("schedules stand still: `{}`", error.code))
            }
            _ if error.code == "crashed" => {
                (Kind::TriesDying, format!("runs of `{}` have brought processes down", loaded.workflow))
            }
            name => (Kind::RunsFailed, format!("runs of `{name}` have failed: `{}`", error.code)),
        };
        let why = match kind {
            Kind::TriesDying => {
                "a process died under the same step too often; it is not tried again by itself"
            }
            _ => "they stand still with that error until somebody retries, moves or cancels them",
        };
        self.findings.add(Severity::Error, kind, what, why, example);
        self.inbox(loaded);
    }

    /// Runs that somebody has put aside.
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
            why: format!("put aside for {}", span(self.now.ms_since(loaded.updated_at))),
            remedies: vec![Remedy::Resume(run), Remedy::Cancel(run)],
        };
        let what = format!("runs of `{}` are suspended", loaded.workflow);
        let why = "somebody has put them aside; nothing happens to them until they are resumed";
        self.findings.add(Severity::Info, Kind::RunsSuspended, what, why, example);
        self.inbox(loaded);
    }

    /// Runs that are due, or will be soon, and those that a dead process owns.
    pub(super) async fn due(&mut self) -> Result<(), EngineError> {
        let dead: Vec<_> = self.engine.inner.dead();
        let soon = self.now.plus_ms(self.options.soon_ms);
        let found = self.free_or_of(soon, dead).await?;
        self.looked("runs that are due or will be", found.len(), found.len() < self.options.limit as usize);
        for loaded in found {
            self.due_one(&loaded).await?;
        }
        Ok(())
    }

    /// Runs that nobody owns and that are due by then, and runs that one of these processes owns. They are only read.
    async fn free_or_of(
        &mut self,
        now: Timestamp,
        owners: Vec<ProcessId>,
    ) -> Result<Vec<Loaded>, EngineError> {
        let claim = Claim { by: None, now, limit: self.options.limit, definitions: None, dead: owners };
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
        self.tries(loaded);
        self.inbox(loaded);
        Ok(())
    }

    fn unserved(&mut self, loaded: &Loaded, since: Timestamp, missing: Vec<String>) {
        let run = loaded.head.run;
        let what = format!("nobody serves runs of `{}`: {} missing", loaded.workflow, verb(&missing));
        let why = "a process takes only runs whose definition, actions and guards it has; this one lacks something, \
                   and no other has taken them. They have not failed, and go on as soon as somebody can";
        let example = Example {
            run: Some(run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(since),
            why: format!("due for {}", span(self.now.ms_since(since))),
            remedies: vec![Remedy::Register(missing), Remedy::Cancel(run)],
        };
        self.findings.add(Severity::Error, Kind::RunsUnserved, what, why, example);
    }

    fn orphaned(&mut self, loaded: &Loaded, since: Timestamp) {
        let owner = loaded.head.owner.map(|owner| owner.0.to_string()).unwrap_or_default();
        let example = Example {
            run: Some(loaded.head.run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(since),
            why: format!("process {owner} died with it {} ago or later", span(self.now.ms_since(since))),
            remedies: vec![Remedy::Serve, Remedy::Explain(loaded.head.run)],
        };
        let what = format!("runs of `{}` are owned by dead processes", loaded.workflow);
        self.findings.add(Severity::Error, Kind::RunsOrphaned, what, self.why_not_taken(), example);
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
        let what = format!("runs of `{}` are due and nobody takes them", loaded.workflow);
        self.findings.add(Severity::Error, Kind::RunsLate, what, self.why_not_taken(), example);
    }

    /// Other processes that live.
    fn others(&self) -> usize {
        self.processes.iter().filter(|seen| seen.lives && !seen.is_this).count()
    }

    /// Why runs that this process could serve are not taken.
    fn why_not_taken(&self) -> String {
        let (most, free) = (self.engine.inner.options.max_runs, self.engine.inner.room.free());
        match (most, free, self.others()) {
            (0, _, 0) => "no process that works on runs lives; this one only answers".to_owned(),
            (0, _, others) => format!(
                "this process only answers; {others} others live, and are busy, lack something, or only answer too"
            ),
            (most, 0, _) => format!("this process works on {most} runs already, which is all it may"),
            (most, free, others) => format!(
                "this process has room for {free} of {most} runs and {others} others live: if that lasts, its log says why"
            ),
        }
    }

    fn to_be_taken(&self) -> Remedy {
        let (most, free) = (self.engine.inner.options.max_runs, self.engine.inner.room.free());
        match (most, free) {
            (1.., 0) => Remedy::Advice(
                "raise `engine.max_runs`, find what takes so long (`runsLong`), or start another process"
                    .to_owned(),
            ),
            _ => Remedy::Serve,
        }
    }

    /// Runs that living processes work on.
    pub(super) async fn at_work(&mut self) -> Result<(), EngineError> {
        let living: Vec<_> = self.processes.iter().filter(|seen| seen.lives).map(ProcessSeen::id).collect();
        if living.is_empty() {
            return Ok(());
        }
        let found = self.free_or_of(Timestamp::MIN, living).await?;
        self.looked("runs that are worked on", found.len(), found.len() < self.options.limit as usize);
        for loaded in &found {
            self.at_work_one(loaded);
        }
        Ok(())
    }

    pub(super) fn at_work_one(&mut self, loaded: &Loaded) {
        self.tries(loaded);
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
            why: format!("process {owner} has been at the same step for {}", span(taken)),
            remedies: vec![Remedy::Explain(run), Remedy::Cancel(run)],
        };
        let what = format!("steps of `{}` take long", loaded.workflow);
        let why = "an action has not returned; one without a timeout may never do so";
        self.findings.add(Severity::Warning, Kind::RunsLong, what, why, example);
    }

    fn undriven(&mut self, loaded: &Loaded, idle_ms: u64) {
        let run = loaded.head.run;
        let example = Example {
            run: Some(run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(loaded.updated_at),
            why: format!("this process owns it and has not worked on it for {}", span(idle_ms)),
            remedies: vec![Remedy::TidyUp, Remedy::Explain(run)],
        };
        let what =
            format!("runs of `{}` are owned by this process and nothing works on them", loaded.workflow);
        let why = "that is a fault of the engine's: please report it. The next maintenance goes on with them";
        self.findings.add(Severity::Error, Kind::RunsUndriven, what, why, example);
    }

    /// Steps under which processes have died, and steps that fail again and again.
    pub(super) fn tries(&mut self, loaded: &Loaded) {
        let run = loaded.head.run;
        let tenant = self.engine.scope().tenant();
        // Deaths are counted where the run is taken up.
        let ledger = match Standing::new(&self.engine.inner.registry, tenant, loaded.clone()) {
            Ok(standing) => standing.ledger,
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
        let deaths = ledger.deaths.values().max().copied().unwrap_or(0);
        if deaths >= self.options.deaths {
            let most = self.engine.inner.options.max_crashes;
            let why = format!("{deaths} processes died under it; at {most} it stops with that as its error");
            let example = example(why, vec![Remedy::Explain(run), Remedy::Cancel(run)]);
            let what = format!("processes die under runs of `{}`", loaded.workflow);
            let why = "a step may bring the process down that tries it: look at the logs of the processes that died";
            self.findings.add(Severity::Warning, Kind::TriesDying, what, why, example);
        }
        for tries in ledger.tries.iter().filter(|tries| tries.failed >= self.options.failures) {
            let last = ledger.failures.iter().rev().find(|tried| tried.transition == tries.transition);
            let last = last.map(|tried| format!(": {}", tried.error)).unwrap_or_default();
            let next = tries.next.map(|next| format!(", tried again at {next}")).unwrap_or_default();
            let example = example(
                format!("step `{}` has failed {} times{next}{last}", tries.transition, tries.failed),
                vec![Remedy::Explain(run)],
            );
            let (kind, what) = match loaded.workflow.as_str() {
                events::WORKFLOW => (Kind::EventsFailed, "events cannot be delivered yet".to_owned()),
                name => (
                    Kind::TriesFailing,
                    format!("step `{}` of `{name}` fails and is tried again", tries.transition),
                ),
            };
            let why = "it goes on by itself when the cause is gone, or stops when its retries are used up";
            self.findings.add(Severity::Warning, kind, what, why, example);
        }
    }

    /// An inbox that is nearly full.
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
            why: format!("keeps {kept} of {most} signals: {}", names.join(", ")),
            remedies: vec![Remedy::Explain(run), Remedy::Cancel(run)],
        };
        let what = format!("inboxes of runs of `{}` are nearly full", loaded.workflow);
        let why = "nothing takes these signals where the runs stand; when it is full, signals are refused";
        self.findings.add(Severity::Warning, Kind::InboxesFull, what, why, example);
    }

    /// What a run needs and neither this process has nor workers elsewhere do.
    pub(super) async fn missing(&self, loaded: &Loaded) -> Result<Vec<String>, EngineError> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope());
        if inner.registry.by_hash(scope.tenant(), loaded.definition).is_none() {
            learn(inner, scope, loaded.definition).await?;
        }
        let Some(workflow) = inner.registry.by_hash(scope.tenant(), loaded.definition) else {
            return Ok(vec![format!("definition {} of `{}`", loaded.definition.short(), loaded.workflow)]);
        };
        let lacks = inner.registry.missing(&workflow.definition, |_, _| false);
        if lacks.is_empty() {
            return Ok(lacks);
        }
        let known = inner.catalogue_of(scope).await?;
        Ok(inner.registry.missing(&workflow.definition, |name, version| known.does(name, version)))
    }
}

impl ProcessSeen {
    fn id(&self) -> ProcessId {
        self.process
    }
}

/// `action `x` is`, `action `x`, guard `y` are`.
fn verb(missing: &[String]) -> String {
    format!("{} {}", missing.join(", "), if missing.len() == 1 { "is" } else { "are" })
}

/// What is recorded beside a run's snapshot, as far as it can be read.
pub(super) fn ledger(loaded: &Loaded) -> Ledger {
    Ledger::read(loaded.attempt.as_ref()).unwrap_or_default()
}

/// The run is the engine's own: a schedule, an event.
pub(super) fn is_own(loaded: &Loaded) -> bool {
    loaded.workflow.starts_with(OWN)
}
