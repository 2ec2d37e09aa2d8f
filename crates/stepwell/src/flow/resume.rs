//! Starting, resuming and showing flows.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stepwell_core::schema::{Schema, SchemaViolation};
use stepwell_core::{ActionCall, Input, Name, RunId, Snapshot, Timestamp, start};
use stepwell_store::{
    HandleChange, HandleHash, HandleKind, HandleRow, HandleWrite, Record, RecordQuery, Refused, Status,
    StoreError, TenantScope,
};

use super::answer::{Answer, FlowError, Pause, pauses};
use super::commit::{FlowCommitError, Origin};
use super::execution::{ExecutionError, FlowExecution, loaded_run_of};
use super::flows::{Flows, Revoke, handle};
use super::strategy::{Sealed, Strategy, WATCH};
use super::token::{self, Purpose, Secret, Unsealed};
use crate::actor::Permission;
use crate::answering::Sender;
use crate::commit_cycle::CommitFailure;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::loaded_run::CommitExtras;
use crate::registry::Workflow;
use crate::runner;
use crate::start::Start;

/// Maximum number of executions of one request, if data that it has read changes meanwhile.
const MAX_PASSES: u32 = 16;
/// Delay in milliseconds that a caller is told if another request is resuming the flow.
pub(super) const RETRY_AFTER_MS: u64 = 1_000;
/// Every refusal of a token takes a multiple of this time in milliseconds, which is longer than a lookup should take.
/// So the duration does not reveal the reason.
// The lookups themselves cannot be made equally fast: a row that exists is also decoded, and over 100,000
// attempts that is measurable.
const REFUSAL_MS: u64 = 25;
/// Operation under which answers are recorded.
pub(crate) const FLOW: &str = "flow";

/// A request to resume a flow.
#[derive(Debug, Clone)]
pub struct Resume {
    token: String,
    outcome: Option<Name>,
    input: Result<Value, String>,
    key: Option<String>,
    reason: Option<String>,
}

impl Resume {
    /// Creates a request with this token and the input `null`.
    pub fn new(token: impl Into<String>) -> Self {
        Resume { token: token.into(), outcome: None, input: Ok(Value::Null), key: None, reason: None }
    }

    /// Sets the input, which is validated against the form of the pause.
    #[must_use]
    pub fn input<T: Serialize + ?Sized>(mut self, input: &T) -> Self {
        self.input = serde_json::to_value(input).map_err(|error| error.to_string());
        self
    }

    /// Sets the outcome. Default: the only one that the pause accepts.
    #[must_use]
    pub fn outcome(mut self, outcome: impl Into<Name>) -> Self {
        self.outcome = Some(outcome.into());
        self
    }

    /// Sets an idempotency key. A repeated request gets the recorded answer, including the next token.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the reason for answering in place of the answerers, which needs `workflow:admin`.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Returns the requested outcome, if there is one.
    pub(crate) fn wanted(&self) -> Option<&Name> {
        self.outcome.as_ref()
    }

    pub(crate) fn input_value(&self) -> Result<Value, FlowError> {
        self.input.clone().map_err(|why| {
            FlowError::Engine(EngineError::Invalid(format!("the input cannot be serialized as JSON: {why}")))
        })
    }
}

/// A request with an idempotency key.
#[derive(Debug, Clone)]
pub(crate) struct IdempotentRequest {
    pub(crate) key: String,
    /// SHA-256 of the request.
    pub(crate) request: [u8; 32],
}

impl IdempotentRequest {
    pub(super) fn new(key: Option<String>, request: &Value) -> Option<Self> {
        key.map(|key| IdempotentRequest { key, request: Sha256::digest(request.to_string()).into() })
    }
}

/// A handle that is being resumed. `is_reserved`: its row names this process as the owner.
pub(crate) struct HandleReservation {
    pub(crate) row: HandleRow,
    pub(crate) is_reserved: bool,
}

/// A verified token with the flow's state.
pub(crate) struct Opened {
    pub(crate) workflow: Arc<Workflow>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) origin: Origin,
    /// Name of the strategy.
    pub(crate) name: String,
}

impl Flows {
    /// Starts a flow and runs it to its first pause or its end.
    pub async fn start(&self, start: Start) -> Result<Answer, FlowError> {
        self.engine.permit(Permission::Manage)?;
        let inner = &self.engine.inner;
        let workflow = inner.workflow(self.engine.scope, &start.workflow).await?;
        if !self.shared.is_allowed(&start.workflow) {
            return Err(FlowError::NotAllowed(start.workflow));
        }
        let (name, strategy) = self.shared.strategies.of(&workflow.definition)?;
        let asked = IdempotentRequest::new(
            start.key.clone(),
            &json!(["start", start.workflow, start.input.as_ref().ok()]),
        );
        let _answering = self.answering(asked.as_ref())?;
        if let Some(answer) = self.answered(asked.as_ref()).await? {
            return Ok(answer);
        }
        if let Strategy::Durable(durable) = strategy {
            return self.start_durable(&name, durable, start, asked.as_ref()).await;
        }
        if start.is_timed() {
            let why = "only a durable run can have a start time or a deadline: use a durable strategy";
            return Err(EngineError::Invalid(why.to_owned()).into());
        }
        let flow = start.id.unwrap_or_else(|| RunId::new(inner.host.ids.next()));
        let input = start.input.clone().map_err(|why| {
            EngineError::Invalid(format!(
                "the input of `{}` cannot be serialized as JSON: {why}",
                start.workflow
            ))
        })?;
        for attempt in 0..MAX_PASSES {
            let mut change = start_of(&workflow, flow, input.clone(), inner.host.now())?;
            change.entry.actor = self.engine.actor_id();
            let loaded_run = loaded_run_of(workflow.clone(), Arc::new(change.snapshot), inner.host.now());
            let mut execution = FlowExecution::new(inner, self.engine.scope, loaded_run);
            execution.entry = Some(change.entry);
            if let Some(failure) = change.stopped {
                return Err(FlowError::Failed(failure));
            }
            let came = self.to_pause(&mut execution, None, None).await;
            match self.commit_pause(came, &mut execution, &Origin::Begun, &name, asked.as_ref()).await {
                Err(FlowCommitError::Again) => inner.pause_after(attempt).await,
                Err(FlowCommitError::InvalidOutcome(errors)) => return Err(unfit(errors)),
                Err(FlowCommitError::Flow(error)) => return Err(error),
                Err(FlowCommitError::Answered(answer)) => return Ok(*answer),
                Ok(answer) => return Ok(answer),
            }
        }
        Err(EngineError::Contended { run: flow, attempts: MAX_PASSES }.into())
    }

    /// Resumes a flow and runs it to its next pause or its end. Invalid input leaves the flow unchanged: the answer
    /// lists the errors, and the token stays valid.
    pub async fn resume(&self, resume: Resume) -> Result<Answer, FlowError> {
        let began = tokio::time::Instant::now();
        let name = token::split(&resume.token).map(|(name, _)| name.to_owned());
        let strategy = name.as_ref().and_then(|name| self.shared.strategies.by_name.get(name));
        let answer = match strategy {
            Some(Strategy::Sealed(sealed)) => self.resume_sealed(&resume, sealed).await,
            // The caller may go away, so the work runs in a separate task that completes.
            Some(Strategy::Handle(_) | Strategy::Durable(_)) => self.resume_stored(resume).await,
            // A valid token is refused, so that its input is not lost in silence.
            None if name.as_deref() == Some(WATCH) => match self.shown(&resume.token).await {
                Ok(_) => Err(FlowError::WatchOnly),
                Err(error) => Err(error),
            },
            None => Err(FlowError::Gone),
        };
        if matches!(answer, Err(FlowError::Gone)) {
            evenly(began).await;
        }
        answer
    }

    /// Seals a snapshot with a sealed strategy. [`Flows::open`] returns the snapshot, and [`Flows::resume`] resumes it.
    /// Its workflow must be known to this process.
    pub fn seal(&self, strategy: &str, snapshot: &Snapshot) -> Result<String, FlowError> {
        let Strategy::Sealed(sealed) = self.shared.strategies.get(strategy)? else {
            let why = format!("strategy `{strategy}` is not a sealed strategy: it stores states in rows");
            return Err(EngineError::Invalid(why).into());
        };
        self.sealed(strategy, sealed, snapshot)
    }

    /// Returns the state in a valid sealed token. The token stays valid.
    pub async fn open(&self, token: &str) -> Result<Arc<Snapshot>, FlowError> {
        let name = token::split(token).ok_or(FlowError::Gone)?.0;
        match self.shared.strategies.by_name.get(name) {
            Some(Strategy::Sealed(sealed)) => Ok(self.open_sealed(token, sealed).await?.snapshot),
            Some(Strategy::Handle(_) | Strategy::Durable(_)) | None => Err(FlowError::Gone),
        }
    }

    /// Shows the flow that a token belongs to. It changes nothing.
    pub async fn show(&self, token: &str) -> Result<Answer, FlowError> {
        let began = tokio::time::Instant::now();
        let shown = self.shown(token).await;
        if matches!(shown, Err(FlowError::Gone)) {
            evenly(began).await;
        }
        shown
    }

    async fn shown(&self, token: &str) -> Result<Answer, FlowError> {
        let (name, raw) = token::split(token).ok_or(FlowError::Gone)?;
        if name == WATCH {
            return self.watched(token, raw).await;
        }
        let opened = match self.shared.strategies.by_name.get(name) {
            None => return Err(FlowError::Gone),
            Some(Strategy::Sealed(sealed)) => self.open_sealed(token, sealed).await?,
            Some(Strategy::Handle(_)) => {
                let row = self.load_handle(name, raw, HandleKind::Flow).await?;
                self.open_handle(row, name).await?
            }
            Some(Strategy::Durable(_)) => return self.show_link(token, name, raw).await,
        };
        let mut answer = Answer::of(&opened.workflow.definition, &opened.snapshot, Status::Waiting);
        answer.strategy = Some(opened.name.clone());
        answer.token = Some(token.to_owned());
        answer.expires_at = opened.origin.expires_at();
        Ok(answer)
    }

    async fn resume_stored(&self, resume: Resume) -> Result<Answer, FlowError> {
        let (tell, told) = tokio::sync::oneshot::channel();
        let flows = self.clone();
        let inner = self.engine.inner.clone();
        inner.host.spawn.spawn(Box::pin(async move {
            // Stopping the engine waits for this guard.
            let _under_way = flows.engine.inner.under_way();
            let answer = flows.resume_row(&resume).await;
            // The caller may be gone.
            let _ = tell.send(answer);
        }));
        told.await.unwrap_or(Err(FlowError::Engine(EngineError::Stopped)))
    }

    async fn resume_row(&self, resume: &Resume) -> Result<Answer, FlowError> {
        let asked = self.asked(resume)?;
        let _answering = self.answering(asked.as_ref())?;
        if let Some(answer) = self.answered(asked.as_ref()).await? {
            return Ok(answer);
        }
        match self.resume_found(resume, asked.as_ref()).await {
            // Another process may have answered the same request since the lookup above.
            Err(FlowError::Gone) => self.answered(asked.as_ref()).await?.ok_or(FlowError::Gone),
            answer => answer,
        }
    }

    async fn resume_found(
        &self,
        resume: &Resume,
        asked: Option<&IdempotentRequest>,
    ) -> Result<Answer, FlowError> {
        let (name, raw) = token::split(&resume.token).ok_or(FlowError::Gone)?;
        if let Some(Strategy::Durable(durable)) = self.shared.strategies.by_name.get(name) {
            let row = self.load_handle(name, raw, HandleKind::Link).await?;
            return self.resume_link(name, durable, row, resume, asked).await;
        }
        for attempt in 0..MAX_PASSES {
            let row = self.load_handle(name, raw, HandleKind::Flow).await?;
            self.not_reserved(&row).await?;
            let opened = self.open_handle(row, name).await?;
            if let Some(answer) = self.tried(&opened, resume, asked).await {
                return answer;
            }
            self.engine.inner.pause_after(attempt).await;
        }
        Err(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS })
    }

    async fn resume_sealed(&self, resume: &Resume, sealed: &Sealed) -> Result<Answer, FlowError> {
        let asked = self.asked(resume)?;
        let _answering = self.answering(asked.as_ref())?;
        // A repeated request gets the recorded answer even if its token is used by now, so look up the answer before
        // failing.
        let opened = self.open_sealed(&resume.token, sealed).await;
        if let Some(answer) = self.answered(asked.as_ref()).await? {
            return Ok(answer);
        }
        let opened = opened?;
        for attempt in 0..MAX_PASSES {
            if let Some(answer) = self.tried(&opened, resume, asked.as_ref()).await {
                return answer;
            }
            self.engine.inner.pause_after(attempt).await;
        }
        Err(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS })
    }

    /// Attempts to resume the flow once. `None`: data has changed meanwhile, so try again.
    async fn tried(
        &self,
        opened: &Opened,
        resume: &Resume,
        asked: Option<&IdempotentRequest>,
    ) -> Option<Result<Answer, FlowError>> {
        match self.go_on(opened, resume, asked).await {
            Err(FlowCommitError::Again) => None,
            Err(FlowCommitError::InvalidOutcome(errors)) => Some(Ok(self.again(opened, resume, errors))),
            Err(FlowCommitError::Flow(error)) => Some(Err(error)),
            Err(FlowCommitError::Answered(answer)) => Some(Ok(*answer)),
            Ok(answer) => Some(Ok(answer)),
        }
    }

    /// Applies the input and runs the flow to its next pause or its end.
    async fn go_on(
        &self,
        opened: &Opened,
        resume: &Resume,
        asked: Option<&IdempotentRequest>,
    ) -> Result<Answer, FlowCommitError> {
        let inner = &self.engine.inner;
        let definition = &opened.workflow.definition;
        let waits = pauses(definition, &opened.snapshot);
        let input = resume.input_value()?;
        let (pause, outcome) = chosen(&waits, resume.outcome.as_ref(), &[])?;
        let violations = check_form(pause, &input);
        if !violations.is_empty() {
            return Err(FlowCommitError::InvalidOutcome(violations));
        }
        let event = event_of(pause, outcome, input);
        let loaded_run = loaded_run_of(opened.workflow.clone(), opened.snapshot.clone(), inner.host.now());
        let mut execution = FlowExecution::new(inner, self.engine.scope, loaded_run);
        let mut reservation = match &opened.origin {
            Origin::Handle { row, .. } => {
                Some(HandleReservation { row: (**row).clone(), is_reserved: false })
            }
            Origin::Begun | Origin::Sealed { .. } => None,
        };
        // Without a caller the token is the proof: only the answerer has received it.
        let sender = Sender::of(self.engine.shared_actor(), resume.reason.clone(), None);
        let came = match execution.offer(&event, &sender).await {
            Ok(call) => self.to_pause(&mut execution, call, reservation.as_mut()).await,
            Err(error) => Err(error),
        };
        let origin = opened.origin.taken_by(reservation.as_ref());
        let commit_pause = self.commit_pause(came, &mut execution, &origin, &opened.name, asked).await;
        if let (Err(_), Some(reservation)) = (&commit_pause, &reservation) {
            self.release_reservation(reservation).await;
        }
        commit_pause
    }

    /// Runs the flow until it waits or ends. A handle is reserved before the first action runs.
    async fn to_pause(
        &self,
        execution: &mut FlowExecution<'_>,
        mut due: Option<Box<ActionCall>>,
        mut reservation: Option<&mut HandleReservation>,
    ) -> Result<(), ExecutionError> {
        loop {
            let call = match due.take() {
                Some(call) => call,
                None => match execution.next().await? {
                    Some(call) => call,
                    None => return Ok(()),
                },
            };
            if let Some(reservation) =
                reservation.as_deref_mut().filter(|reservation| !reservation.is_reserved)
            {
                self.reserve(reservation).await?;
            }
            execution.act(*call).await?;
        }
    }

    async fn reserve(&self, reservation: &mut HandleReservation) -> Result<(), ExecutionError> {
        let process = self.engine.inner.process();
        self.own(&mut reservation.row, Some(process)).await?;
        reservation.is_reserved = true;
        Ok(())
    }

    async fn own(
        &self,
        row: &mut HandleRow,
        owner: Option<stepwell_store::ProcessId>,
    ) -> Result<(), ExecutionError> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope);
        let write = HandleWrite {
            handle: row.handle,
            expected: Some(row.fence),
            then: HandleChange::SetOwner(owner),
        };
        let extras = CommitExtras { handles: vec![write], ..CommitExtras::default() };
        match inner.apply(scope, inner.commit_of(scope, extras, inner.host.now())).await {
            Ok(_) => {
                row.owner = owner;
                row.fence += 1;
                Ok(())
            }
            Err(CommitFailure::Refused(Refused::Handle { .. }) | CommitFailure::Moved) => {
                Err(ExecutionError::Again)
            }
            Err(failure) => Err(ExecutionError::Engine(failure.into())),
        }
    }

    /// Ends the reservation of a handle, so that its token is valid again.
    async fn release_reservation(&self, reservation: &HandleReservation) {
        if !reservation.is_reserved {
            return;
        }
        let mut row = reservation.row.clone();
        for attempt in 0..MAX_PASSES {
            match self.own(&mut row, None).await {
                Ok(()) => return,
                Err(ExecutionError::Again) => {}
                Err(error) => {
                    tracing::warn!(handle = %row.handle, ?error, "a handle could not be released; it is retried");
                    self.engine.inner.pause_after(attempt).await;
                }
            }
            // The row may have changed meanwhile and still name this process. Then no other process would release it.
            match self.handle_row(row.handle).await {
                Ok(Some(now)) if now.owner == reservation.row.owner => row = now,
                Ok(_) => return,
                Err(_) => {}
            }
        }
        // Take a new process id, under which this process no longer owns the handle.
        self.engine.inner.in_doubt();
    }

    /// Rejects a handle that a live process has reserved.
    async fn not_reserved(&self, row: &HandleRow) -> Result<(), FlowError> {
        match is_worked_on(&self.engine.inner, self.engine.scope, row).await? {
            true => Err(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS }),
            false => Ok(()),
        }
    }

    /// Loads the row behind a handle's token.
    pub(crate) async fn load_handle(
        &self,
        name: &str,
        raw: &str,
        kind: HandleKind,
    ) -> Result<HandleRow, FlowError> {
        let scope = self.engine.scope;
        let secret =
            Secret::read(raw).filter(|secret| secret.tenant == scope.tenant()).ok_or(FlowError::Gone)?;
        let row = self.handle_row(secret.hash(name)).await?.ok_or(FlowError::Gone)?;
        let now = self.engine.inner.host.now();
        let is_over = row.expires_at.is_some_and(|expires| expires <= now);
        if is_over || row.kind != kind || !self.shared.is_allowed(&row.workflow) {
            return Err(FlowError::Gone);
        }
        Ok(row)
    }

    pub(crate) async fn handle_row(&self, hash: HandleHash) -> Result<Option<HandleRow>, FlowError> {
        let store = &self.engine.inner.store;
        // Not `Store::load`: a flow behind a handle has no inbox and no checkpoints to load.
        let page = store.records(self.engine.scope, RecordQuery::Handle(hash)).await?;
        Ok(page.items.into_iter().find_map(handle))
    }

    pub(crate) async fn open_handle(&self, row: HandleRow, name: &str) -> Result<Opened, FlowError> {
        let (workflow, snapshot) = self.restore(&row.state).await?;
        let before = snapshot.clone();
        Ok(Opened {
            workflow,
            snapshot,
            origin: Origin::Handle { row: Box::new(row), before },
            name: name.to_owned(),
        })
    }

    async fn open_sealed(&self, token: &str, sealed: &Sealed) -> Result<Opened, FlowError> {
        let inner = &self.engine.inner;
        let (name, raw) = token::split(token).ok_or(FlowError::Gone)?;
        let unsealed = token::open(&self.shared.ring, name, raw, inner.limits()).ok_or(FlowError::Gone)?;
        let is_ours = unsealed.tenant == self.engine.scope.tenant() && unsealed.purpose == Purpose::Resume;
        let is_over = unsealed.claims.expires_at <= inner.host.now();
        if !is_ours || is_over || !self.shared.is_allowed(&unsealed.workflow) {
            return Err(FlowError::Gone);
        }
        let (workflow, snapshot) = self.restore(&unsealed.state).await?;
        // If all strategies are sealed and not single-use, no row can exist, so skip the queries.
        let may_be_used = sealed.is_once || self.shared.strategies.keeps_rows();
        if (may_be_used && self.is_used(&snapshot).await?)
            || (sealed.is_once && self.is_revoked(&unsealed, &snapshot).await?)
        {
            return Err(FlowError::Gone);
        }
        let origin = Origin::Sealed {
            claims: unsealed.claims,
            flow: snapshot.instance_id(),
            version: snapshot.version(),
            is_once: sealed.is_once,
        };
        Ok(Opened { workflow, snapshot, origin, name: name.to_owned() })
    }

    /// Returns `true` if a sealed token was used for a write, or its flow has left the sealed strategy.
    async fn is_used(&self, snapshot: &Snapshot) -> Result<bool, FlowError> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope);
        let (flow, version) = (snapshot.instance_id(), snapshot.version());
        let [used, left] = super::commit::consumed_queries(flow, version, inner.host.now());
        let (used, left) =
            tokio::try_join!(inner.store.records(scope, used), inner.store.records(scope, left))?;
        Ok(!used.items.is_empty() || !left.items.is_empty())
    }

    /// Returns `true` if a single-use sealed token was revoked.
    async fn is_revoked(&self, token: &Unsealed, snapshot: &Snapshot) -> Result<bool, FlowError> {
        let flow = snapshot.instance_id();
        let by = token.claims.created_by.clone().map(Revoke::Actor);
        for which in [Some(Revoke::Flow(flow)), by].into_iter().flatten() {
            if self.revoked_at(&which).await?.is_some_and(|at| token.claims.created_at <= at) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Restores a stored state and finds its definition.
    pub(crate) async fn restore(&self, state: &[u8]) -> Result<(Arc<Workflow>, Arc<Snapshot>), FlowError> {
        let inner = &self.engine.inner;
        // The state contains its long lists.
        let snapshot = Snapshot::parse(state).map_err(EngineError::from)?;
        let hash = snapshot.definition_hash();
        let tenant = self.engine.scope.tenant();
        if inner.registry.by_hash(tenant, hash).is_none() {
            runner::learn(inner, self.engine.scope, hash).await?;
        }
        let workflow = inner
            .registry
            .by_hash(tenant, hash)
            .ok_or_else(|| EngineError::UnknownDefinition { workflow: snapshot.workflow().clone(), hash })?;
        snapshot.verify(&workflow.definition).map_err(EngineError::from)?;
        Ok((workflow, Arc::new(snapshot)))
    }

    /// Builds the answer to invalid input: the flow is unchanged, and the token stays valid.
    fn again(&self, opened: &Opened, resume: &Resume, errors: Vec<SchemaViolation>) -> Answer {
        let mut answer = Answer::of(&opened.workflow.definition, &opened.snapshot, Status::Waiting);
        answer.strategy = Some(opened.name.clone());
        answer.token = Some(resume.token.clone());
        answer.expires_at = opened.origin.expires_at();
        answer.errors = errors;
        answer
    }

    fn asked(&self, resume: &Resume) -> Result<Option<IdempotentRequest>, FlowError> {
        let Resume { token, outcome, key, .. } = resume;
        Ok(IdempotentRequest::new(key.clone(), &json!(["resume", token, outcome, resume.input_value()?])))
    }

    /// Locks the idempotency key within this process. Another request with the same key gets [`FlowError::Busy`].
    pub(super) fn answering(
        &self,
        asked: Option<&IdempotentRequest>,
    ) -> Result<Option<super::flows::Answering>, FlowError> {
        let Some(asked) = asked else { return Ok(None) };
        let answering = self.shared.answering(self.engine.scope.tenant(), &asked.key);
        answering.map(Some).ok_or(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS })
    }

    /// Returns the recorded answer of a request, if there is one.
    async fn answered(&self, asked: Option<&IdempotentRequest>) -> Result<Option<Answer>, FlowError> {
        let Some(asked) = asked else { return Ok(None) };
        match self.recorded(asked).await? {
            Some(answer) => self.replayed(&asked.key, &answer).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the sealed record of a request, if there is one.
    pub(super) async fn recorded(
        &self,
        asked: &IdempotentRequest,
    ) -> Result<Option<bytes::Bytes>, FlowError> {
        let IdempotentRequest { key, request } = asked;
        let now = self.engine.inner.host.now();
        let query = RecordQuery::Key { operation: FLOW.to_owned(), key: key.clone(), now };
        let known = self.engine.inner.store.records(self.engine.scope, query).await?.items.pop();
        match known {
            Some(Record::Key(record)) if record.request == Some(*request) => {
                Ok(Some(record.answer.unwrap_or_default()))
            }
            Some(_) => Err(FlowError::KeyReused { key: key.clone() }),
            None => Ok(None),
        }
    }
}

/// Returns `true` if a live process has reserved a handle.
pub(crate) async fn is_worked_on(
    inner: &Inner,
    scope: TenantScope,
    row: &HandleRow,
) -> Result<bool, StoreError> {
    // Checked when a handle is used, for the one process that has reserved it. So no background job has to
    // look for reservations of expired processes.
    let Some(owner) = row.owner else { return Ok(false) };
    if inner.uses_name(owner) {
        return Ok(true);
    }
    let query = RecordQuery::AliveProcess { process: owner, now: inner.host.now() };
    Ok(!inner.store.records(scope, query).await?.items.is_empty())
}

/// Sleeps to the next multiple of [`REFUSAL_MS`], so that callers learn nothing from the duration of a refusal.
pub(crate) async fn evenly(began: tokio::time::Instant) {
    let passed = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let until = (passed / REFUSAL_MS + 1) * REFUSAL_MS;
    tokio::time::sleep_until(began + std::time::Duration::from_millis(until)).await;
}

fn start_of(
    workflow: &Workflow,
    flow: RunId,
    input: Value,
    now: Timestamp,
) -> Result<stepwell_core::Change, EngineError> {
    Ok(start(&workflow.definition, flow, input, now)?)
}

fn unfit(errors: Vec<SchemaViolation>) -> FlowError {
    let mut failure =
        stepwell_core::Failure::new(crate::action::VALIDATION_FAILED, "the input is not accepted")
            .non_retryable();
    failure.errors = errors;
    FlowError::Failed(failure)
}

/// Chooses the pause and the outcome that a request answers. `only` restricts the outcomes; empty allows all.
pub(crate) fn chosen<'a>(
    waits: &'a [Pause],
    outcome: Option<&Name>,
    only: &[Name],
) -> Result<(&'a Pause, Name), FlowError> {
    let may = |name: &&Name| only.is_empty() || only.contains(name);
    let open =
        waits.iter().flat_map(|pause| pause.outcomes.iter().filter(may).map(move |name| (pause, name)));
    let open: Vec<_> = open.collect();
    let mut fitting = open.iter().filter(|(_, name)| outcome.is_none_or(|wanted| wanted == *name));
    let first = fitting.next();
    let is_clear =
        outcome.is_some() || fitting.all(|(_, name)| first.is_some_and(|(_, known)| known == name));
    match first {
        Some((pause, name)) if is_clear => Ok((pause, (*name).clone())),
        _ => {
            let mut outcomes: Vec<Name> = open.iter().map(|(_, name)| (*name).clone()).collect();
            outcomes.sort();
            outcomes.dedup();
            Err(FlowError::Outcome { given: outcome.map(ToString::to_string), outcomes })
        }
    }
}

/// Validates the input against the form of a pause.
pub(crate) fn check_form(pause: &Pause, input: &Value) -> Vec<SchemaViolation> {
    let schema = pause.form.as_ref().and_then(|form| Schema::compile(form).ok());
    schema.map(|schema| schema.check(input)).unwrap_or_default()
}

/// Builds the input of the flow for this pause. Other pauses that accept the same outcome are not affected.
pub(crate) fn event_of(pause: &Pause, outcome: Name, input: Value) -> Input {
    Input::Answered { activation: pause.activation, signal: outcome, payload: input }
}
