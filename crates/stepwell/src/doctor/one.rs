//! Explains one run: where it stands, what it waits for, what it has tried, and what would happen next.

use stepwell_core::graph::open_waits;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{Loaded, ProcessId, Status};

use super::finding::{Finding, Remedy, span};
use super::runs::ledger;
use super::{Diagnose, Doctor};
use crate::actor::Permission;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::ledger::{Stopped, Tried, Tries};
use crate::look::Next;
use crate::standing::{Flying, Standing};

/// What a run waits for from outside.
#[derive(Debug, Clone, PartialEq)]
pub struct Awaited {
    /// Where.
    pub place: Name,
    /// Signals that are taken there.
    pub signals: Vec<Name>,
    /// The event that is.
    pub event: Option<Name>,
    /// Children that have not ended.
    pub children: Option<u32>,
    /// Who may answer, if not everybody.
    pub answerers: Vec<String>,
    /// Since when.
    pub since: Timestamp,
    /// Until when.
    pub until: Option<Timestamp>,
}

/// A message that nothing has taken yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptMessage {
    /// What it is about: `signal:NAME`, `event:NAME`, `child`, `cancel`.
    pub topic: String,
    /// When it came.
    pub received_at: Timestamp,
    /// When it is no longer wanted.
    pub expires_at: Option<Timestamp>,
}

/// The process that works on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The process.
    pub process: ProcessId,
    /// It lives.
    pub lives: bool,
    /// It is this one.
    pub is_this: bool,
}

/// What there is to say of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunDiagnosis {
    /// The run.
    pub run: RunId,
    /// Its workflow.
    pub workflow: Name,
    /// The author's number of its definition; `None` if that is not known here.
    pub definition_version: Option<u32>,
    /// How it is doing.
    pub status: Status,
    /// Its version.
    pub version: u64,
    /// The places it is in.
    pub places: Vec<Name>,
    /// Where it stands, in a sentence.
    pub stands: String,
    /// What would happen next, in a sentence.
    pub next: String,
    /// When it is looked at next.
    pub next_at: Option<Timestamp>,
    /// When it is cancelled if it has not ended.
    pub deadline: Option<Timestamp>,
    /// What it waits for.
    pub waits: Vec<Awaited>,
    /// What is being tried.
    pub tries: Vec<Tries>,
    /// The last tries that failed, oldest first.
    pub failures: Vec<Tried>,
    /// Processes that died under the step that is tried.
    pub deaths: u32,
    /// Why it stands still.
    pub stopped: Option<Stopped>,
    /// The process that works on it.
    pub owner: Option<Owner>,
    /// What is in its inbox.
    pub kept: Vec<KeptMessage>,
    /// What it needs and this process does not have.
    pub missing: Vec<String>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
    /// What can be done to it, the likeliest first.
    pub remedies: Vec<Remedy>,
    /// When its row was last written.
    pub updated_at: Timestamp,
}

impl Engine {
    /// Explains a run. It changes nothing; named guards may be asked.
    pub async fn diagnose_run(&self, run: RunId, options: &Diagnose) -> Result<RunDiagnosis, EngineError> {
        self.permit(Permission::View)?;
        let loaded = self.store().load(self.scope(), run).await?.ok_or(EngineError::NoRun(run))?;
        let mut doctor = Doctor::new(self, options).await?;
        let missing = doctor.missing(&loaded).await?;
        let owner = loaded.head.owner.map(|process| Owner {
            process,
            lives: doctor.lives(process) || self.inner.goes_by(process),
            is_this: self.inner.goes_by(process),
        });
        match loaded.head.status {
            Status::Failed => doctor.failed_one(&loaded),
            Status::Suspended => doctor.suspended_one(&loaded),
            Status::Completed | Status::Cancelled => {}
            _ if owner.as_ref().is_some_and(|owner| owner.lives) => doctor.at_work_one(&loaded),
            _ => doctor.due_one(&loaded).await?,
        }
        if matches!(loaded.head.status, Status::Waiting | Status::Running) {
            doctor.waits_of(run, &loaded).await?;
        }
        doctor.damage(&loaded);
        if options.deep {
            doctor.rows_of(run).await?;
        }
        let standing = self.inner.stand(self.scope(), loaded.clone()).await.ok();
        let now = doctor.now;
        let findings = doctor.findings.done();
        self.explained(loaded, standing, owner, missing, findings, now).await
    }

    async fn explained(
        &self,
        loaded: Loaded,
        standing: Option<Standing>,
        owner: Option<Owner>,
        missing: Vec<String>,
        findings: Vec<Finding>,
        now: Timestamp,
    ) -> Result<RunDiagnosis, EngineError> {
        let ledger = standing.as_ref().map_or_else(|| ledger(&loaded), |standing| standing.ledger.clone());
        let next = match &standing {
            Some(standing) => self.next(standing, owner.as_ref(), now).await,
            None => "nothing, as long as its state cannot be read with its definition".to_owned(),
        };
        let waits = standing.as_ref().map(awaited).unwrap_or_default();
        let snapshot = standing.as_ref().map(|standing| &standing.snapshot);
        let kept = loaded.inbox.iter().map(|message| KeptMessage {
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
            stands: stands(&loaded, &ledger.stopped, owner.as_ref(), now),
            next,
            next_at: loaded.head.wake,
            deadline: ledger.deadline,
            remedies: remedies(&loaded, &waits, &missing, &findings),
            waits,
            kept: kept.collect(),
            deaths: ledger.deaths.values().max().copied().unwrap_or(0),
            tries: ledger.tries,
            failures: ledger.failures,
            stopped: ledger.stopped,
            owner,
            missing,
            findings,
            updated_at: loaded.updated_at,
            workflow: loaded.workflow,
        })
    }

    /// What would happen next: what a process that takes the run now would see.
    async fn next(&self, standing: &Standing, owner: Option<&Owner>, now: Timestamp) -> String {
        let look = self.inner.look(standing, &Flying::new(), now).await;
        let at_work = owner.is_some_and(|owner| owner.lives);
        match look {
            Next::Act(act) if at_work => format!("its process is running `{}`", act.call.action),
            Next::Act(act) => {
                format!(
                    "`{}` is called for step `{}`, try {}",
                    act.call.action, act.call.transition, act.attempt
                )
            }
            Next::Move(next) => match &next.change {
                Some(change) => {
                    let entered: Vec<_> = change.entry.entered.iter().map(ToString::to_string).collect();
                    format!("`{}`{}", change.entry.action, into(&entered))
                }
                None => "what is beside its state is brought up to date".to_owned(),
            },
            Next::Ask(_) => "its wait asks for events that came before it".to_owned(),
            Next::TellChildren => "its children are told that it was cancelled".to_owned(),
            Next::Rest(rest) => match (rest.status.is_final(), rest.wake) {
                (true, _) => "nothing: it has ended".to_owned(),
                (false, Some(wake)) => format!("nothing until {wake}, or until something comes"),
                (false, None) => "nothing until something comes".to_owned(),
            },
        }
    }
}

fn into(entered: &[String]) -> String {
    if entered.is_empty() { String::new() } else { format!(" into {}", entered.join(", ")) }
}

fn awaited(standing: &Standing) -> Vec<Awaited> {
    let open = open_waits(standing.definition(), &standing.snapshot).into_iter();
    open.map(|wait| Awaited {
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

/// Where a run stands, in a sentence.
fn stands(loaded: &Loaded, stopped: &Option<Stopped>, owner: Option<&Owner>, now: Timestamp) -> String {
    let since = span(now.ms_since(loaded.updated_at));
    match (loaded.head.status, stopped, owner) {
        (Status::Failed, Some(stopped), _) => format!("it has failed: {}", stopped.error),
        (Status::Failed, None, _) => "it has failed".to_owned(),
        (Status::Suspended, ..) => format!("somebody has put it aside, {since} ago"),
        (Status::Completed, ..) => "it has come to its end".to_owned(),
        (Status::Cancelled, ..) => "it was cancelled".to_owned(),
        (_, _, Some(owner)) => {
            let lives = if owner.lives { "lives" } else { "is dead" };
            format!(
                "process {} works on it, which {lives}; nothing was committed for {since}",
                owner.process.0
            )
        }
        (Status::Pending, ..) => "its time has not come".to_owned(),
        _ => match loaded.head.wake {
            Some(wake) if wake <= now => {
                format!("it has been due for {} and nobody has taken it", span(now.ms_since(wake)))
            }
            Some(_) => "it waits, for something or for its time".to_owned(),
            None => "it waits for something from outside".to_owned(),
        },
    }
}

/// What can be done to a run where it stands.
fn remedies(loaded: &Loaded, waits: &[Awaited], missing: &[String], findings: &[Finding]) -> Vec<Remedy> {
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
