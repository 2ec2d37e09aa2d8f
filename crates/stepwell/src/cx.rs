//! The context of an action. It reads the run and the data store, and stages writes that are committed with the
//! action's result.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use stepwell_core::patch::Patch;
use stepwell_core::snapshot::{ActivationId, PROMPT};
use stepwell_core::{ActionCall, Limits, Name, RunId, Snapshot, Timestamp};
use stepwell_store::{
    Cell, CellKey, CellWrite, Document, DocumentOp, DocumentQuery, DocumentWrite, KeyWrite, LinkWrite,
    OpResult, Page, Record, RecordQuery, ResultPart, SendMessage, ShadowWrite, Space, Status, Store,
    StoreError, TenantScope,
};
use tokio::sync::Notify;

use crate::action::ActionError;
use crate::actor::Permission;
use crate::data::changes::{Changes, Kind, WRITE};
use crate::data::kv::one;
use crate::data::staged::{Session, StagedKv, StagedLinks, StagedSlot};
use crate::data::write::under_key;
use crate::engine::{Inner, permit};
use crate::error::EngineError;
use crate::events::Event;
use crate::flow::outlet::Outgoing;
use crate::flow::strategy::{DURABLE, Strategy};
use crate::host::Host;
use crate::loaded_run::LoadedRun;
use crate::observe::{Attempt, ObservedRun, SpanId, traceparent};
use crate::predictions::overlaid;
use crate::registry::{OWN, Workflow};
use crate::start::{Start, run_of};

/// The context of an action. Clones share the same context.
#[derive(Clone)]
pub struct Cx(Arc<Shared>);

struct Shared {
    call: ActionCall,
    workflow: Arc<Workflow>,
    snapshot: Arc<Snapshot>,
    root: RunId,
    parent: Option<RunId>,
    attempt: u32,
    /// Distinguishes the spans of attempts with the same number.
    nonce: u64,
    store: Arc<dyn Store>,
    inner: Arc<Inner>,
    scope: TenantScope,
    host: Host,
    location: StateLocation,
    limits: Limits,
    idempotency_key_ttl_ms: u64,
    catalogues: Arc<crate::catalogue::Catalogues>,
    /// `None` after the action is over. Later attempts to stage fail.
    staged: Mutex<Option<Staged>>,
    /// Number of events emitted so far.
    emitted: AtomicU64,
    over: Over,
}

/// The place where the state of the action's run is kept. It limits the operations that are possible.
#[derive(Debug, Clone)]
pub(crate) enum StateLocation {
    /// In the rows of a durable run.
    Durable,
    /// Nowhere: a stateless execution stores nothing.
    Nowhere,
    /// In a sealed token or behind a handle of a flow. Earlier steps have staged these changes, which are
    /// committed together with this action's.
    Flow(Arc<EarlierWrites>),
}

/// Changes staged by earlier steps that share the commit.
#[derive(Debug, Default)]
pub(crate) struct EarlierWrites {
    pub(crate) cells: Vec<CellWrite>,
    /// Idempotency keys that earlier steps have used.
    pub(crate) keys: Vec<KeyWrite>,
}

/// The changes that an action has staged.
#[derive(Default)]
pub(crate) struct Staged {
    pub(crate) context: Option<Arc<Value>>,
    pub(crate) session: Option<Map<String, Value>>,
    pub(crate) locals: Map<String, Value>,
    pub(crate) cells: Vec<CellWrite>,
    pub(crate) links: Vec<LinkWrite>,
    /// Indexes of cell writes that make the whole action run again if a concurrent write wins, with the maximum number
    /// of attempts.
    pub(crate) updates: BTreeMap<usize, u32>,
    pub(crate) bindings: Vec<(Op, ResultPart, String)>,
    /// Idempotency keys, each with the changes made under it.
    pub(crate) keys: Vec<(KeyWrite, Vec<Op>)>,
    pub(crate) signals: Vec<(RunId, Name, Value)>,
    pub(crate) children: Vec<Start>,
    pub(crate) starts: Vec<(RunId, Start)>,
    pub(crate) messages: Vec<SendMessage>,
    /// Shadow columns of the run that are not derived from its data.
    pub(crate) shadows: Vec<ShadowWrite>,
    pub(crate) documents: Vec<DocumentWrite>,
    /// Name of the strategy that keeps the flow's state from its next pause on.
    pub(crate) swap: Option<String>,
    /// The answer link to send at the next pause.
    pub(crate) outgoing: Option<Outgoing>,
}

/// Identifies a change that an action has staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The index among the staged changes to cells.
    Cell(usize),
    /// The index among the staged changes to links.
    Link(usize),
}

/// The result of [`Cx::write_once`].
#[derive(Debug, Clone, PartialEq)]
pub enum Once {
    /// The changes are staged, with these ids. The list is empty if this action, or an earlier step in the same
    /// commit, had already staged them.
    Staged(Vec<Op>),
    /// The changes were committed earlier, with these results.
    Before(Vec<OpResult>),
}

/// Signals tasks spawned by an action that the action is over.
#[derive(Default)]
struct Over {
    is: AtomicBool,
    told: Notify,
}

impl Cx {
    /// Creates the context of one attempt.
    pub(crate) fn new(
        inner: &Arc<Inner>,
        scope: TenantScope,
        loaded_run: &LoadedRun,
        call: ActionCall,
        attempt: u32,
        location: StateLocation,
    ) -> Self {
        Cx(Arc::new(Shared {
            nonce: inner.activity_count(),
            parent: loaded_run.parent.as_ref().map(|parent| parent.run),
            call,
            workflow: loaded_run.workflow.clone(),
            snapshot: loaded_run.snapshot.clone(),
            root: loaded_run.root,
            attempt,
            store: inner.store.clone(),
            inner: inner.clone(),
            scope,
            host: inner.host.clone(),
            location,
            limits: inner.options.limits.clone(),
            idempotency_key_ttl_ms: inner.options.idempotency_key_ttl_ms,
            catalogues: inner.catalogues.clone(),
            staged: Mutex::new(Some(Staged::default())),
            emitted: AtomicU64::new(0),
            over: Over::default(),
        }))
    }

    /// Returns the call, with the names of secrets, not their values, in its input.
    pub(crate) fn call(&self) -> &ActionCall {
        &self.0.call
    }

    /// Returns the id of the run.
    pub fn run(&self) -> RunId {
        self.0.snapshot.instance_id()
    }

    /// Returns the root of the run's tree: the run itself if it has no parent.
    pub fn root(&self) -> RunId {
        self.0.root
    }

    /// Returns the name of the workflow.
    pub fn workflow(&self) -> &Name {
        self.0.snapshot.workflow()
    }

    /// Returns the transition that the action belongs to.
    pub fn transition(&self) -> &Name {
        &self.0.call.transition
    }

    /// Returns the activation that the transition moves.
    pub fn activation(&self) -> ActivationId {
        self.0.call.activation
    }

    /// Returns the number of this attempt, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Returns a key for calls to external systems. All attempts of this transition share it; the next iteration of a
    /// loop gets another.
    pub fn idempotency_key(&self) -> String {
        format!("{}-{}", self.run(), self.0.call.activation)
    }

    /// Returns the `traceparent` header (W3C Trace Context) for calls to external systems. Their spans become children
    /// of this attempt. The trace id is the id of the tree's root.
    pub fn traceparent(&self) -> String {
        traceparent(self.root(), self.span(), self.0.inner.is_traced(self.root()))
    }

    /// Returns the span id of this attempt.
    fn span(&self) -> SpanId {
        SpanId::of_attempt(self.run(), self.0.call.activation, self.0.attempt, self.0.nonce)
    }

    /// Returns the run, for observers.
    pub(crate) fn subject(&self) -> ObservedRun<'_> {
        let (run, root, parent) = (self.run(), self.root(), self.0.parent);
        ObservedRun { tenant: self.0.scope.tenant(), run, root, parent, workflow: self.workflow() }
    }

    /// Returns the attempt, for observers.
    pub(crate) fn tried(&self) -> Attempt<'_> {
        let ActionCall { action, transition, activation, .. } = &self.0.call;
        let (attempt, span) = (self.0.attempt, self.span());
        Attempt { action, transition, activation: *activation, attempt, span }
    }

    /// Returns the payload of the signal, timer or wait that triggered the transition.
    pub fn payload(&self) -> &Value {
        &self.0.call.payload
    }

    /// Returns the current time of the engine's clock.
    pub fn now(&self) -> Timestamp {
        self.0.host.now()
    }

    /// Returns the run's state at the start of the action.
    pub fn snapshot(&self) -> &Snapshot {
        &self.0.snapshot
    }

    /// Deserializes the run's context data, including what this action has staged.
    pub fn state<S: DeserializeOwned>(&self) -> Result<S, ActionError> {
        let staged = self.lock();
        let context = staged.as_ref().and_then(|staged| staged.context.as_deref());
        let context = context.unwrap_or_else(|| self.0.snapshot.context());
        S::deserialize(context).map_err(|error| {
            ActionError::new(
                "invalidState",
                format!("the run's data does not match the requested type: {error}"),
            )
            .non_retryable()
        })
    }

    /// Stages new context data. Only the fields that differ from the data at the start of the action are written.
    pub fn set_state<S: Serialize>(&self, state: &S) -> Result<(), ActionError> {
        let context = json(state)?;
        self.stage(|staged| staged.context = Some(Arc::new(context)))
    }

    /// Reads the context data, applies a change and stages the result.
    pub fn update_state<S, T>(&self, change: impl FnOnce(&mut S) -> T) -> Result<T, ActionError>
    where
        S: DeserializeOwned + Serialize,
    {
        let mut state = self.state::<S>()?;
        let given = change(&mut state);
        self.set_state(&state)?;
        Ok(given)
    }

    /// Returns a session slot, which is private to the run.
    pub fn session<T: Serialize + DeserializeOwned>(&self, key: impl Into<String>) -> Session<T> {
        Session::new(self.clone(), key.into())
    }

    /// Returns a slot that the root of the run's tree shares with all its descendants.
    pub fn execution<T: Serialize + DeserializeOwned>(&self, key: impl Into<String>) -> StagedSlot<T> {
        StagedSlot::new(self.clone(), Space::Execution, self.root().to_string(), key.into())
    }

    /// Returns a slot that all runs of the workflow share.
    pub fn workflow_scope<T: Serialize + DeserializeOwned>(&self, key: impl Into<String>) -> StagedSlot<T> {
        StagedSlot::new(self.clone(), Space::Workflow, self.workflow().as_str().to_owned(), key.into())
    }

    /// Returns the keys of a namespace.
    pub fn kv(&self, namespace: impl Into<String>) -> StagedKv {
        StagedKv::new(self.clone(), namespace.into())
    }

    /// Returns the links of a namespace.
    pub fn links(&self, namespace: impl Into<String>) -> StagedLinks {
        StagedLinks::new(self.clone(), namespace.into())
    }

    pub(crate) fn session_value(&self, key: &str) -> Option<Value> {
        let staged = self.lock();
        let slots = staged.as_ref().and_then(|staged| staged.session.as_ref());
        slots.unwrap_or_else(|| self.0.snapshot.session()).get(key).cloned()
    }

    pub(crate) fn set_session_value(&self, key: &str, value: Option<Value>) -> Result<(), ActionError> {
        let before = self.0.snapshot.session();
        self.stage(|staged| {
            let slots = staged.session.get_or_insert_with(|| before.clone());
            match value {
                None => drop(slots.remove(key)),
                Some(value) => drop(slots.insert(key.to_owned(), value)),
            }
        })
    }

    /// Stages a local variable. The activation at the next place sees it, and so do the activations that follow from
    /// it.
    pub fn set_local<T: Serialize>(&self, key: impl Into<String>, value: &T) -> Result<(), ActionError> {
        let (key, value) = (key.into(), json(value)?);
        self.stage(|staged| drop(staged.locals.insert(key, value)))
    }

    /// Stages an operation on a cell.
    pub fn write(&self, write: CellWrite) -> Result<(), ActionError> {
        self.stage_changes(Changes::new().cell(Ok(write))).map(drop)
    }

    /// Stages changes to the data and returns an id of each, for [`Cx::bind_result`]. Use [`Cx::write_once`] for changes with
    /// an idempotency key.
    pub fn stage_changes(&self, changes: Changes) -> Result<Vec<Op>, ActionError> {
        if changes.once.is_some() {
            let why = "changes with an idempotency key may have been made already: use `write_once`";
            return Err(ActionError::new("invalid", why).non_retryable());
        }
        self.put_changes(changes)
    }

    fn put_changes(&self, changes: Changes) -> Result<Vec<Op>, ActionError> {
        self.permit(Permission::Manage)?;
        changes.check_all(self.limits())?;
        let has_data =
            changes.cells.iter().any(|write| write.key.space == Space::Kv) || !changes.links.is_empty();
        if has_data {
            self.needs_a_store("write to the data store")?;
        }
        if changes.cells.iter().any(|write| write.key.space == Space::Execution) {
            self.needs_a_run("use slots that its children share")?;
        }
        let run = self.run();
        let key = changes.key(self.now().plus_ms(self.0.idempotency_key_ttl_ms));
        let Changes { mut cells, mut links, order, .. } = changes;
        cells.iter_mut().for_each(|write| write.by = write.by.or(Some(run)));
        for link in &mut links {
            match link {
                LinkWrite::Upsert { id, by, .. } => (*id, *by) = (self.0.host.ids.next(), Some(run)),
                LinkWrite::Delete { by, .. } => *by = Some(run),
            }
        }
        let mut numbers = Vec::new();
        self.stage(|staged| {
            let (mut cell, mut link) = (staged.cells.len(), staged.links.len());
            for kind in order {
                let (number, next) = match kind {
                    Kind::Cell => (Op::Cell(cell), &mut cell),
                    Kind::Link => (Op::Link(link), &mut link),
                };
                *next += 1;
                numbers.push(number);
            }
            staged.cells.extend(cells);
            staged.links.extend(links);
            staged.keys.extend(key.map(|key| (key, numbers.clone())));
        })?;
        Ok(numbers)
    }

    /// Stages changes that are made at most once per idempotency key. If any run has already made them, nothing is
    /// staged and their results are returned. If another caller uses the key before this action's result is committed,
    /// the action runs again.
    pub async fn write_once(&self, changes: Changes) -> Result<Once, ActionError> {
        let (Some(key), order) = (changes.key(self.now()), changes.order.clone()) else {
            return Ok(Once::Staged(self.stage_changes(changes)?));
        };
        self.permit(Permission::Manage)?;
        self.needs_a_store("write to the data store")?;
        let reused = || {
            let why =
                format!("key `{}` was used for other changes: use a new key for a new request", key.key);
            ActionError::new("keyReused", why).non_retryable()
        };
        let is_it = |other: &&KeyWrite| other.operation == key.operation && other.key == key.key;
        let staged = self
            .lock()
            .as_ref()
            .and_then(|staged| staged.keys.iter().map(|(key, _)| key).find(is_it).cloned());
        if let Some(other) = staged.or_else(|| self.staged_before(&key.operation, &key.key).cloned()) {
            return if other.request == key.request { Ok(Once::Staged(Vec::new())) } else { Err(reused()) };
        }
        let query = RecordQuery::Key { operation: WRITE.to_owned(), key: key.key.clone(), now: self.now() };
        match self.0.store.records(self.0.scope, query).await?.items.pop() {
            Some(Record::Key(record)) if record.request == Some(key.request) => {
                Ok(Once::Before(under_key(&order, record)))
            }
            Some(_) => Err(reused()),
            None => Ok(Once::Staged(self.put_changes(changes)?)),
        }
    }

    /// Stages a value that was computed from another. If that one has changed by the time of the commit, the action
    /// runs again.
    pub(crate) fn stage_update(&self, write: CellWrite, max_retries: u32) -> Result<(), ActionError> {
        let numbers = self.stage_changes(Changes::new().cell(Ok(write)))?;
        self.stage(|staged| {
            let cells = numbers.iter().filter_map(|number| match number {
                Op::Cell(number) => Some((*number, max_retries)),
                Op::Link(_) => None,
            });
            staged.updates.extend(cells);
        })
    }

    /// Binds a part of a staged change's result to a field of the action's output. The commit fills it in, because the
    /// result is known only then. `pointer` is a JSON pointer into the output, and its parent must be an existing
    /// object. Until the commit the field should contain a placeholder of the same type. The value reaches the target
    /// of `saveAs`, but not the copy of the output in the history.
    pub fn bind_result(
        &self,
        op: Op,
        part: ResultPart,
        pointer: impl Into<String>,
    ) -> Result<(), ActionError> {
        let pointer = pointer.into();
        self.stage(|staged| staged.bindings.push((op, part, pointer)))
    }

    /// Returns the number of results bound so far.
    pub(crate) fn bindings(&self) -> usize {
        self.lock().as_ref().map_or(0, |staged| staged.bindings.len())
    }

    /// Moves the results bound after the first `from` ones into a field of the output, or drops them without a field.
    pub(crate) fn move_bindings(&self, from: usize, field: Option<&str>) {
        let mut staged = self.lock();
        let Some(bindings) = staged.as_mut().map(|staged| &mut staged.bindings) else { return };
        let Some(field) = field else { return bindings.truncate(from) };
        let field = field.replace('~', "~0").replace('/', "~1");
        for (_, _, pointer) in bindings.iter_mut().skip(from) {
            *pointer = format!("/{field}{pointer}");
        }
    }

    /// Returns a cell, including tombstones, with the staged changes applied.
    pub(crate) async fn overlaid(&self, key: &CellKey) -> Result<Option<Cell>, ActionError> {
        let now = self.now();
        let mut cell = self.0.store.cells(self.0.scope, one(key.clone(), now, true)).await?.items.pop();
        if let StateLocation::Flow(before) = &self.0.location {
            cell = overlaid(cell, &before.cells, key, now, self.limits());
        }
        let staged: Vec<CellWrite> = {
            let staged = self.lock();
            let all = staged.iter().flat_map(|staged| &staged.cells);
            all.filter(|write| write.key == *key).cloned().collect()
        };
        for write in staged {
            let unfit = |error| {
                ActionError::new("invalid", format!("the staged change of {key} is invalid: {error}"))
            };
            if let (Some(after), _) = write.apply(cell.clone(), now, self.limits()).map_err(unfit)? {
                cell = Some(after);
            }
        }
        Ok(cell)
    }

    /// Fails if the workflow's publisher lacks this permission.
    pub(crate) fn permit(&self, permission: Permission) -> Result<(), ActionError> {
        permit(self.0.workflow.publisher(), permission)
            .map_err(|denied| ActionError::new("denied", denied.to_string()).non_retryable())
    }

    pub(crate) fn permit_read(&self) -> Result<(), ActionError> {
        self.permit(Permission::Read)
    }

    pub(crate) fn limits(&self) -> &stepwell_core::Limits {
        &self.0.limits
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    pub(crate) fn scope(&self) -> TenantScope {
        self.0.scope
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0.inner
    }

    pub(crate) fn new_id(&self) -> uuid::Uuid {
        self.0.host.ids.next()
    }

    /// Stages the start of a separate run. The caller has checked that its key, if any, is unused.
    pub(crate) fn stage_start(&self, run: RunId, start: Start) -> Result<(), ActionError> {
        self.stage(|staged| staged.starts.push((run, start)))
    }

    /// Stages a message to another run.
    pub(crate) fn post(&self, send: SendMessage) -> Result<(), ActionError> {
        self.stage(|staged| staged.messages.push(send))
    }

    /// Stages a shadow column of the run that is not derived from its data.
    pub(crate) fn set_shadow(&self, column: ShadowWrite) -> Result<(), ActionError> {
        self.stage(|staged| staged.shadows.push(column))
    }

    /// Stages an event. It is accepted with the transition, once per source and id. The default id is the same in
    /// every attempt of this transition.
    pub async fn emit(&self, event: Event) -> Result<RunId, ActionError> {
        self.needs_a_store("emit an event")?;
        let number = self.0.emitted.fetch_add(1, Ordering::Relaxed);
        let source = || format!("stepwell/{}", self.workflow());
        let event = event.or(source, || format!("{}-{number}", self.idempotency_key()));
        let start = self.0.inner.prepare_start(self.0.scope, &event).await.map_err(|error| match error {
            wrong @ (EngineError::Invalid(_) | EngineError::Limit(_)) => {
                ActionError::new("invalidInput", wrong.to_string()).non_retryable()
            }
            other => ActionError::from(other),
        })?;
        self.start_once(start).await
    }

    /// Returns a cell as committed, without the changes staged by this action.
    pub async fn read(&self, key: &CellKey) -> Result<Option<Cell>, ActionError> {
        self.permit_read()?;
        let query = one(key.clone(), self.now(), false);
        Ok(self.0.store.cells(self.0.scope, query).await?.items.pop())
    }

    /// Changes where the flow keeps its state from its next pause on. `strategy` is the name of a strategy, or
    /// `durable`. A durable run stays durable, so any other strategy is an error there.
    pub fn use_strategy(&self, strategy: impl Into<String>) -> Result<(), ActionError> {
        let strategy = strategy.into();
        self.needs_a_store("change its strategy")?;
        let is_flow = matches!(self.0.location, StateLocation::Flow(_));
        let known = match self.0.inner.flows.get() {
            Some(flows) => {
                flows.strategies.get(&strategy).map(|strategy| matches!(strategy, Strategy::Durable(_)))
            }
            // Without flows, every run is durable.
            None => Ok(strategy == DURABLE),
        };
        let is_durable =
            known.map_err(|error| ActionError::new("unknownStrategy", error.to_string()).non_retryable())?;
        if !is_flow && !is_durable {
            let why = format!("a durable run stays durable: it cannot change its strategy to `{strategy}`");
            return Err(ActionError::new("notAFlow", why).non_retryable());
        }
        self.stage(|staged| staged.swap = Some(strategy).filter(|_| is_flow))
    }

    /// Sends an answer link at the next pause. Only this link can resume the flow from there.
    pub fn send_out(&self, outgoing: Outgoing) -> Result<(), ActionError> {
        outgoing.check()?;
        self.needs_a_store("send an answer link")?;
        let outlet = match self.0.inner.flows.get() {
            Some(flows) => flows.outlet(&outgoing.outlet).map(drop),
            None => Err(EngineError::UnknownOutlet { name: outgoing.outlet.clone(), known: Vec::new() }),
        };
        outlet.map_err(|error| ActionError::new("unknownOutlet", error.to_string()).non_retryable())?;
        self.stage(|staged| staged.outgoing = Some(outgoing))
    }

    /// Sets the prompt of the next wait on this path: the question shown to the person who answers.
    pub fn prompt<T: Serialize>(&self, prompt: &T) -> Result<(), ActionError> {
        self.set_local(PROMPT, prompt)
    }

    /// Stages a child run. It starts with the transition, and its end resolves the wait that the transition leads to.
    pub fn start_child(&self, child: Start) -> Result<(), ActionError> {
        self.needs_a_store("start a child")?;
        self.needs_a_run("start a child")?;
        if child.key.is_some() {
            return Err(
                ActionError::new("invalidStart", "a child cannot have a key: remove it").non_retryable()
            );
        }
        self.stage(|staged| staged.children.push(child))
    }

    /// Stages the start of a separate run without a parent, and returns its id. The run starts with the transition.
    pub fn start(&self, start: Start) -> Result<RunId, ActionError> {
        self.needs_a_store("start a run")?;
        if start.key.is_some() {
            let why = "a run with this idempotency key may exist already: use `start_once`";
            return Err(ActionError::new("invalidStart", why).non_retryable());
        }
        let run = start.id.unwrap_or_else(|| RunId::new(self.0.host.ids.next()));
        self.stage(|staged| staged.starts.push((run, start)))?;
        Ok(run)
    }

    /// Stages a start with an idempotency key. Returns the id of the run that was already started under the key, if
    /// there is one. If another caller uses the key before this action's result is committed, the action runs again.
    pub async fn start_once(&self, start: Start) -> Result<RunId, ActionError> {
        self.needs_a_store("start a run")?;
        let Some(key) = start.key.clone() else { return self.start(start) };
        let same = |(_, other): &&(RunId, Start)| other.key.as_ref() == Some(&key);
        let staged = self.lock().as_ref().and_then(|staged| staged.starts.iter().find(same).cloned());
        let run = start.id.unwrap_or_else(|| RunId::new(self.0.host.ids.next()));
        let asked = start.key_for(run).map(|key| key.request);
        let reused = || {
            let why = format!("key `{key}` was used for another start: use a new key for a new request");
            ActionError::new("keyReused", why).non_retryable()
        };
        if let Some((known, other)) = staged {
            let same = other.key_for(known).map(|key| key.request) == asked;
            return if same { Ok(known) } else { Err(reused()) };
        }
        if let Some(other) = self.staged_before(start.operation(), &key) {
            let same = Some(other.request) == asked;
            return if same { Ok(run_of(Some(&other.answer))?) } else { Err(reused()) };
        }
        let query =
            RecordQuery::Key { operation: start.operation().to_owned(), key: key.clone(), now: self.now() };
        let known = self.0.store.records(self.0.scope, query).await?.items.into_iter().next();
        if let Some(Record::Key(record)) = known {
            return if record.request == asked { Ok(run_of(record.answer.as_ref())?) } else { Err(reused()) };
        }
        self.stage(|staged| staged.starts.push((run, start)))?;
        Ok(run)
    }

    /// Returns an idempotency key that an earlier step in the same commit has used.
    fn staged_before(&self, operation: &str, key: &str) -> Option<&KeyWrite> {
        let StateLocation::Flow(before) = &self.0.location else { return None };
        before.keys.iter().find(|other| other.operation == operation && other.key == key)
    }

    /// Fails in a stateless execution, which stores nothing.
    fn needs_a_store(&self, what: &str) -> Result<(), ActionError> {
        if !matches!(self.0.location, StateLocation::Nowhere) {
            return Ok(());
        }
        let why = format!("a stateless run cannot {what}");
        Err(ActionError::new("stateless", why).non_retryable())
    }

    /// Fails in a flow with its state in a token or behind a handle, because it has no rows in the store.
    fn needs_a_run(&self, what: &str) -> Result<(), ActionError> {
        if !matches!(self.0.location, StateLocation::Flow(_)) {
            return Ok(());
        }
        let why = format!(
            "a flow with its state in a token or behind a handle cannot {what}: use the strategy `durable`"
        );
        Err(ActionError::new("notDurable", why).non_retryable())
    }

    /// Stages a signal to another run of the same tenant. It is dropped if that run has ended by then.
    pub fn signal<T: Serialize>(
        &self,
        run: RunId,
        signal: impl Into<Name>,
        payload: &T,
    ) -> Result<(), ActionError> {
        self.needs_a_store("signal another run")?;
        let (signal, payload) = (signal.into(), json(payload)?);
        self.stage(|staged| staged.signals.push((run, signal, payload)))
    }

    /// Stages a document of the run, and replaces one with the same key. The body must match the schema that the
    /// workflow declares for this kind.
    pub fn put_document<T: Serialize>(
        &self,
        key: impl Into<String>,
        kind: impl Into<Name>,
        body: &T,
        tags: &[&str],
    ) -> Result<(), ActionError> {
        let (kind, body) = (kind.into(), json(body)?);
        let fits = self.0.workflow.definition.check_document(&kind, &body);
        fits.map_err(|error| ActionError::new("invalidDocument", error.to_string()).non_retryable())?;
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let op = DocumentOp::Put { kind, body: Bytes::from(body.to_string()), tags };
        self.document(key.into(), op)
    }

    /// Stages the removal of a document. It is no longer visible afterwards.
    pub fn remove_document(&self, key: impl Into<String>) -> Result<(), ActionError> {
        self.document(key.into(), DocumentOp::Remove)
    }

    fn document(&self, key: String, op: DocumentOp) -> Result<(), ActionError> {
        self.needs_a_run("have documents")?;
        if key.starts_with(OWN) {
            let why = format!("document `{key}`: keys that start with `{OWN}` are reserved for the engine");
            return Err(ActionError::new("invalidDocument", why).non_retryable());
        }
        let run = self.run();
        self.stage(|staged| staged.documents.push(DocumentWrite { run, key, op }))
    }

    /// Returns the run's documents as committed, without those staged by this action.
    pub async fn documents(&self, mut query: DocumentQuery) -> Result<Page<Document>, ActionError> {
        self.needs_a_run("have documents")?;
        query.run = self.run();
        Ok(self.0.store.documents(self.0.scope, query).await.map(crate::lists::shown)?)
    }

    /// Returns the status of another run of the same tenant; `None` if the run does not exist.
    pub async fn status_of(&self, run: RunId) -> Result<Option<Status>, StoreError> {
        Ok(self.0.store.load(self.0.scope, run).await?.map(|loaded| loaded.head.status))
    }

    /// Returns true if the workflow is in the tenant's catalogue and disabled for new runs.
    pub(crate) async fn is_inactive(&self, workflow: &Name) -> Result<bool, StoreError> {
        let Shared { store, scope, host, catalogues, .. } = &*self.0;
        Ok(catalogues.known(&**store, *scope, host.now()).await?.is_inactive(workflow))
    }

    /// Returns true if the action is over: it finished, timed out or was cancelled, or its run belongs to another
    /// process. Meant for tasks that the action has spawned; the action itself is simply dropped.
    pub fn is_over(&self) -> bool {
        self.0.over.is.load(Ordering::Acquire)
    }

    /// Completes when the action is over.
    pub async fn over(&self) {
        let told = self.0.over.told.notified();
        if !self.is_over() {
            told.await;
        }
    }

    fn stage(&self, put: impl FnOnce(&mut Staged)) -> Result<(), ActionError> {
        match self.lock().as_mut() {
            Some(staged) => {
                put(staged);
                Ok(())
            }
            None => {
                Err(ActionError::new("actionEnded", "the action is over: its changes are no longer accepted")
                    .non_retryable())
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Staged>> {
        self.0.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the action and returns its staged changes. Returns `None` on a second call.
    pub(crate) fn close(&self) -> Option<Staged> {
        self.0.over.is.store(true, Ordering::Release);
        self.0.over.told.notify_waiters();
        self.lock().take()
    }

    /// Returns the changes of an action to the context and the session slots, as patches for a state that may have
    /// changed meanwhile.
    pub(crate) fn patches(&self, staged: &Staged, has_moved: bool) -> (Patch, Patch) {
        let snapshot = &self.0.snapshot;
        let context = staged.context.as_ref().filter(|_| has_moved);
        let context = context.map(|after| Patch::between(snapshot.context(), after)).unwrap_or_default();
        let session = staged.session.as_ref().map(|after| {
            let before = Value::Object(snapshot.session().clone());
            Patch::between(&before, &Value::Object(after.clone()))
        });
        (context, session.unwrap_or_default())
    }
}

impl std::fmt::Debug for Cx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cx").field("run", &self.run()).field("call", &self.0.call).finish_non_exhaustive()
    }
}

fn json<T: Serialize>(value: &T) -> Result<Value, ActionError> {
    serde_json::to_value(value).map_err(|error| {
        ActionError::new("invalidOutput", format!("the value cannot be serialized as JSON: {error}"))
            .non_retryable()
    })
}
