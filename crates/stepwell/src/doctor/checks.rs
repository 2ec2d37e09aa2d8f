//! Checks other than those of runs: waits, schedules, handles, the audit trail, maintenance and the clock.

use stepwell_core::{RunId, Timestamp};
use stepwell_store::store::MAX_PAGE;
use stepwell_store::{
    HandleQuery, HandleRow, Loaded, Record, RecordQuery, RunFilter, RunQuery, RunSummary, Status, WaitQuery,
    WaitRow,
};

use super::Doctor;
use super::finding::{Example, FindingKind, Remedy, Severity, span};
use super::runs::is_own;
use crate::admission::queue::QueuedRun;
use crate::error::EngineError;
use crate::maintenance::ago;
use crate::pause::PauseOf;
use crate::remote::{TaskRow, TaskState};
use crate::schedule::{self, Scheduled};

/// Clock difference in milliseconds above which it is reported.
const CLOCK_MS: u64 = 1_000;

/// Builds an example for a handle.
fn of_handle(row: &HandleRow, since: Timestamp, why: String, advice: &str) -> Example {
    Example {
        run: None,
        name: Some(row.run.to_string()),
        workflow: Some(row.workflow.clone()),
        since: Some(since),
        why,
        remedies: vec![Remedy::Advice(advice.to_owned())],
    }
}

impl Doctor<'_> {
    /// Reports overdue and old waits, and tasks that no worker takes.
    pub(super) async fn waits(&mut self) -> Result<(), EngineError> {
        let query = WaitQuery { limit: self.options.limit, ..WaitQuery::default() };
        let page = self.engine.store().waits(self.engine.scope(), query).await?;
        self.scanned("open waits", page.items.len(), page.next.is_none());
        self.unreadable(&page.bad);
        for row in &page.items {
            if let Some(task) = TaskRow::of(row) {
                self.task(&task);
                continue;
            }
            if QueuedRun::of(row).is_some() {
                continue;
            }
            let is_overdue = row.wait.until.is_some_and(|until| self.is_late(until));
            let is_old = self.now.ms_since(row.wait.since) > self.options.old_ms;
            if !is_overdue && !is_old {
                continue;
            }
            let loaded = self.load(row.run).await?;
            // Schedules may wait for any time. Failed runs are reported by another check.
            let stands = |loaded: &Loaded| matches!(loaded.head.status, Status::Waiting | Status::Running);
            if let Some(loaded) = loaded.filter(|loaded| !is_own(loaded) && stands(loaded)) {
                self.wait(row, &loaded, is_overdue);
            }
        }
        Ok(())
    }

    /// Reports a task that has waited for a worker for too long.
    fn task(&mut self, task: &TaskRow) {
        let waited_ms = self.now.ms_since(task.since);
        if task.state != TaskState::Waiting || waited_ms < self.options.late_ms {
            return;
        }
        let (run, action) = (task.id.run, &task.action);
        let example = Example {
            run: Some(run),
            name: Some(task.id.to_string()),
            workflow: None,
            since: Some(task.since),
            why: format!("at `{}`, waiting for a worker for {}", task.place, span(waited_ms)),
            remedies: vec![Remedy::Explain(run), Remedy::Cancel(run)],
        };
        let what = format!("tasks of action `{action}` wait for a worker");
        let why = "no worker polls for this action, or there are too few; start more workers";
        self.findings.add(Severity::Warning, FindingKind::TasksWaiting, what, why, example);
    }

    fn wait(&mut self, row: &WaitRow, loaded: &Loaded, is_overdue: bool) {
        let (place, since) = (&row.wait.place, row.wait.since);
        let signal = serde_json::from_slice::<serde_json::Value>(&row.wait.detail).ok();
        let signal = signal.and_then(|detail| Some(detail["signals"][0].as_str()?.into()));
        let answer = signal.map(|signal| Remedy::Signal(row.run, signal));
        let mut example = Example {
            run: Some(row.run),
            name: None,
            workflow: Some(loaded.workflow.clone()),
            since: Some(since),
            why: format!("waiting at `{place}` for {}", span(self.now.ms_since(since))),
            remedies: vec![Remedy::Explain(row.run)],
        };
        if let Some(until) = row.wait.until.filter(|_| is_overdue) {
            example.why = format!("the timeout at `{place}` passed {} ago", span(self.now.ms_since(until)));
            example.since = Some(until);
            let what = format!("waits of `{}` at `{place}` are overdue", loaded.workflow);
            let why = "their timeout has passed, but no process has continued the runs; see `runsLate`";
            self.findings.add(Severity::Warning, FindingKind::WaitsOverdue, what, why, example);
            return;
        }
        example.remedies.extend(answer);
        example.remedies.push(Remedy::Cancel(row.run));
        let what = format!("runs of `{}` have waited at `{place}` for a long time", loaded.workflow);
        let why = "the awaited message may never arrive; send it, cancel the run, or give the wait a timeout";
        self.findings.add(Severity::Info, FindingKind::WaitsOld, what, why, example);
    }

    /// Reports schedules that are late, cannot start their workflow, or started a run that failed.
    pub(super) async fn schedules(&mut self) -> Result<(), EngineError> {
        let workflow = Some(schedule::WORKFLOW.into());
        let query = RunQuery {
            filter: RunFilter { workflow, ..RunFilter::default() },
            limit: self.options.limit,
            ..RunQuery::default()
        };
        let page = self.engine.store().runs(self.engine.scope(), query).await?;
        self.scanned("schedules", page.items.len(), page.next.is_none());
        self.unreadable(&page.bad);
        for summary in page.items.iter().filter(|summary| !summary.status.is_final()) {
            let loaded_run = self.engine.inner.load(self.engine.scope(), summary.run).await;
            match loaded_run.and_then(|loaded_run| schedule::scheduled(&loaded_run)) {
                Ok(known) => self.schedule(summary, known).await?,
                // The schedule was deleted after it was listed.
                Err(EngineError::NoRun(_)) => {}
                Err(error) => self.unreadable(&[error.bad_row(summary.run)?]),
            }
        }
        Ok(())
    }

    fn of_schedule(known: &Scheduled, since: Timestamp, why: String, remedies: Vec<Remedy>) -> Example {
        let workflow = Some(known.schedule.workflow.clone());
        let name = Some(known.schedule.name.clone());
        Example { run: None, name, workflow, since: Some(since), why, remedies }
    }

    async fn schedule(&mut self, summary: &RunSummary, known: Scheduled) -> Result<(), EngineError> {
        let name = known.schedule.name.clone();
        let is_still = matches!(summary.status, Status::Failed | Status::Suspended);
        if !known.is_off && !is_still && self.is_late(known.next) {
            let late = format!("due {} ago", span(self.now.ms_since(known.next)));
            let remedies = vec![Remedy::Explain(summary.run), Remedy::Serve];
            let example = Self::of_schedule(&known, known.next, late, remedies);
            let why = "no process that executes runs has claimed them";
            self.findings.add(
                Severity::Error,
                FindingKind::SchedulesLate,
                "schedules are late",
                why,
                example,
            );
        }
        if let Some(error) = &known.last_error {
            let why = format!("{error} ({} skipped firings)", known.skipped);
            let remedies = vec![Remedy::ShowSchedule(name.clone())];
            let example = Self::of_schedule(&known, summary.updated_at, why, remedies);
            let why = "the last firing could not start a run; the schedule itself stays active";
            let what = "schedules cannot start their workflow";
            self.findings.add(Severity::Error, FindingKind::SchedulesFailing, what, why, example);
        }
        let Some(run) = known.last_run else { return Ok(()) };
        let Some(last) = self.load(run).await? else { return Ok(()) };
        if !matches!(last.head.status, Status::Failed | Status::Cancelled) {
            return Ok(());
        }
        let why = format!("its last run {run} is {}", last.head.status);
        let remedies = match last.head.status {
            Status::Failed => vec![Remedy::Explain(run), Remedy::Retry(run)],
            _ => vec![Remedy::ShowSchedule(name)],
        };
        let example = Self::of_schedule(&known, last.updated_at, why, remedies);
        let why = "the run that a schedule started last did not complete";
        let what = "the last runs of schedules have failed or were cancelled";
        self.findings.add(Severity::Warning, FindingKind::SchedulesFailing, what, why, example);
        Ok(())
    }

    /// Reports paused schedules and triggers, which is no error: an operator has paused them.
    pub(super) async fn pauses(&mut self) -> Result<(), EngineError> {
        // This is only information: if it cannot be read now, the other findings must still be reported.
        let pauses = match self.engine.inner.pauses(self.engine.scope()).await {
            Ok(pauses) => pauses,
            Err(error) => {
                tracing::warn!(%error, "the doctor could not read the pauses");
                return Ok(());
            }
        };
        for (of, paused) in pauses.iter() {
            let (name, workflow) = match &of {
                PauseOf::Schedule(name) => (name.clone(), None),
                PauseOf::Trigger(workflow, trigger) => {
                    (format!("{workflow}/{trigger}"), Some(workflow.clone()))
                }
            };
            let by = paused.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
            let reason = paused.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            let why = format!("paused {} ago{by}{reason}", span(self.now.ms_since(paused.at)));
            let since = Some(paused.at);
            let remedies = vec![Remedy::ResumeFiring(of)];
            let example = Example { run: None, name: Some(name), workflow, since, why, remedies };
            let why = "they start nothing until they are resumed";
            let what = "schedules or triggers are paused";
            self.findings.add(Severity::Info, FindingKind::Paused, what, why, example);
        }
        Ok(())
    }

    /// Reports handles that are reserved for long, and outgoing messages that were not sent.
    pub(super) async fn handles(&mut self) -> Result<(), EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        let query = HandleQuery { limit: self.options.limit, ..HandleQuery::default() };
        let page = store.records(scope, RecordQuery::Handles(query)).await?;
        self.scanned("handles", page.items.len(), page.next.is_none());
        self.unreadable(&page.bad);
        for record in &page.items {
            let Record::Handle(row) = record else { continue };
            let Some(owner) = row.owner.filter(|_| self.is_late(row.updated_at)) else { continue };
            let (severity, advice) = match self.is_alive(owner) {
                true => (Severity::Warning, "check the step that the reserving process is running"),
                false => (
                    Severity::Info,
                    "no action is needed: the next caller that resumes the flow gets the handle",
                ),
            };
            let word = if severity == Severity::Warning { "is alive" } else { "has expired" };
            let why = format!("reserved by process {}, which {word}", owner.0);
            let what = format!("handles of `{}` have been reserved for a long time", row.workflow);
            let example = of_handle(row, row.updated_at, why, advice);
            let why = "while a handle is reserved, other callers must retry";
            self.findings.add(severity, FindingKind::HandlesReserved, what, why, example);
        }
        let before = ago(self.now, self.options.late_ms);
        let query = RecordQuery::Undelivered { now: before, limit: self.options.limit };
        let unsent = store.records(scope, query).await?.items;
        self.scanned("unsent messages", unsent.len(), unsent.len() < self.options.limit as usize);
        for record in &unsent {
            let Record::Handle(row) = record else { continue };
            let since = row.deliver_at.unwrap_or(row.updated_at);
            let why = format!("due for {}", span(self.now.ms_since(since)));
            let advice = "run a server with flows and outlets (`flows.key_file`, `mail.*`) and check its log";
            let what = format!("messages of `{}` were not sent", row.workflow);
            let example = of_handle(row, since, why, advice);
            let why = "no process sends them, so their recipients are waiting";
            self.findings.add(Severity::Error, FindingKind::MessagesUnsent, what, why, example);
        }
        Ok(())
    }

    /// Reports an audit trail with many unsealed commits.
    pub(super) async fn audit(&mut self) -> Result<(), EngineError> {
        let query = RecordQuery::Unsealed { limit: MAX_PAGE, cursor: None };
        let page = self.engine.store().records(self.engine.scope(), query).await?;
        self.scanned("unsealed commits", page.items.len(), page.next.is_none());
        if page.next.is_none() {
            return Ok(());
        }
        let example = Example {
            run: None,
            name: None,
            workflow: None,
            since: None,
            why: format!("more than {MAX_PAGE} commits are not sealed"),
            remedies: vec![Remedy::RunMaintenance],
        };
        let why = "processes that execute runs seal it periodically; changes to unsealed rows would not be detected";
        self.findings.add(
            Severity::Warning,
            FindingKind::AuditUnsealed,
            "the audit trail has too many unsealed commits",
            why,
            example,
        );
        Ok(())
    }

    /// Reports faults of this process: failed maintenance and a wrong clock.
    pub(super) fn host(&mut self) {
        let plain = |why: String, advice: &str| Example {
            run: None,
            name: None,
            workflow: None,
            since: None,
            why,
            remedies: vec![Remedy::Advice(advice.to_owned())],
        };
        let maintenance = self.engine.maintenance();
        if maintenance.failures > 0 {
            let why = format!("{} failures in {} rounds", maintenance.failures, maintenance.rounds);
            let example = plain(why, "check the log of this process for the cause");
            let what = "maintenance has failed";
            let why = "expired data is no longer visible, but still takes up space";
            self.findings.add(Severity::Warning, FindingKind::MaintenanceFailing, what, why, example);
        }
        let ahead = self.engine.inner.host.clock.ahead_ms().unwrap_or(0);
        if ahead.unsigned_abs() > CLOCK_MS {
            let way = if ahead > 0 { "behind" } else { "ahead of" };
            let why = format!("this computer's clock is {} {way} the database's", span(ahead.unsigned_abs()));
            let example = plain(why, "set this computer's clock, for example with NTP");
            let what = "this computer's clock differs from the database's";
            let why = "timers and leases are correct, because the engine follows the database's clock; \
                       timestamps in logs and checks of certificates may be wrong";
            self.findings.add(Severity::Warning, FindingKind::ClockSkew, what, why, example);
        }
    }

    /// Reports the overdue and old waits of one run.
    pub(super) async fn waits_of(&mut self, run: RunId, loaded: &Loaded) -> Result<(), EngineError> {
        let query = WaitQuery {
            of: stepwell_store::WaitFilter::Run(run),
            limit: self.options.limit,
            ..WaitQuery::default()
        };
        let page = self.engine.store().waits(self.engine.scope(), query).await?;
        for row in &page.items {
            if let Some(task) = TaskRow::of(row) {
                self.task(&task);
                continue;
            }
            if QueuedRun::of(row).is_some() {
                continue;
            }
            let is_overdue = row.wait.until.is_some_and(|until| self.is_late(until));
            if is_overdue || self.now.ms_since(row.wait.since) > self.options.old_ms {
                self.wait(row, loaded, is_overdue);
            }
        }
        Ok(())
    }
}
