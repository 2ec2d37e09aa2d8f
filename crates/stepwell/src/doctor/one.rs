//! Diagnosis of one run: its state, its waits, its attempts and its next step.

use stepwell_core::graph::open_waits;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{Loaded, ProcessId, Status};

use super::finding::{Finding, Remedy, span};
use super::runs::ledger;
use super::{Diagnose, Doctor};
use crate::actor::Permission;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::ledger::{Attempts, FailedAttempt, Stopped};
use crate::loaded_run::{InFlightActions, LoadedRun};
use crate::planner::NextStep;

/// A wait of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct AwaitedInput {
    /// The place that the run waits at.
    pub place: Name,
    /// Signals that end the wait.
    pub signals: Vec<Name>,
    /// Event that ends the wait.
    pub event: Option<Name>,
    /// Number of children that have not ended.
    pub children: Option<u32>,
    /// Actors and roles that may answer. Empty: everyone may.
    pub answerers: Vec<String>,
    /// Start of the wait.
    pub since: Timestamp,
    /// Timeout of the wait. `None`: it has none.
    pub until: Option<Timestamp>,
}

/// An inbox message that the run has not consumed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferedMessage {
    /// Topic: `signal:NAME`, `event:NAME`, `child` or `cancel`.
    pub topic: String,
    pub received_at: Timestamp,
    /// Time after which the message is discarded.
    pub expires_at: Option<Timestamp>,
}

/// The process that owns a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub process: ProcessId,
    /// The lease of the process has not expired.
    pub alive: bool,
    /// The process is the one that made this diagnosis.
    pub is_this: bool,
}

/// The diagnosis of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunDiagnosis {
    pub run: RunId,
    pub workflow: Name,
    /// Version of the workflow; `None` if its definition is not known to this process.
    pub definition_version: Option<u32>,
    pub status: Status,
    /// Snapshot version: the number of committed state changes.
    pub version: u64,
    /// Places that are currently marked.
    pub places: Vec<Name>,
    /// Current state of the run, as a phrase.
    pub state: String,
    /// Next step of the run, as a phrase.
    pub next: String,
    /// Time at which the run is due next.
    pub next_at: Option<Timestamp>,
    /// Deadline: the run is cancelled if it has not ended by then.
    pub deadline: Option<Timestamp>,
    /// Open waits of the run.
    pub waits: Vec<AwaitedInput>,
    /// Steps that are being attempted.
    pub attempts: Vec<Attempts>,
    /// The last failed attempts, oldest first.
    pub failures: Vec<FailedAttempt>,
    /// Number of processes that crashed during the current step.
    pub crashes: u32,
    /// The error that the run failed with.
    pub stopped: Option<Stopped>,
    /// The process that owns the run.
    pub owner: Option<Owner>,
    /// Messages in the inbox.
    pub inbox: Vec<BufferedMessage>,
    /// Definitions, actions and guards that the run needs and that neither this process nor remote workers have.
    pub missing: Vec<String>,
    pub findings: Vec<Finding>,
    /// Remedies, most likely first.
    pub remedies: Vec<Remedy>,
    /// Time of the last write to the run's row.
    pub updated_at: Timestamp,
}

impl Engine {
    /// Diagnoses one run. It changes nothing, but may evaluate named guards.
    pub async fn diagnose_run(&self, run: RunId, options: &Diagnose) -> Result<RunDiagnosis, EngineError> {
        self.permit(Permission::View)?;
        let loaded = self.store().load(self.scope(), run).await?.ok_or(EngineError::NoRun(run))?;
        let mut doctor = Doctor::new(self, options).await?;
        let missing = doctor.missing(&loaded).await?;
        let owner = loaded.head.owner.map(|process| Owner {
            process,
            alive: doctor.is_alive(process) || self.inner.uses_name(process),
            is_this: self.inner.uses_name(process),
        });
        match loaded.head.status {
            Status::Failed => doctor.failed_one(&loaded),
            Status::Suspended => doctor.suspended_one(&loaded),
            Status::Completed | Status::Cancelled => {}
            _ if owner.as_ref().is_some_and(|owner| owner.alive) => doctor.at_work_one(&loaded),
            _ => doctor.due_one(&loaded).await?,
        }
        if matches!(loaded.head.status, Status::Waiting | Status::Running) {
            doctor.waits_of(run, &loaded).await?;
        }
        doctor.damage(&loaded);
        if options.deep {
            doctor.rows_of(run).await?;
        }
        let loaded_run = self.inner.build_loaded_run(self.scope(), loaded.clone()).await.ok();
        let now = doctor.now;
        let findings = doctor.findings.done();
        self.explained(loaded, loaded_run, owner, missing, findings, now).await
    }

    async fn explained(
        &self,
        loaded: Loaded,
        loaded_run: Option<LoadedRun>,
        owner: Option<Owner>,
        missing: Vec<String>,
        findings: Vec<Finding>,
        now: Timestamp,
    ) -> Result<RunDiagnosis, EngineError> {
        let ledger =
            loaded_run.as_ref().map_or_else(|| ledger(&loaded), |loaded_run| loaded_run.ledger.clone());
        let next = match &loaded_run {
            Some(loaded_run) => self.next(loaded_run, owner.as_ref(), now).await,
            None => "none: the state or the definition of the run is unreadable".to_owned(),
        };
        let waits = loaded_run.as_ref().map(awaited).unwrap_or_default();
        let snapshot = loaded_run.as_ref().map(|loaded_run| &loaded_run.snapshot);
        let inbox = loaded.inbox.iter().map(|message| BufferedMessage {
            topic: message.topic.clone(),
            received_at: message.received_at,
            expires_at: message.expires_at,
        });
        Ok(RunDiagnosis {
            run: loaded.head.run,
            definition_version: snapshot.map(|snapshot| snapshot.definition_version()),
            status: loaded.head.status,
            version: loaded.head.version,
            places: snapshot.map(|snapshot| snapshot.current_places()).unwrap_or_default(),
            state: describe_state(&loaded, &ledger.stopped, owner.as_ref(), now),
            next,
            next_at: loaded.head.wake,
            deadline: ledger.deadline,
            remedies: remedies(&loaded, &waits, &missing, &findings),
            waits,
            inbox: inbox.collect(),
            crashes: ledger.crashes.values().max().copied().unwrap_or(0),
            attempts: ledger.attempts,
            failures: ledger.failures,
            stopped: ledger.stopped,
            owner,
            missing,
            findings,
            updated_at: loaded.updated_at,
            workflow: loaded.workflow,
        })
    }

    /// Describes the next step that a process would plan if it claimed the run now.
    async fn next(&self, loaded_run: &LoadedRun, owner: Option<&Owner>, now: Timestamp) -> String {
        let look = self.inner.plan(loaded_run, &InFlightActions::new(), now).await;
        let at_work = owner.is_some_and(|owner| owner.alive);
        match look {
            NextStep::RunAction(act) if at_work => {
                format!("the owning process is running action `{}`", act.call.action)
            }
            NextStep::RunAction(act) => {
                format!(
                    "call action `{}` for step `{}`, attempt {}",
                    act.call.action, act.call.transition, act.attempt
                )
            }
            NextStep::Commit(next) => match &next.change {
                Some(change) => {
                    let entered: Vec<_> = change.entry.entered.iter().map(ToString::to_string).collect();
                    format!("commit `{}`{}", change.entry.action, into(&entered))
                }
                None => "commit bookkeeping without a change of state".to_owned(),
            },
            NextStep::FetchEarlierEvents(_) => "query events that arrived before the wait began".to_owned(),
            NextStep::Admit => "admit runs that wait for a limit".to_owned(),
            NextStep::CancelChildren => "cancel the children of the cancelled run".to_owned(),
            NextStep::Sleep(rest) => match (rest.status.is_final(), rest.wake) {
                (true, _) => "none: the run has ended".to_owned(),
                (false, Some(wake)) => format!("sleep until {wake} or until a message arrives"),
                (false, None) => "sleep until a message arrives".to_owned(),
            },
        }
    }
}

fn into(entered: &[String]) -> String {
    if entered.is_empty() { String::new() } else { format!(" and enter {}", entered.join(", ")) }
}

fn awaited(loaded_run: &LoadedRun) -> Vec<AwaitedInput> {
    let open = open_waits(loaded_run.definition(), &loaded_run.snapshot).into_iter();
    open.map(|wait| AwaitedInput {
        place: wait.place,
        signals: wait.signals,
        event: wait.event.map(|event| event.name),
        children: wait.children,
        answerers: wait.answerers,
        since: wait.since,
        until: wait.until,
    })
    .collect()
}

/// Describes the current state of a run as a phrase.
fn describe_state(
    loaded: &Loaded,
    stopped: &Option<Stopped>,
    owner: Option<&Owner>,
    now: Timestamp,
) -> String {
    let since = span(now.ms_since(loaded.updated_at));
    match (loaded.head.status, stopped, owner) {
        (Status::Failed, Some(stopped), _) => format!("failed: {}", stopped.error),
        (Status::Failed, None, _) => "failed".to_owned(),
        (Status::Suspended, ..) => format!("suspended by an operator {since} ago"),
        (Status::Completed, ..) => "completed".to_owned(),
        (Status::Cancelled, ..) => "cancelled".to_owned(),
        (_, _, Some(owner)) => {
            let lease_state = if owner.alive { "is alive" } else { "has expired" };
            format!(
                "owned by process {}, which {lease_state}; the last commit was {since} ago",
                owner.process.0
            )
        }
        (Status::Pending, ..) => "pending: its start time has not come".to_owned(),
        _ => match loaded.head.wake {
            Some(wake) if wake <= now => {
                format!("due for {}, but no process has claimed it", span(now.ms_since(wake)))
            }
            Some(_) => "waiting for a message or a timer".to_owned(),
            None => "waiting for a message".to_owned(),
        },
    }
}

/// Lists remedies that apply to the run in its current status.
fn remedies(
    loaded: &Loaded,
    waits: &[AwaitedInput],
    missing: &[String],
    findings: &[Finding],
) -> Vec<Remedy> {
    let run = loaded.head.run;
    if loaded.head.status.is_final() {
        return Vec::new();
    }
    let mut all: Vec<Remedy> = Vec::new();
    if !missing.is_empty() {
        all.push(Remedy::Register(missing.to_vec()));
    }
    match loaded.head.status {
        Status::Failed => all.push(Remedy::Retry(run)),
        Status::Suspended => all.push(Remedy::Resume(run)),
        _ => {
            let signals = waits.iter().flat_map(|wait| wait.signals.iter().take(3));
            all.extend(signals.map(|signal| Remedy::Signal(run, signal.clone())));
        }
    }
    let told = findings.iter().flat_map(|finding| &finding.examples).flat_map(|example| &example.remedies);
    for remedy in told.filter(|remedy| !matches!(remedy, Remedy::Explain(_))) {
        if !all.contains(remedy) {
            all.push(remedy.clone());
        }
    }
    if !all.contains(&Remedy::Cancel(run)) {
        all.push(Remedy::Cancel(run));
    }
    all
}
