//! What is wrong beside the runs: waits, schedules, handles, the audit trail, upkeep, and the clock.

use stepwell_core::{RunId, Timestamp};
use stepwell_store::store::MAX_PAGE;
use stepwell_store::{
    HandleQuery, HandleRow, Loaded, Record, RecordQuery, RunQuery, RunSummary, Status, WaitQuery, WaitRow,
};

use super::Doctor;
use super::finding::{Example, Kind, Remedy, Severity, span};
use super::runs::is_own;
use crate::error::EngineError;
use crate::remote::{TaskRow, TaskState};
use crate::schedule::{self, Scheduled};
use crate::upkeep::ago;

/// A clock that is further away than this is worth a word.
const CLOCK_MS: u64 = 1_000;

/// What is to be said of a handle.
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
    /// Waits that should have ended, and those that are very old.
    pub(super) async fn waits(&mut self) -> Result<(), EngineError> {
        let query = WaitQuery { limit: self.options.limit, ..WaitQuery::default() };
        let page = self.engine.store().waits(self.engine.scope(), query).await?;
        self.looked("open waits", page.items.len(), page.next.is_none());
        self.unreadable(&page.bad);
        for row in &page.items {
            if let Some(task) = TaskRow::of(row) {
                self.task(&task);
                continue;
            }
            let is_overdue = row.wait.until.is_some_and(|until| self.is_late(until));
            let is_old = self.now.ms_since(row.wait.since) > self.options.old_ms;
            if !is_overdue && !is_old {
                continue;
            }
            let loaded = self.load(row.run).await?;
            // A schedule waits for its time, however long that is; what fails says so elsewhere.
            let stands = |loaded: &Loaded| matches!(loaded.head.status, Status::Waiting | Status::Running);
            if let Some(loaded) = loaded.filter(|loaded| !is_own(loaded) && stands(loaded)) {
                self.wait(row, &loaded, is_overdue);
            }
        }
        Ok(())
    }

    /// A task that no worker takes.
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
            why: format!("waits at `{}` for a worker for {}", task.place, span(waited_ms)),
            remedies: vec![Remedy::Explain(run), Remedy::Cancel(run)],
        };
        let what = format!("no worker takes the tasks of action `{action}`");
        let why = "start a worker that asks for this action, or more of them";
        self.findings.add(Severity::Warning, Kind::TasksWaiting, what, why, example);
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
            why: format!("waits at `{place}` for {}", span(self.now.ms_since(since))),
            remedies: vec![Remedy::Explain(row.run)],
        };
        if let Some(until) = row.wait.until.filter(|_| is_overdue) {
            example.why =
                format!("should have gone on from `{place}` {} ago", span(self.now.ms_since(until)));
            example.since = Some(until);
            let what = format!("waits of `{}` at `{place}` are overdue", loaded.workflow);
            let why =
                "their time is up and nobody has moved them: see which process works on runs (`runsLate`)";
            self.findings.add(Severity::Warning, Kind::WaitsOverdue, what, why, example);
            return;
        }
        example.remedies.extend(answer);
        example.remedies.push(Remedy::Cancel(row.run));
        let what = format!("runs of `{}` have waited at `{place}` for very long", loaded.workflow);
        let why = "what they wait for may never come: answer it, end it, or give the wait a timeout";
        self.findings.add(Severity::Info, Kind::WaitsOld, what, why, example);
    }

    /// Schedules that are late, and whose runs do not come about.
    pub(super) async fn schedules(&mut self) -> Result<(), EngineError> {
        let workflow = Some(schedule::WORKFLOW.into());
        let query = RunQuery { workflow, limit: self.options.limit, ..RunQuery::default() };
        let page = self.engine.store().runs(self.engine.scope(), query).await?;
        self.looked("schedules", page.items.len(), page.next.is_none());
        self.unreadable(&page.bad);
        for summary in page.items.iter().filter(|summary| !summary.status.is_final()) {
            let standing = self.engine.inner.load(self.engine.scope(), summary.run).await;
            match standing.and_then(|standing| schedule::scheduled(&standing)) {
                Ok(known) => self.schedule(summary, known).await?,
                // It may be gone since.
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
            let late = format!("should have fired {} ago", span(self.now.ms_since(known.next)));
            let remedies = vec![Remedy::Explain(summary.run), Remedy::Serve];
            let example = Self::of_schedule(&known, known.next, late, remedies);
            let why = "no process that works on runs has taken it";
            self.findings.add(Severity::Error, Kind::SchedulesLate, "schedules are late", why, example);
        }
        if let Some(error) = &known.last_error {
            let why = format!("{error} ({} firings were skipped)", known.skipped);
            let remedies = vec![Remedy::ShowSchedule(name.clone())];
            let example = Self::of_schedule(&known, summary.updated_at, why, remedies);
            let why = "the last firing could not start a run; the schedule itself goes on";
            let what = "schedules cannot start what they are to";
            self.findings.add(Severity::Error, Kind::SchedulesFailing, what, why, example);
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
        let why = "what they started last did not come to its end";
        let what = "the last runs of schedules have failed or were cancelled";
        self.findings.add(Severity::Warning, Kind::SchedulesFailing, what, why, example);
        Ok(())
    }

    /// Handles that somebody has reserved and does not let go of, and messages that were not sent.
    pub(super) async fn handles(&mut self) -> Result<(), EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        let query = HandleQuery { limit: self.options.limit, ..HandleQuery::default() };
        let page = store.records(scope, RecordQuery::Handles(query)).await?;
        self.looked("handles", page.items.len(), page.next.is_none());
        self.unreadable(&page.bad);
        for record in &page.items {
            let Record::Handle(row) = record else { continue };
            let Some(owner) = row.owner.filter(|_| self.is_late(row.updated_at)) else { continue };
            let (severity, advice) = match self.lives(owner) {
                true => (Severity::Warning, "look at what the step does in that process"),
                false => (Severity::Info, "nothing: whoever resumes the flow next gets it"),
            };
            let word = if severity == Severity::Warning { "lives" } else { "is dead" };
            let why = format!("reserved by process {}, which {word}", owner.0);
            let what = format!("handles of `{}` are reserved for long", row.workflow);
            let example = of_handle(row, row.updated_at, why, advice);
            let why = "whoever resumes them meanwhile is told to try again";
            self.findings.add(severity, Kind::HandlesHeld, what, why, example);
        }
        let before = ago(self.now, self.options.late_ms);
        let query = RecordQuery::Undelivered { now: before, limit: self.options.limit };
        let unsent = store.records(scope, query).await?.items;
        self.looked("messages to be sent", unsent.len(), unsent.len() < self.options.limit as usize);
        for record in &unsent {
            let Record::Handle(row) = record else { continue };
            let since = row.deliver_at.unwrap_or(row.updated_at);
            let why = format!("due for {}", span(self.now.ms_since(since)));
            let advice = "run a server with flows and outlets (`flows.key_file`, `mail.*`), and read its log";
            let what = format!("messages of `{}` were not sent", row.workflow);
            let example = of_handle(row, since, why, advice);
            let why = "nobody sends what is to be sent out; the person it is for waits";
            self.findings.add(Severity::Error, Kind::MessagesUnsent, what, why, example);
        }
        Ok(())
    }

    /// Whether the audit trail is sealed as it grows.
    pub(super) async fn audit(&mut self) -> Result<(), EngineError> {
        let query = RecordQuery::Unsealed { limit: MAX_PAGE, cursor: None };
        let page = self.engine.store().records(self.engine.scope(), query).await?;
        self.looked("commits that are not sealed", page.items.len(), page.next.is_none());
        if page.next.is_none() {
            return Ok(());
        }
        let example = Example {
            run: None,
            name: None,
            workflow: None,
            since: None,
            why: format!("more than {MAX_PAGE} commits are not sealed"),
            remedies: vec![Remedy::TidyUp],
        };
        let why = "a process that works on runs seals it now and then; what is not sealed could be changed unnoticed";
        self.findings.add(
            Severity::Warning,
            Kind::AuditUnsealed,
            "the audit trail is not sealed",
            why,
            example,
        );
        Ok(())
    }

    /// What this process itself has to say: its upkeep and its clock.
    pub(super) fn host(&mut self) {
        let plain = |why: String, advice: &str| Example {
            run: None,
            name: None,
            workflow: None,
            since: None,
            why,
            remedies: vec![Remedy::Advice(advice.to_owned())],
        };
        let upkeep = self.engine.upkeep();
        if upkeep.failures > 0 {
            let why = format!("{} times in {} rounds", upkeep.failures, upkeep.rounds);
            let example = plain(why, "read the log of this process: it says what could not be tidied up");
            let what = "tidying up has failed";
            let why = "what has expired is not shown any more, and still takes room";
            self.findings.add(Severity::Warning, Kind::UpkeepFailing, what, why, example);
        }
        let ahead = self.engine.inner.host.clock.ahead_ms().unwrap_or(0);
        if ahead.unsigned_abs() > CLOCK_MS {
            let way = if ahead > 0 { "behind" } else { "ahead of" };
            let why = format!("this computer's clock is {} {way} the database's", span(ahead.unsigned_abs()));
            let example =
                plain(why, "set this computer's clock (NTP); the engine goes by the database's meanwhile");
            let what = "the clocks do not agree";
            let why = "timers and leases are right, because the engine follows the database; logs and certificates are not";
            self.findings.add(Severity::Warning, Kind::ClockAway, what, why, example);
        }
    }

    /// Waits of one run.
    pub(super) async fn waits_of(&mut self, run: RunId, loaded: &Loaded) -> Result<(), EngineError> {
        let query = WaitQuery {
            of: stepwell_store::WaitsOf::Run(run),
            limit: self.options.limit,
            ..WaitQuery::default()
        };
        let page = self.engine.store().waits(self.engine.scope(), query).await?;
        for row in &page.items {
            if let Some(task) = TaskRow::of(row) {
                self.task(&task);
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
