//! Starts runs: now or later, at most once per idempotency key, with an optional deadline.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use stepwell_core::{
    Change, DefinitionHash, Input, Name, Refusal, Rejected, RunId, Timestamp, dispatch, start,
};
use stepwell_store::{
    AuditRow, Chain, Commit, Head, KeyLifetime, KeyWrite, NewRun, Parent, ProcessId, Record, RecordQuery,
    Refused, START_OPERATION, SendMessage, ShadowWrite, Status, StoreError, TenantScope,
};

use crate::admission::{self, queue};
use crate::answering::{self, STARTED, Sender, is_restricted, signal_audit};
use crate::commit_cycle::{CommitFailure, CycleResult, notify_parent, open_waits_of};
use crate::concurrency::Permit;
use crate::engine::{Inner, Run};
use crate::error::EngineError;
use crate::flow::strategy::refuses_runs;
use crate::ledger::{ChildNote, Ledger, Stopped};
use crate::lists;
use crate::loaded_run::{CommitExtras, InFlightActions, LoadedRun};
use crate::planner::{NextStep, earliest};
use crate::registry::Workflow;
use crate::signal::{Signal, Signalled};

/// The operation under which the idempotency keys of starts are recorded.
pub(crate) const START: &str = START_OPERATION;
/// The operation for the engine's own keys of schedules, events and triggers. No caller can use one of these keys.
pub(crate) const OWN_START: &str = "stepwell.start";

/// Returns the default input: an empty object.
pub(crate) fn no_input() -> Value {
    Value::Object(Map::new())
}

/// A request to start a run.
#[derive(Debug, Clone)]
pub struct Start {
    pub(crate) workflow: Name,
    pub(crate) input: Result<Value, String>,
    pub(crate) id: Option<RunId>,
    pub(crate) key: Option<String>,
    starts_at: Option<When>,
    deadline: Option<When>,
    waits_on_failure: bool,
    /// The key alone identifies the run; the input may differ.
    ignore_input: bool,
    /// The request that a repeated key is compared with, in place of the input.
    request: Option<Value>,
    /// Fields that the audit row of the start has in addition to the workflow.
    audited: Option<Value>,
    /// Shadow columns that are not derived from the run's data.
    shadow_columns: Vec<ShadowWrite>,
    /// The workflow version to use, instead of the one for new runs.
    pinned: Option<DefinitionHash>,
    /// The workflow is one of the engine's own.
    own: bool,
    /// The key was made by the engine, not by a caller.
    engine_key: bool,
    /// Id of the actor who starts the run.
    pub(crate) by: Option<String>,
    /// The strategy of the workflow may be any: a simulation has only runs.
    any_strategy: bool,
}

#[derive(Debug, Clone, Copy)]
enum When {
    At(Timestamp),
    In(Duration),
}

impl When {
    fn after(self, now: Timestamp) -> Timestamp {
        match self {
            When::At(at) => at,
            When::In(pause) => now.plus_ms(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

impl Start {
    /// Creates a request for a run of this workflow, with an empty object as its input.
    pub fn new(workflow: impl Into<Name>) -> Self {
        Start {
            workflow: workflow.into(),
            input: Ok(no_input()),
            id: None,
            key: None,
            starts_at: None,
            deadline: None,
            waits_on_failure: false,
            ignore_input: false,
            request: None,
            audited: None,
            shadow_columns: Vec::new(),
            pinned: None,
            own: false,
            engine_key: false,
            by: None,
            any_strategy: false,
        }
    }

    /// Sets the actor who starts the run: a caller, a schedule, an event or a run. It is no part of the request that an
    /// idempotency key identifies.
    pub(crate) fn by(mut self, actor: Option<String>) -> Self {
        self.by = actor;
        self
    }

    /// Sets the actor unless there is one.
    pub(crate) fn by_default(mut self, actor: &str) -> Self {
        self.by.get_or_insert_with(|| actor.to_owned());
        self
    }

    /// Returns the audit row of the start; `None` for the embedding program.
    pub(crate) fn audit(&self, run: RunId) -> Option<AuditRow> {
        let actor = self.by.clone()?;
        let mut detail = json!({"workflow": self.workflow});
        if let Some(audited) = &self.audited {
            detail["detail"] = audited.clone();
        }
        Some(answering::row(STARTED, run, actor, &detail))
    }

    /// Sets the detail of the start's audit row.
    pub(crate) fn audited(self, detail: Value) -> Self {
        Start { audited: Some(detail), ..self }
    }

    /// Sets the request that a repeated key is compared with, in place of the input.
    pub(crate) fn request(self, request: Value) -> Self {
        Start { request: Some(request), ..self }
    }

    /// Starts a run of a workflow with any strategy, for simulations.
    pub(crate) fn any_strategy(self) -> Self {
        Start { any_strategy: true, ..self }
    }

    /// Creates a request for a run of one of the engine's own workflows, with an engine key.
    pub(crate) fn own(workflow: &'static str, key: impl Into<String>) -> Self {
        Start { own: true, ..Start::new(workflow) }.engine_key(key)
    }

    /// Sets a key made by the engine. It never equals a caller's key.
    pub(crate) fn engine_key(self, key: impl Into<String>) -> Self {
        Start { engine_key: true, ..self.key(key) }
    }

    pub(crate) fn is_own(&self) -> bool {
        self.own
    }

    /// Returns the operation under which the key is recorded.
    pub(crate) fn operation(&self) -> &'static str {
        if self.engine_key { OWN_START } else { START }
    }

    /// Ignores the input when a repeated key is compared.
    pub(crate) fn ignore_input(mut self) -> Self {
        self.ignore_input = true;
        self
    }

    /// Sets shadow columns that are not derived from the run's data.
    pub(crate) fn shadow_columns(mut self, columns: Vec<ShadowWrite>) -> Self {
        self.shadow_columns = columns;
        self
    }

    /// Pins the run to this workflow version, instead of the one for new runs.
    pub(crate) fn pinned(mut self, workflow_version: DefinitionHash) -> Self {
        self.pinned = Some(workflow_version);
        self
    }

    /// Sets the input: an object, or any value for a workflow document.
    #[must_use]
    pub fn input<T: Serialize + ?Sized>(mut self, input: &T) -> Self {
        self.input = serde_json::to_value(input).map_err(|error| error.to_string());
        self
    }

    /// Sets the id of the run. Default: a new id.
    #[must_use]
    pub fn id(mut self, id: RunId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the idempotency key. The same key returns the same run, as long as that run exists.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the start time. The run is pending until then.
    #[must_use]
    pub fn at(mut self, at: Timestamp) -> Self {
        self.starts_at = Some(When::At(at));
        self
    }

    /// Delays the start by this time.
    #[must_use]
    pub fn after(mut self, pause: Duration) -> Self {
        self.starts_at = Some(When::In(pause));
        self
    }

    /// Cancels the run if it has not ended at this time.
    #[must_use]
    pub fn deadline(mut self, at: Timestamp) -> Self {
        self.deadline = Some(When::At(at));
        self
    }

    /// Cancels the run if it has not ended after this time.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.deadline = Some(When::In(time));
        self
    }

    /// For a child: does not report a failure to the parent, only completion and cancellation.
    #[must_use]
    pub fn wait_on_failure(mut self) -> Self {
        self.waits_on_failure = true;
        self
    }

    fn input_value(&self) -> Result<Value, EngineError> {
        let workflow = &self.workflow;
        let wrong = |why| format!("the input of `{workflow}` cannot be serialized as JSON: {why}");
        self.input.clone().map_err(|why| EngineError::Invalid(wrong(why)))
    }

    /// Returns true if the start is delayed or the run has a deadline.
    pub(crate) fn is_timed(&self) -> bool {
        self.starts_at.is_some() || self.deadline.is_some()
    }

    /// Returns the record of the idempotency key. The same key with another request is an error.
    pub(crate) fn key_for(&self, run: RunId) -> Option<KeyWrite> {
        let key = self.key.as_ref()?;
        let input = self.input.as_ref().ok().filter(|_| !self.ignore_input);
        let input = self.request.as_ref().or(input);
        let asked = json!([self.workflow, input]).to_string();
        Some(KeyWrite {
            operation: self.operation().to_owned(),
            key: key.clone(),
            request: Sha256::digest(asked.as_bytes()).into(),
            answer: run.to_string().into(),
            lifetime: KeyLifetime::WithRun(run),
        })
    }
}

/// A new run that is ready to be committed.
pub(crate) struct Fresh {
    pub(crate) new: NewRun,
    /// The message with which the run joins the queue of a limit.
    pub(crate) joins: Option<SendMessage>,
    pub(crate) loaded_run: LoadedRun,
    pub(crate) next: NextStep,
    /// The registry's counter of shadow columns when the run was built.
    pub(crate) shadow_revision: u64,
}

impl Fresh {
    /// Adds the run to the extras of another commit. If it ended or stopped at its start, the same commit notifies its
    /// parent.
    pub(crate) fn add_to_commit(self, extras: &mut CommitExtras) {
        let Fresh { mut new, joins, mut loaded_run, next: _, shadow_revision } = self;
        extras.send.extend(joins);
        extras.shadow_revision =
            Some(extras.shadow_revision.map_or(shadow_revision, |known| known.min(shadow_revision)));
        notify_parent(false, &mut loaded_run, extras);
        extras.documents.extend(lists::kept(new.run, None, &loaded_run.snapshot));
        new.ledger = loaded_run.ledger.write();
        extras.create.push(new);
        extras.definitions.push(loaded_run.workflow);
    }
}

impl Inner {
    /// Builds a new run of the workflow that the name currently resolves to.
    pub(crate) async fn fresh(
        &self,
        scope: TenantScope,
        wanted: &Start,
        run: RunId,
        parent: Option<(Parent, RunId)>,
    ) -> Result<Fresh, EngineError> {
        let pinned = wanted.pinned.and_then(|hash| self.registry.by_hash(scope.tenant(), hash));
        let workflow = match pinned {
            Some(pinned) => pinned,
            None => self.workflow_of(scope, wanted).await?,
        };
        self.refuse_flow(&workflow)?;
        self.fresh_of(scope, workflow, wanted, run, parent, None).await
    }

    /// Rejects a workflow that keeps its state in a token or behind a handle.
    pub(crate) fn refuse_flow(&self, workflow: &Workflow) -> Result<(), EngineError> {
        let strategies = self.flows.get().map(|flows| &flows.strategies);
        match refuses_runs(strategies, &workflow.definition) {
            None => Ok(()),
            Some(strategy) => Err(EngineError::NotARun {
                workflow: workflow.definition.name().clone(),
                strategy: strategy.to_owned(),
            }),
        }
    }

    /// Builds a new run. `owner` drives it at once if there is something to do.
    pub(crate) async fn fresh_of(
        &self,
        scope: TenantScope,
        workflow: Arc<Workflow>,
        wanted: &Start,
        run: RunId,
        parent: Option<(Parent, RunId)>,
        owner: Option<ProcessId>,
    ) -> Result<Fresh, EngineError> {
        let shadow_revision = self.shadow_revision();
        let now = self.host.now();
        let input = wanted.input_value()?;
        let starts_at = wanted.starts_at.map_or(now, |when| when.after(now)).max(now);
        let mut change = start(&workflow.definition, run, input, starts_at)?;
        change.entry.actor.clone_from(&wanted.by);
        let (parent, root) = parent.map_or((None, run), |(parent, root)| (Some(parent), root));
        let ledger = self.first_ledger(&workflow, &change, wanted, (starts_at, now))?;
        let first = self.checkpoint(&change.snapshot, &change.entry)?;
        let head = Head {
            run,
            revision: 0,
            version: change.snapshot.version(),
            fence: 0,
            owner: None,
            status: Status::Running,
            wake: Some(now),
            inbox_seen: 0,
            state: first.state.clone(),
            chain: Chain::default(),
        };
        let loaded_run = LoadedRun {
            head,
            workflow: workflow.clone(),
            snapshot: Arc::new(change.snapshot),
            ledger,
            inbox: Vec::new(),
            parent: parent.clone(),
            root,
            suspended: false,
        };
        let next = self.plan(&loaded_run, &InFlightActions::new(), now).await;
        let (status, wake, owner) = match &next {
            NextStep::Sleep(idle) => (idle.status, idle.wake, None),
            _ => (Status::Running, Some(now), owner),
        };
        let mut shadows = self.new_shadows(scope, &loaded_run).await;
        shadows.extend(wanted.shadow_columns.iter().cloned());
        let new = NewRun {
            run,
            workflow: workflow.definition.name().clone(),
            definition: workflow.definition.hash(),
            version: loaded_run.snapshot.version(),
            first,
            status,
            error: loaded_run.ledger.error_code(status),
            wake,
            owner,
            parent,
            root,
            ledger: loaded_run.ledger.write(),
            open: queue::with_queue(&loaded_run, open_waits_of(&workflow.definition, &loaded_run.snapshot)),
            shadows,
        };
        let joins = admission::join(&workflow, &loaded_run.ledger, now);
        Ok(Fresh { new, joins, loaded_run, next, shadow_revision })
    }

    /// Returns the ledger of a new run: its deadline, its error, and its place in the queue of a limit.
    fn first_ledger(
        &self,
        workflow: &Workflow,
        change: &Change,
        wanted: &Start,
        (starts_at, now): (Timestamp, Timestamp),
    ) -> Result<Ledger, EngineError> {
        let child = wanted.waits_on_failure.then(ChildNote::after_retries);
        let timeout = workflow.definition.timeout_ms().map(|ms| starts_at.plus_ms(ms));
        let deadline = earliest([wanted.deadline.map(|when| when.after(now)), timeout]);
        let stopped = change.stopped.clone().map(|error| Stopped { at: now, error, activation: None });
        let is_limited = !wanted.any_strategy && stopped.is_none();
        let admission = self.admission_of(workflow, &change.snapshot, (starts_at, now), is_limited)?;
        Ok(Ledger { deadline, child, stopped, admission, ..Ledger::default() })
    }

    /// Starts a run, with a first signal if one is given.
    pub(crate) async fn start(
        self: &Arc<Self>,
        scope: TenantScope,
        wanted: &Start,
        first: Option<&Signal>,
    ) -> Result<Started, EngineError> {
        let workflow = match self.workflow_of(scope, wanted).await {
            Err(error @ EngineError::Inactive { .. }) => {
                return self.find_started(scope, wanted).await?.ok_or(error);
            }
            found => found?,
        };
        if !wanted.any_strategy {
            self.refuse_flow(&workflow)?;
        }
        let run = wanted.id.unwrap_or_else(|| RunId::new(self.host.ids.next()));
        let permit = if first.is_some() { None } else { self.try_acquire_permit(scope.tenant(), &workflow) };
        let owner = permit.as_ref().map(|_| self.process());
        let Fresh { new, joins, loaded_run, next, shadow_revision } =
            self.fresh_of(scope, workflow.clone(), wanted, run, None, owner).await?;
        if let Err(error) = self.refuse_if_full(scope, wanted, &loaded_run).await {
            return self.find_started(scope, wanted).await?.ok_or(error);
        }
        let mut extras = CommitExtras { definitions: vec![workflow.clone()], ..CommitExtras::default() };
        extras.send.extend(joins);
        if let Some(signal) = first {
            let payload = signal.payload()?;
            self.check_signal(&loaded_run, &signal.name, &payload).await?;
            refuse_first_answer(&loaded_run, signal)?;
            let until = self.host.now().plus_ms(self.ttl_ms(signal));
            extras.send.push(signal.message(&payload).buffered(run, until));
            extras.audit.extend(signal_audit(&loaded_run, None, &signal.name, signal.sender()));
            extras.keys.extend(signal.key(run, &payload, Signalled::Buffered));
        }
        extras.keys.extend(wanted.key_for(run));
        extras.audit.extend(wanted.audit(run));
        let owner = new.owner;
        extras.documents.extend(lists::kept(run, None, &loaded_run.snapshot));
        extras.create.push(new);
        let handle = Run::new(self.clone(), scope, run, true);
        let commit = self.commit_of(scope, extras, self.host.now());
        let (guard, _under_way) = (self.ownership_guard(), self.under_way());
        let started = self.commit_start(scope, commit, (loaded_run, next, permit), owner, handle).await;
        if started.is_ok() && self.shadow_revision() != shadow_revision {
            Box::pin(self.catch_up(scope, vec![run])).await;
        }
        guard.done();
        started
    }

    /// Returns the run that was started earlier under the same key, when the workflow was still active.
    async fn find_started(
        self: &Arc<Self>,
        scope: TenantScope,
        wanted: &Start,
    ) -> Result<Option<Started>, EngineError> {
        let Some(key) = wanted.key.clone() else { return Ok(None) };
        let operation = wanted.operation().to_owned();
        let query = RecordQuery::Key { operation: operation.clone(), key: key.clone(), now: self.host.now() };
        let Some(Record::Key(known)) = self.store.records(scope, query).await?.items.pop() else {
            return Ok(None);
        };
        let run = run_of(known.answer.as_ref())?;
        let asked = wanted.key_for(run).map(|key| key.request);
        if known.request.is_some() && known.request != asked {
            return Err(EngineError::KeyReused { operation, key });
        }
        Ok(Some(Started { run: Run::new(self.clone(), scope, run, false), is_new: false }))
    }

    /// Commits a new run and drives it.
    async fn commit_start(
        self: &Arc<Self>,
        scope: TenantScope,
        commit: Commit,
        (mut loaded_run, next, permit): (LoadedRun, NextStep, Option<Permit>),
        owner: Option<ProcessId>,
        handle: Run,
    ) -> Result<Started, EngineError> {
        let run = loaded_run.run();
        match self.apply(scope, commit).await {
            Ok(committed) => {
                let head = committed.and_then(|committed| committed.created.into_iter().next());
                match (head, owner.is_some()) {
                    (Some(head), true) => {
                        loaded_run.head = head;
                        self.publish_end(scope, &loaded_run);
                        let at = self.host.now();
                        self.drive_or_schedule(
                            scope,
                            CycleResult { loaded_run, next, at, is_ours: true },
                            permit,
                        );
                    }
                    (Some(head), false) => {
                        loaded_run.head = head;
                        self.publish_end(scope, &loaded_run);
                        self.wake_at(loaded_run.head.wake);
                        self.recent.put(scope, loaded_run);
                    }
                    // The answer was lost. If this process does not own the run, its owner or its wake-up time takes
                    // care of it.
                    (None, _) => {
                        if let Err(error) = self.adopt(scope, run, owner, permit).await {
                            tracing::warn!(%run, %error, "a run was started, but the answer of its commit was lost");
                            self.in_doubt();
                        }
                    }
                }
                Ok(Started { run: handle, is_new: true })
            }
            Err(CommitFailure::Refused(Refused::Done { answer, .. })) => {
                let run = run_of(Some(&answer))?;
                Ok(Started { run: Run::new(self.clone(), scope, run, false), is_new: false })
            }
            Err(CommitFailure::Moved) => Err(EngineError::Store(StoreError::Unavailable(format!(
                "run {run} was not started: its commit was lost; start it again"
            )))),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Rejects a signal that the definition does not declare, or whose payload does not match its schema.
    pub(crate) async fn check_signal(
        &self,
        loaded_run: &LoadedRun,
        name: &Name,
        payload: &Value,
    ) -> Result<(), EngineError> {
        let event = Input::Signalled { signal: name.clone(), payload: payload.clone() };
        let answers = self.registry.answer(&loaded_run.workflow, &loaded_run.snapshot, &event).await?;
        let decided =
            dispatch(loaded_run.definition(), &loaded_run.snapshot, &event, &answers, self.host.now());
        match decided {
            Err(Rejected::Refused(
                refusal @ (Refusal::UnknownSignal { .. } | Refusal::InvalidPayload { .. }),
            )) => Err(refusal.into()),
            _ => Ok(()),
        }
    }

    /// Drives a run whose first commit made this process the owner but whose answer was lost.
    async fn adopt(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        owner: Option<ProcessId>,
        permit: Option<Permit>,
    ) -> Result<(), EngineError> {
        let loaded = self.store.load(scope, run).await?.ok_or(EngineError::NoRun(run))?;
        let loaded_run = self.build_loaded_run(scope, loaded).await?;
        self.publish_end(scope, &loaded_run);
        let at = self.host.now();
        let next = self.plan(&loaded_run, &InFlightActions::new(), at).await;
        // This process may own the run through a later commit, which has its own driver.
        let is_ours = owner.is_some() && loaded_run.head.owner == owner && loaded_run.head.fence == BEGUN;
        self.drive_or_schedule(scope, CycleResult { loaded_run, next, at, is_ours }, permit);
        Ok(())
    }
}

/// Rejects a signal with which a caller would answer a wait that the caller has not seen.
pub(crate) fn refuse_first_answer(loaded_run: &LoadedRun, signal: &Signal) -> Result<(), EngineError> {
    if *signal.sender() == Sender::Program || !is_restricted(loaded_run.definition(), &signal.name) {
        return Ok(());
    }
    let name = &signal.name;
    Err(EngineError::Invalid(format!(
        "signal `{name}` answers a wait that names its answerers, so it is not buffered: answer the wait when it is open"
    )))
}

/// The fence of a run's first owner.
const BEGUN: u64 = 1;

/// Parses the run id in the record of a start's key.
pub(crate) fn run_of(answer: Option<&Bytes>) -> Result<RunId, EngineError> {
    let text = answer.and_then(|answer| std::str::from_utf8(answer).ok());
    let run = text.and_then(|text| text.parse().ok());
    run.ok_or_else(|| EngineError::Invalid("the record of the key contains no run id".to_owned()))
}

/// A run and the information whether this call started it.
#[derive(Debug, Clone)]
pub struct Started {
    pub run: Run,
    /// False if the run was started earlier under the same idempotency key.
    pub is_new: bool,
}
