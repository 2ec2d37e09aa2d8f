//! What an action is given: it reads through its context and stages its writes, which are committed with its result.

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
    Cell, CellKey, CellWrite, Document, DocumentOp, DocumentQuery, DocumentWrite, FillPart, KeyWrite,
    LinkWrite, OpResult, Page, Record, RecordQuery, Send, ShadowWrite, Space, Status, Store, StoreError,
    TenantScope,
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
use crate::fills::overlaid;
use crate::flow::outlet::Outgoing;
use crate::host::Host;
use crate::observe::{SpanId, Subject, Trial, traceparent};
use crate::registry::Workflow;
use crate::standing::Standing;
use crate::start::{Start, run_of};

/// What an action is given. Clones are the same context.
#[derive(Clone)]
pub struct Cx(Arc<Shared>);

struct Shared {
    call: ActionCall,
    workflow: Arc<Workflow>,
    snapshot: Arc<Snapshot>,
    root: RunId,
    parent: Option<RunId>,
    attempt: u32,
    /// Tells tries apart that count as the same.
    nonce: u64,
    store: Arc<dyn Store>,
    inner: Arc<Inner>,
    scope: TenantScope,
    host: Host,
    rests: Rests,
    limits: Limits,
    keys_kept_ms: u64,
    catalogues: Arc<crate::catalogue::Catalogues>,
    /// Taken out when the action is over: what is staged after that is nowhere.
    staged: Mutex<Option<Staged>>,
    /// How many events it has made.
    emitted: AtomicU64,
    over: Over,
}

/// Where the state of an action's run rests: not everywhere can everything be done.
#[derive(Debug, Clone)]
pub(crate) enum Rests {
    /// In a run of its own.
    Durable,
    /// Nowhere: nothing is written down.
    Nowhere,
    /// In a token or behind a handle. Steps before this one have staged this, which is committed with its own.
    Flow(Arc<Before>),
}

/// What steps before an action have staged that are committed together with it.
#[derive(Debug, Default)]
pub(crate) struct Before {
    pub(crate) cells: Vec<CellWrite>,
    /// Keys of what happens once.
    pub(crate) keys: Vec<KeyWrite>,
}

/// What an action has staged.
#[derive(Default)]
pub(crate) struct Staged {
    pub(crate) context: Option<Arc<Value>>,
    pub(crate) session: Option<Map<String, Value>>,
    pub(crate) locals: Map<String, Value>,
    pub(crate) cells: Vec<CellWrite>,
    pub(crate) links: Vec<LinkWrite>,
    /// Writes to cells that the whole action is run again for if they are lost, and how often.
    pub(crate) updates: BTreeMap<usize, u32>,
    pub(crate) fills: Vec<(Op, FillPart, String)>,
    /// Keys, and the changes that happen once under each.
    pub(crate) keys: Vec<(KeyWrite, Vec<Op>)>,
    pub(crate) signals: Vec<(RunId, Name, Value)>,
    pub(crate) children: Vec<Start>,
    pub(crate) starts: Vec<(RunId, Start)>,
    /// Messages to other runs.
    pub(crate) posts: Vec<Send>,
    /// Shadow columns of the run that are not read from its data.
    pub(crate) shadows: Vec<ShadowWrite>,
    pub(crate) documents: Vec<DocumentWrite>,
    /// Where the flow rests from its next pause on.
    pub(crate) swap: Option<String>,
    /// What is sent out at the next pause.
    pub(crate) outgoing: Option<Outgoing>,
}

/// A change that an action has staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// To a cell, by its place among those to cells.
    Cell(usize),
    /// To links, by its place among those to links.
    Link(usize),
}

/// What became of changes that happen only once.
#[derive(Debug, Clone, PartialEq)]
pub enum Once {
    /// They are staged, and known by these numbers; by none if they had been staged before, by this action or by a step of
    /// the same flow that is committed with it.
    Staged(Vec<Op>),
    /// They have been made before, with these results.
    Before(Vec<OpResult>),
}

/// Tells what an action has spawned that the action is over.
#[derive(Default)]
struct Over {
    is: AtomicBool,
    told: Notify,
}

impl Cx {
    /// What an action of this run is given.
    pub(crate) fn new(
        inner: &Arc<Inner>,
        scope: TenantScope,
        standing: &Standing,
        call: ActionCall,
        attempt: u32,
        rests: Rests,
    ) -> Self {
        Cx(Arc::new(Shared {
            nonce: inner.pulse(),
            parent: standing.parent.as_ref().map(|parent| parent.run),
            call,
            workflow: standing.workflow.clone(),
            snapshot: standing.snapshot.clone(),
            root: standing.root,
            attempt,
            store: inner.store.clone(),
            inner: inner.clone(),
            scope,
            host: inner.host.clone(),
            rests,
            limits: inner.options.limits.clone(),
            keys_kept_ms: inner.options.keys_kept_ms,
            catalogues: inner.catalogues.clone(),
            staged: Mutex::new(Some(Staged::default())),
            emitted: AtomicU64::new(0),
            over: Over::default(),
        }))
    }

    /// What is being called, with the names of secrets in its input.
    pub(crate) fn call(&self) -> &ActionCall {
        &self.0.call
    }

    /// The run.
    pub fn run(&self) -> RunId {
        self.0.snapshot.instance_id()
    }

    /// The root of the run's tree: itself, if it has no parent.
    pub fn root(&self) -> RunId {
        self.0.root
    }

    /// The workflow's name.
    pub fn workflow(&self) -> &Name {
        self.0.snapshot.workflow()
    }

    /// The transition that the action is for.
    pub fn transition(&self) -> &Name {
        &self.0.call.transition
    }

    /// The activation that the transition moves.
    pub fn activation(&self) -> ActivationId {
        self.0.call.activation
    }

    /// Which try this is, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// A key for calls to the outside: every try of this transition has the same one, the next pass of a loop another.
    pub fn idempotency_key(&self) -> String {
        format!("{}-{}", self.run(), self.0.call.activation)
    }

    /// The `traceparent` (W3C Trace Context) for calls to the outside: whoever takes part in the trace is found there
    /// under this try. The id of the trace is the id of the tree's root.
    pub fn traceparent(&self) -> String {
        traceparent(self.root(), self.span(), self.0.inner.is_traced(self.root()))
    }

    /// By what a trace knows this try.
    fn span(&self) -> SpanId {
        SpanId::of_try(self.run(), self.0.call.activation, self.0.attempt, self.0.nonce)
    }

    /// The run, for whoever listens.
    pub(crate) fn subject(&self) -> Subject<'_> {
        let (run, root, parent) = (self.run(), self.root(), self.0.parent);
        Subject { tenant: self.0.scope.tenant(), run, root, parent, workflow: self.workflow() }
    }

    /// The try, for whoever listens.
    pub(crate) fn tried(&self) -> Trial<'_> {
        let ActionCall { action, transition, activation, .. } = &self.0.call;
        let (attempt, span) = (self.0.attempt, self.span());
        Trial { action, transition, activation: *activation, attempt, span }
    }

    /// What the signal, timer or wait that triggered the transition brought.
    pub fn payload(&self) -> &Value {
        &self.0.call.payload
    }

    /// The engine's time.
    pub fn now(&self) -> Timestamp {
        self.0.host.now()
    }

    /// The run's state as it was when the action began.
    pub fn snapshot(&self) -> &Snapshot {
        &self.0.snapshot
    }

    /// The run's data, with what this action has staged on top.
    pub fn state<S: DeserializeOwned>(&self) -> Result<S, ActionError> {
        let staged = self.lock();
        let context = staged.as_ref().and_then(|staged| staged.context.as_deref());
        let context = context.unwrap_or_else(|| self.0.snapshot.context());
        S::deserialize(context).map_err(|error| {
            ActionError::new("invalidState", format!("the run's data is not what the action reads: {error}"))
                .finally()
        })
    }

    /// Stages the run's data as a whole: what differs from the data as it was is written, field by field.
    pub fn set_state<S: Serialize>(&self, state: &S) -> Result<(), ActionError> {
        let context = json(state)?;
        self.stage(|staged| staged.context = Some(Arc::new(context)))
    }

    /// Reads the run's data, changes it and stages it.
    pub fn update_state<S, T>(&self, change: impl FnOnce(&mut S) -> T) -> Result<T, ActionError>
    where
        S: DeserializeOwned + Serialize,
    {
        let mut state = self.state::<S>()?;
        let given = change(&mut state);
        self.set_state(&state)?;
        Ok(given)
    }

    /// A session slot: private to the run.
    pub fn session<T: Serialize + DeserializeOwned>(&self, key: impl Into<String>) -> Session<T> {
        Session::new(self.clone(), key.into())
    }

    /// A slot that the root of the run's tree and everything below it share.
    pub fn execution<T: Serialize + DeserializeOwned>(&self, key: impl Into<String>) -> StagedSlot<T> {
        StagedSlot::new(self.clone(), Space::Execution, self.root().to_string(), key.into())
    }

    /// A slot that all runs of the workflow share.
    pub fn workflow_scope<T: Serialize + DeserializeOwned>(&self, key: impl Into<String>) -> StagedSlot<T> {
        StagedSlot::new(self.clone(), Space::Workflow, self.workflow().as_str().to_owned(), key.into())
    }

    /// The keys of a namespace.
    pub fn kv(&self, namespace: impl Into<String>) -> StagedKv {
        StagedKv::new(self.clone(), namespace.into())
    }

    /// The links of a namespace.
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

    /// Stages something that the activation in the next place sees, and those that come after it on its way.
    pub fn set_local<T: Serialize>(&self, key: impl Into<String>, value: &T) -> Result<(), ActionError> {
        let (key, value) = (key.into(), json(value)?);
        self.stage(|staged| drop(staged.locals.insert(key, value)))
    }

    /// Stages an operation on a cell.
    pub fn write(&self, write: CellWrite) -> Result<(), ActionError> {
        self.stage_changes(Changes::new().cell(Ok(write))).map(drop)
    }

    /// Stages changes to the data; gives each one's number, for [`Cx::fill`]. Changes that happen only once are staged by
    /// [`Cx::write_once`].
    pub fn stage_changes(&self, changes: Changes) -> Result<Vec<Op>, ActionError> {
        if changes.once.is_some() {
            let why = "changes with a key may find that they have been made: use `write_once`";
            return Err(ActionError::new("invalid", why).finally());
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
            self.needs_a_run("have slots that its children share")?;
        }
        let run = self.run();
        let key = changes.key(self.now().plus_ms(self.0.keys_kept_ms));
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

    /// Stages changes that happen only once, by their key. If they have been made before, also by another run, nothing is
    /// staged and their results are given. If somebody else uses the key before this action's result is committed, the action
    /// is run once more.
    pub async fn write_once(&self, changes: Changes) -> Result<Once, ActionError> {
        let (Some(key), order) = (changes.key(self.now()), changes.order.clone()) else {
            return Ok(Once::Staged(self.stage_changes(changes)?));
        };
        self.permit(Permission::Manage)?;
        self.needs_a_store("write to the data store")?;
        let reused = || {
            let why =
                format!("key `{}` was used for other changes: use a new key for a new request", key.key);
            ActionError::new("keyReused", why).finally()
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

    /// Stages a value that was made of another; if that one has changed at the commit, the action is run again.
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

    /// Has a part of a staged change's result put into the action's output when it is known: at the commit. `pointer` is a
    /// JSON pointer into the output, whose parent has to be an object that is there; until then the output has a value
    /// of the same kind there. It reaches what `saveAs` names, not the history's copy of the output.
    pub fn fill(&self, op: Op, part: FillPart, pointer: impl Into<String>) -> Result<(), ActionError> {
        let pointer = pointer.into();
        self.stage(|staged| staged.fills.push((op, part, pointer)))
    }

    /// A cell with what this action has staged on top, tombstones too.
    pub(crate) async fn overlaid(&self, key: &CellKey) -> Result<Option<Cell>, ActionError> {
        let now = self.now();
        let mut cell = self.0.store.cells(self.0.scope, one(key.clone(), now, true)).await?.items.pop();
        if let Rests::Flow(before) = &self.0.rests {
            cell = overlaid(cell, &before.cells, key, now, self.limits());
        }
        let staged: Vec<CellWrite> = {
            let staged = self.lock();
            let all = staged.iter().flat_map(|staged| &staged.cells);
            all.filter(|write| write.key == *key).cloned().collect()
        };
        for write in staged {
            let unfit = |error| ActionError::new("invalid", format!("what is staged for {key}: {error}"));
            if let (Some(after), _) = write.apply(cell.clone(), now, self.limits()).map_err(unfit)? {
                cell = Some(after);
            }
        }
        Ok(cell)
    }

    /// Refuses what the workflow's publisher may not do.
    pub(crate) fn permit(&self, permission: Permission) -> Result<(), ActionError> {
        permit(self.0.workflow.publisher(), permission)
            .map_err(|denied| ActionError::new("denied", denied.to_string()).finally())
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

    /// Stages a run of its own whose key, if it has one, is free.
    pub(crate) fn stage_start(&self, run: RunId, start: Start) -> Result<(), ActionError> {
        self.stage(|staged| staged.starts.push((run, start)))
    }

    /// Stages a message to another run.
    pub(crate) fn post(&self, send: Send) -> Result<(), ActionError> {
        self.stage(|staged| staged.posts.push(send))
    }

    /// Stages a shadow column of the run that is not read from its data.
    pub(crate) fn shade(&self, column: ShadowWrite) -> Result<(), ActionError> {
        self.stage(|staged| staged.shadows.push(column))
    }

    /// Stages an event: it is accepted with the transition, once for each source and id. Without an id it has one of its
    /// own, which every try of this transition gives it.
    pub async fn emit(&self, event: Event) -> Result<RunId, ActionError> {
        self.needs_a_store("emit an event")?;
        let number = self.0.emitted.fetch_add(1, Ordering::Relaxed);
        let source = || format!("stepwell/{}", self.workflow());
        let event = event.or(source, || format!("{}-{number}", self.idempotency_key()));
        let start = self.0.inner.accepting(self.0.scope, &event).await.map_err(|error| match error {
            wrong @ (EngineError::Invalid(_) | EngineError::Limit(_)) => {
                ActionError::new("invalidInput", wrong.to_string()).finally()
            }
            other => ActionError::from(other),
        })?;
        self.start_once(start).await
    }

    /// A cell as it is committed; what this action has staged is not in it.
    pub async fn read(&self, key: &CellKey) -> Result<Option<Cell>, ActionError> {
        self.permit_read()?;
        let query = one(key.clone(), self.now(), false);
        Ok(self.0.store.cells(self.0.scope, query).await?.items.pop())
    }

    /// Has the flow rest elsewhere from its next pause on: by the name of a strategy, or `durable`. A durable run stays one,
    /// whatever it is asked for.
    pub fn rest_in(&self, strategy: impl Into<String>) -> Result<(), ActionError> {
        let strategy = strategy.into();
        self.stage(|staged| staged.swap = Some(strategy))
    }

    /// Has a link sent out at the next pause: only it resumes the flow from there.
    pub fn send_out(&self, outgoing: Outgoing) -> Result<(), ActionError> {
        outgoing.check()?;
        self.stage(|staged| staged.outgoing = Some(outgoing))
    }

    /// Says what whoever answers next on this way is asked.
    pub fn prompt<T: Serialize>(&self, prompt: &T) -> Result<(), ActionError> {
        self.set_local(PROMPT, prompt)
    }

    /// Stages a child: it is started with the transition, and its end resolves the wait that the transition leads to.
    pub fn start_child(&self, child: Start) -> Result<(), ActionError> {
        self.needs_a_store("start a child")?;
        self.needs_a_run("start a child")?;
        if child.key.is_some() {
            return Err(ActionError::new("invalidStart", "a child has its parent instead of a key").finally());
        }
        self.stage(|staged| staged.children.push(child))
    }

    /// Stages a run of its own, started with the transition; it has no parent. Gives its id.
    pub fn start(&self, start: Start) -> Result<RunId, ActionError> {
        self.needs_a_store("start a run")?;
        if start.key.is_some() {
            let why = "a start with a key may find that its run is there: use `start_once`";
            return Err(ActionError::new("invalidStart", why).finally());
        }
        let run = start.id.unwrap_or_else(|| RunId::new(self.0.host.ids.next()));
        self.stage(|staged| staged.starts.push((run, start)))?;
        Ok(run)
    }

    /// The same for a start with a key: gives the id of the run that was started under it, if there is one. If somebody
    /// else uses the key before this action's result is committed, the action is run once more.
    pub async fn start_once(&self, start: Start) -> Result<RunId, ActionError> {
        self.needs_a_store("start a run")?;
        let Some(key) = start.key.clone() else { return self.start(start) };
        let same = |(_, other): &&(RunId, Start)| other.key.as_ref() == Some(&key);
        let staged = self.lock().as_ref().and_then(|staged| staged.starts.iter().find(same).cloned());
        let run = start.id.unwrap_or_else(|| RunId::new(self.0.host.ids.next()));
        let asked = start.key_for(run).map(|key| key.request);
        let reused = || {
            let why = format!("key `{key}` was used for another start: use a new key for a new request");
            ActionError::new("keyReused", why).finally()
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

    /// The key of something that a step before this action has staged, which is committed together with it.
    fn staged_before(&self, operation: &str, key: &str) -> Option<&KeyWrite> {
        let Rests::Flow(before) = &self.0.rests else { return None };
        before.keys.iter().find(|other| other.operation == operation && other.key == key)
    }

    /// A pass that writes nothing down reaches nobody.
    fn needs_a_store(&self, what: &str) -> Result<(), ActionError> {
        if !matches!(self.0.rests, Rests::Nowhere) {
            return Ok(());
        }
        let why = format!("a run that is not written down cannot {what}");
        Err(ActionError::new("stateless", why).finally())
    }

    /// A flow that rests in a token or behind a handle has no rows of its own.
    fn needs_a_run(&self, what: &str) -> Result<(), ActionError> {
        if !matches!(self.0.rests, Rests::Flow(_)) {
            return Ok(());
        }
        let why = format!(
            "a flow that rests in a token or behind a handle cannot {what}: let it rest as a durable run"
        );
        Err(ActionError::new("notDurable", why).finally())
    }

    /// Stages a signal to another run of the same tenant; one that has ended does not hear it.
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

    /// Stages a document of the run; one of the same key is replaced. It has to fit the schema that the workflow gives
    /// for its kind.
    pub fn put_document<T: Serialize>(
        &self,
        key: impl Into<String>,
        kind: impl Into<Name>,
        body: &T,
        tags: &[&str],
    ) -> Result<(), ActionError> {
        let (kind, body) = (kind.into(), json(body)?);
        let fits = self.0.workflow.definition.check_document(&kind, &body);
        fits.map_err(|error| ActionError::new("invalidDocument", error.to_string()).finally())?;
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let op = DocumentOp::Put { kind, body: Bytes::from(body.to_string()), tags };
        self.document(key.into(), op)
    }

    /// Stages that a document is no longer visible.
    pub fn remove_document(&self, key: impl Into<String>) -> Result<(), ActionError> {
        self.document(key.into(), DocumentOp::Remove)
    }

    fn document(&self, key: String, op: DocumentOp) -> Result<(), ActionError> {
        self.needs_a_run("have documents")?;
        let run = self.run();
        self.stage(|staged| staged.documents.push(DocumentWrite { run, key, op }))
    }

    /// The run's documents as they are committed; what this action has staged is not in them.
    pub async fn documents(&self, mut query: DocumentQuery) -> Result<Page<Document>, StoreError> {
        query.run = self.run();
        self.0.store.documents(self.0.scope, query).await.map(crate::lists::shown)
    }

    /// How another run of the same tenant is doing; `None` = there is no such run.
    pub async fn status_of(&self, run: RunId) -> Result<Option<Status>, StoreError> {
        Ok(self.0.store.load(self.0.scope, run).await?.map(|loaded| loaded.head.status))
    }

    /// A workflow of the tenant's catalogue that cannot be started.
    pub(crate) async fn is_inactive(&self, workflow: &Name) -> Result<bool, StoreError> {
        let Shared { store, scope, host, catalogues, .. } = &*self.0;
        Ok(catalogues.known(&**store, *scope, host.now()).await?.is_inactive(workflow))
    }

    /// The action is over: it has timed out, was cancelled, or its run belongs to another process. For what the action
    /// has spawned; the action itself is simply dropped.
    pub fn is_over(&self) -> bool {
        self.0.over.is.load(Ordering::Acquire)
    }

    /// Is done when the action is over.
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
                Err(ActionError::new("over", "the action is over: nothing can be staged any more").finally())
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Staged>> {
        self.0.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the action: gives what it has staged, once.
    pub(crate) fn close(&self) -> Option<Staged> {
        self.0.over.is.store(true, Ordering::Release);
        self.0.over.told.notify_waiters();
        self.lock().take()
    }

    /// What an action has changed in the context and the session slots of a run that may have moved meanwhile.
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
        ActionError::new("invalidOutput", format!("this cannot be written as JSON: {error}")).finally()
    })
}
