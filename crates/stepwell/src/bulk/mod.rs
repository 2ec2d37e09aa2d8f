//! Bulk commands: one command for many runs, given by their ids or by a filter.
//!
//! A bulk command is a durable run of a workflow that every engine has. Its only action chooses a batch of runs,
//! commits the choice, and applies the command to the runs of the batch (`work.rs`). So it survives crashes, and its
//! progress is the run's state. Each command on a run is a commit of that run and contains a record of the bulk command
//! ([`BulkPart`]). A batch that is applied again after a crash finds the record, and changes nothing.

mod results;
mod work;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stepwell_core::limits::json_bytes;
use stepwell_core::{Failure, Mapping, Name, RunId, Timestamp};
use stepwell_store::{
    CellKey, CellOp, CellWrite, KeyLifetime, KeyWrite, Page, Precondition, RunFilter, RunQuery, Space,
    Status, Ttl, ValueType,
};

use crate::actor::{Actor, Permission};
use crate::data::kv::one;
use crate::engine::{Builder, Engine};
use crate::error::EngineError;
use crate::idempotent::Idempotent;
use crate::loaded_run::{CommitExtras, LoadedRun};
use crate::operate::{Command, Operator};
use crate::start::Start;

pub use results::{BulkOutcome, BulkResult, BulkResultQuery};
use work::State;

/// Workflow whose runs are bulk commands. Names that begin with `stepwell.` are reserved for the engine.
pub const WORKFLOW: &str = "stepwell.bulk";
/// Key of the cell that asks a bulk command to stop.
const CANCEL: &str = "cancel";
/// Operation of the audit row about the cancellation of a bulk command.
const CANCELLED: &str = "bulk.cancel";

/// A command for many runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum BulkCommand {
    /// Runs the failed transition of each run again at once. A filter without a status selects failed runs.
    Retry,
    /// Cancels each run and all its descendants.
    Cancel,
    /// Suspends each run until it is resumed.
    Suspend,
    /// Resumes each suspended run. A filter without a status selects suspended runs.
    Resume,
    /// Moves each run to another version of its workflow.
    Migrate {
        /// Number of the target version.
        version: u32,
        mapping: Mapping,
    },
    /// Sends a signal to each run.
    Signal {
        name: Name,
        payload: Value,
        /// Skips runs that do not accept the signal now, instead of buffering it.
        strict: bool,
        /// Time to live of a buffered signal, in milliseconds. `None`: the engine's default.
        ttl_ms: Option<u64>,
    },
    /// Deletes each run with all its data except the audit trail. The run must have ended or be unreadable.
    Delete,
}

impl BulkCommand {
    /// Returns the permission that the caller needs: the one of the command on a single run.
    pub fn permission(&self) -> Permission {
        match self {
            BulkCommand::Retry
            | BulkCommand::Cancel
            | BulkCommand::Suspend
            | BulkCommand::Resume
            | BulkCommand::Signal { .. } => Permission::Manage,
            BulkCommand::Migrate { .. } | BulkCommand::Delete => Permission::Admin,
        }
    }

    /// Returns the command's name.
    pub fn word(&self) -> &'static str {
        match self {
            BulkCommand::Retry => "retry",
            BulkCommand::Cancel => "cancel",
            BulkCommand::Suspend => "suspend",
            BulkCommand::Resume => "resume",
            BulkCommand::Migrate { .. } => "migrate",
            BulkCommand::Signal { .. } => "signal",
            BulkCommand::Delete => "delete",
        }
    }

    /// Returns the operator command for one run, if it is one.
    fn plain(&self) -> Option<Command> {
        match self {
            BulkCommand::Retry => Some(Command::Retry),
            BulkCommand::Cancel => Some(Command::Cancel),
            BulkCommand::Suspend => Some(Command::Suspend),
            BulkCommand::Resume => Some(Command::Resume),
            BulkCommand::Migrate { .. } | BulkCommand::Signal { .. } | BulkCommand::Delete => None,
        }
    }

    /// Returns the status of the runs that a filter without a status selects; `None` = any.
    fn default_status(&self) -> Option<Status> {
        match self {
            BulkCommand::Retry => Some(Status::Failed),
            BulkCommand::Resume => Some(Status::Suspended),
            _ => None,
        }
    }
}

/// The runs of a bulk command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BulkTarget {
    /// These runs, in this order.
    Runs(Vec<RunId>),
    /// The runs that match when the command comes to them. Runs created after the bulk command are not touched.
    Filter(Box<RunFilter>),
}

/// A request for a bulk command.
#[derive(Debug, Clone)]
pub struct Bulk {
    command: BulkCommand,
    target: BulkTarget,
    reason: Option<String>,
    most: Option<u64>,
    is_dry: bool,
    key: Option<String>,
}

impl Bulk {
    /// Creates a bulk command for these runs. A run that is named twice counts once.
    pub fn runs(command: BulkCommand, runs: impl IntoIterator<Item = RunId>) -> Self {
        Bulk::new(command, BulkTarget::Runs(runs.into_iter().collect()))
    }

    /// Creates a bulk command for the runs that match a filter.
    pub fn filter(command: BulkCommand, filter: RunFilter) -> Self {
        Bulk::new(command, BulkTarget::Filter(Box::new(filter)))
    }

    fn new(command: BulkCommand, target: BulkTarget) -> Self {
        Bulk { command, target, reason: None, most: None, is_dry: false, key: None }
    }

    /// Sets the reason, for the audit trail.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Sets the maximum number of runs. Default: the limit `bulk_runs`.
    #[must_use]
    pub fn most(mut self, runs: u64) -> Self {
        self.most = Some(runs);
        self
    }

    /// Changes no run. The results say what the command would do.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.is_dry = true;
        self
    }

    /// Sets the idempotency key. The same key returns the same bulk command, as long as that one exists.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

/// The status of a bulk command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BulkStatus {
    Running,
    /// It stops after the current batch.
    Cancelling,
    Completed,
    Cancelled,
    /// It is stopped by an error. A retry of its run continues it.
    Failed,
}

/// A bulk command and its progress.
#[derive(Debug, Clone, PartialEq)]
pub struct BulkView {
    /// Id of the bulk command. It is the id of the run that executes it.
    pub id: RunId,
    pub command: BulkCommand,
    pub target: BulkTarget,
    pub reason: Option<String>,
    /// Id of the actor who started it.
    pub actor: Option<String>,
    /// Maximum number of runs.
    pub most: u64,
    pub is_dry: bool,
    pub status: BulkStatus,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// Number of runs that were selected at the start. `None`: they are not counted yet.
    pub total: Option<u64>,
    /// Number of runs that the command was executed on, or would have been.
    pub done: u64,
    /// Number of runs that the command failed on.
    pub failed: u64,
    /// Number of runs that the command did not apply to any more.
    pub skipped: u64,
    /// The run that was processed last.
    pub last_run: Option<RunId>,
    /// The latest failures, oldest first, at most ten.
    pub failures: Vec<BulkResult>,
    /// The error that stopped the bulk command.
    pub error: Option<Failure>,
}

/// A part of a bulk command: the command on one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkPart {
    id: RunId,
    /// Number of the batch. A run that is selected twice is processed in its first batch only.
    batch: u64,
}

impl BulkPart {
    /// Returns the id of the bulk command.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Returns the record of the command, which is written with it. It lives as long as the bulk command, so it
    /// outlives a run that the command deletes.
    pub(crate) fn record(&self, run: RunId, answer: Bytes) -> KeyWrite {
        KeyWrite {
            operation: format!("{WORKFLOW}:{}", self.id),
            key: run.to_string(),
            request: Sha256::digest(self.batch.to_be_bytes()).into(),
            answer,
            lifetime: KeyLifetime::WithRun(self.id),
        }
    }
}

impl Engine {
    /// Starts a bulk command and returns its id. It is executed in the background, also after a crash.
    pub async fn bulk(&self, bulk: Bulk) -> Result<Idempotent<RunId>, EngineError> {
        self.permit(bulk.command.permission())?;
        let bulk = bulk.without_prefix();
        let (key, request) = (bulk.key.clone(), bulk.request());
        let audited = json!({
            "command": bulk.command.word(), "runs": bulk.target.len(), "reason": bulk.reason, "dryRun": bulk.is_dry,
        });
        let state = bulk.checked(self).await?;
        let key = key.map_or_else(|| self.inner.host.ids.next().to_string(), |key| format!("key:{key}"));
        let start = Start::own(WORKFLOW, format!("{WORKFLOW}:{key}")).input(&state).request(request);
        let start = start.by(self.actor_id()).audited(audited);
        let started = self.inner.start(self.scope, &start, None).await?;
        Ok(Idempotent { value: started.run.id(), is_new: started.is_new })
    }

    /// Returns a bulk command and its progress.
    pub async fn bulk_view(&self, id: RunId) -> Result<BulkView, EngineError> {
        self.permit(Permission::View)?;
        self.bulk_of(&self.loaded_bulk(id).await?).await
    }

    /// Returns one page of the bulk commands, newest first.
    pub async fn bulks(&self, limit: u32, cursor: Option<String>) -> Result<Page<BulkView>, EngineError> {
        self.permit(Permission::View)?;
        let query = RunQuery { filter: RunFilter::of(WORKFLOW), limit, cursor, ..RunQuery::default() };
        let mut page = self.inner.store.runs(self.scope, query).await?;
        let mut items = Vec::new();
        for summary in &page.items {
            let view = match self.inner.load(self.scope, summary.run).await {
                Ok(loaded_run) => self.bulk_of(&loaded_run).await,
                Err(error) => Err(error),
            };
            match view {
                Ok(view) => items.push(view),
                // It was deleted after it was listed.
                Err(EngineError::NoRun(_)) => {}
                Err(error) => page.bad.push(error.bad_row(summary.run)?),
            }
        }
        Ok(page.over(|_| items))
    }

    /// Cancels a bulk command. Commands that are executed stay executed; the current batch, at most 50 runs, is
    /// finished. A bulk command that has failed is cancelled at once.
    pub async fn cancel_bulk(&self, id: RunId, by: &Operator) -> Result<BulkView, EngineError> {
        let loaded_run = self.loaded_bulk(id).await?;
        let view = self.bulk_of(&loaded_run).await?;
        self.permit(view.command.permission())?;
        let by = self.operator(by);
        match view.status {
            BulkStatus::Running | BulkStatus::Failed => self.ask_to_stop(id, &by).await?,
            BulkStatus::Cancelling => {}
            BulkStatus::Completed | BulkStatus::Cancelled => {
                let why = "the bulk command has ended".to_owned();
                return Err(EngineError::WrongStatus { run: id, status: loaded_run.head.status, why });
            }
        }
        if view.status == BulkStatus::Failed {
            self.inner.operate(self.scope, id, &Command::Retry, &by).await?;
        }
        self.bulk_of(&self.loaded_bulk(id).await?).await
    }

    async fn ask_to_stop(&self, id: RunId, by: &Operator) -> Result<(), EngineError> {
        let value = json!({"by": by.actor, "reason": by.reason});
        let op = CellOp::Set { value, value_type: ValueType::Json, ttl: Ttl::Forever };
        let write =
            CellWrite { key: cancel_key(id), op, expect: Precondition::Anything, initial: None, by: None };
        let audit = vec![by.audit(id, CANCELLED, &json!({}))];
        let extras =
            CommitExtras { cells: vec![write], audit, actor: by.actor.clone(), ..CommitExtras::default() };
        let commit = self.inner.commit_of(self.scope, extras, self.now());
        self.inner.apply(self.scope, commit).await?;
        Ok(())
    }

    /// Loads the run behind a bulk command.
    async fn loaded_bulk(&self, id: RunId) -> Result<LoadedRun, EngineError> {
        let loaded_run = self.inner.load(self.scope, id).await?;
        match loaded_run.definition().name().as_str() == WORKFLOW {
            true => Ok(loaded_run),
            false => Err(EngineError::NoBulk(id)),
        }
    }

    async fn bulk_of(&self, loaded_run: &LoadedRun) -> Result<BulkView, EngineError> {
        let (id, state) = (loaded_run.run(), State::read(&loaded_run.snapshot)?);
        let error = loaded_run.ledger.stopped.as_ref().map(|stopped| stopped.error.clone());
        let status = match (state.is_over, state.is_cancelled, &error) {
            (true, true, _) => BulkStatus::Cancelled,
            (true, false, _) => BulkStatus::Completed,
            (false, _, Some(_)) => BulkStatus::Failed,
            (false, _, None) => {
                let query = one(cancel_key(id), self.now(), false);
                let asked = !self.inner.store.cells(self.scope, query).await?.items.is_empty();
                if asked { BulkStatus::Cancelling } else { BulkStatus::Running }
            }
        };
        Ok(state.view(id, status, error))
    }
}

impl BulkTarget {
    /// Returns the number of runs that are named; `None` for a filter.
    fn len(&self) -> Option<usize> {
        match self {
            BulkTarget::Runs(runs) => Some(runs.len()),
            BulkTarget::Filter(_) => None,
        }
    }
}

impl Bulk {
    /// Removes the exclusion of the engine's own workflows from the filter: it always applies.
    fn without_prefix(mut self) -> Self {
        if let BulkTarget::Filter(filter) = &mut self.target {
            filter.without_prefix = None;
        }
        self
    }

    /// Returns the request as it is compared with that of a repeated idempotency key.
    fn request(&self) -> Value {
        let Bulk { command, target, reason, most, is_dry, key: _ } = self;
        json!([command, target, reason, most, is_dry])
    }

    /// Checks the request and returns the state that the bulk command begins with.
    async fn checked(self, engine: &Engine) -> Result<State, EngineError> {
        let limits = engine.limits();
        let wrong = |why: &str| Err(EngineError::Invalid(why.to_owned()));
        let Bulk { command, mut target, reason, most, is_dry, key: _ } = self;
        match &mut target {
            BulkTarget::Runs(runs) => {
                let mut seen = std::collections::BTreeSet::new();
                runs.retain(|run| seen.insert(*run));
                limits.bulk_ids("the list of runs", runs.len())?;
                if runs.is_empty() {
                    return wrong("a bulk command needs runs: name their ids, or a filter");
                }
            }
            BulkTarget::Filter(filter)
                if **filter == RunFilter::default() && command.default_status().is_none() =>
            {
                return wrong(
                    "the filter is empty and would select every run: name at least one condition, such as a workflow or a status",
                );
            }
            BulkTarget::Filter(filter) => {
                filter.check()?;
                if let (Some(workflow), false) = (&filter.workflow, filter.shadows.is_empty()) {
                    engine.check_filters(workflow, &filter.shadows).await?;
                }
            }
        }
        if let BulkCommand::Signal { name, payload, .. } = &command {
            limits.name_chars("the name of the signal", name.chars().count())?;
            limits.payload_bytes("the payload", json_bytes(payload))?;
            limits.nesting("the payload", payload)?;
        }
        if most == Some(0) {
            return wrong("`most` must be greater than zero (got 0)");
        }
        if let Some(most) = most {
            limits.bulk_runs("`most`", usize::try_from(most).unwrap_or(usize::MAX))?;
        }
        let actor: Option<Actor> = engine.actor().cloned();
        let most = most.unwrap_or(limits.bulk_runs);
        Ok(State::new(command, target, reason, most, is_dry, actor, engine.now()))
    }
}

/// Returns the key of the cell that asks a bulk command to stop. It is deleted with the bulk command.
fn cancel_key(id: RunId) -> CellKey {
    CellKey { space: Space::Execution, owner: id.to_string(), key: CANCEL.to_owned() }
}

/// Registers the workflow and the action of bulk commands.
pub(crate) fn equip(builder: Builder) -> Builder {
    work::equip(builder)
}
