//! What an action is given: it reads through its context and stages its writes, which are committed with its result.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use stepwell_core::patch::Patch;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{ActionCall, Name, RunId, Snapshot, Timestamp};
use stepwell_store::{
    Cell, CellFilter, CellKey, CellQuery, CellWrite, Document, DocumentOp, DocumentQuery, DocumentWrite,
    Page, Record, RecordQuery, Space, Status, Store, StoreError, TenantScope,
};
use tokio::sync::Notify;

use crate::action::ActionError;
use crate::engine::Inner;
use crate::host::Host;
use crate::registry::Workflow;
use crate::standing::Standing;
use crate::start::{START, Start, run_of};

/// What an action is given. Clones are the same context.
#[derive(Clone)]
pub struct Cx(Arc<Shared>);

struct Shared {
    call: ActionCall,
    workflow: Arc<Workflow>,
    snapshot: Arc<Snapshot>,
    root: RunId,
    attempt: u32,
    store: Arc<dyn Store>,
    scope: TenantScope,
    host: Host,
    is_stateless: bool,
    /// Taken out when the action is over: what is staged after that is nowhere.
    staged: Mutex<Option<Staged>>,
    over: Over,
}

/// What an action has staged.
#[derive(Default)]
pub(crate) struct Staged {
    pub(crate) context: Option<Arc<Value>>,
    pub(crate) session: Option<Map<String, Value>>,
    pub(crate) locals: Map<String, Value>,
    pub(crate) cells: Vec<CellWrite>,
    pub(crate) signals: Vec<(RunId, Name, Value)>,
    pub(crate) children: Vec<Start>,
    pub(crate) starts: Vec<(RunId, Start)>,
    pub(crate) documents: Vec<DocumentWrite>,
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
        inner: &Inner,
        scope: TenantScope,
        standing: &Standing,
        call: ActionCall,
        attempt: u32,
    ) -> Self {
        Cx(Arc::new(Shared {
            call,
            workflow: standing.workflow.clone(),
            snapshot: standing.snapshot.clone(),
            root: standing.root,
            attempt,
            store: inner.store.clone(),
            scope,
            host: inner.host.clone(),
            is_stateless: inner.is_stateless,
            staged: Mutex::new(Some(Staged::default())),
            over: Over::default(),
        }))
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
    pub fn session(&self, key: &str) -> Option<Value> {
        let staged = self.lock();
        let slots = staged.as_ref().and_then(|staged| staged.session.as_ref());
        slots.unwrap_or_else(|| self.0.snapshot.session()).get(key).cloned()
    }

    /// Stages a session slot; null takes it away.
    pub fn set_session<T: Serialize>(&self, key: impl Into<String>, value: &T) -> Result<(), ActionError> {
        let (key, value) = (key.into(), json(value)?);
        let before = self.0.snapshot.session();
        self.stage(|staged| {
            let slots = staged.session.get_or_insert_with(|| before.clone());
            match value {
                Value::Null => drop(slots.remove(&key)),
                value => drop(slots.insert(key, value)),
            }
        })
    }

    /// Stages something that only the activation in the next place sees.
    pub fn set_local<T: Serialize>(&self, key: impl Into<String>, value: &T) -> Result<(), ActionError> {
        let (key, value) = (key.into(), json(value)?);
        self.stage(|staged| drop(staged.locals.insert(key, value)))
    }

    /// Stages an operation on a cell.
    pub fn write(&self, mut write: CellWrite) -> Result<(), ActionError> {
        if write.key.space == Space::Kv {
            self.needs_a_store("write to the data store")?;
        }
        write.by = write.by.or(Some(self.run()));
        self.stage(|staged| staged.cells.push(write))
    }

    /// A cell as it is committed; what this action has staged is not in it.
    pub async fn read(&self, key: &CellKey) -> Result<Option<Cell>, StoreError> {
        let CellKey { space, owner, key } = key.clone();
        let query = CellQuery {
            space,
            owner,
            filter: CellFilter::Key(key),
            now: self.now(),
            with_dead: false,
            limit: 1,
            cursor: None,
        };
        Ok(self.0.store.cells(self.0.scope, query).await?.items.pop())
    }

    /// Stages a child: it is started with the transition, and its end resolves the wait that the transition leads to.
    pub fn start_child(&self, child: Start) -> Result<(), ActionError> {
        self.needs_a_store("start a child")?;
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
        let query = RecordQuery::Key { operation: START.to_owned(), key: key.clone(), now: self.now() };
        let known = self.0.store.records(self.0.scope, query).await?.items.into_iter().next();
        if let Some(Record::Key(record)) = known {
            return if record.request == asked { Ok(run_of(record.answer.as_ref())?) } else { Err(reused()) };
        }
        self.stage(|staged| staged.starts.push((run, start)))?;
        Ok(run)
    }

    /// A pass that writes nothing down reaches nobody.
    fn needs_a_store(&self, what: &str) -> Result<(), ActionError> {
        if !self.0.is_stateless {
            return Ok(());
        }
        let why = format!("a run that is not written down cannot {what}");
        Err(ActionError::new("stateless", why).finally())
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
        let run = self.run();
        self.stage(|staged| staged.documents.push(DocumentWrite { run, key, op }))
    }

    /// The run's documents as they are committed; what this action has staged is not in them.
    pub async fn documents(&self, mut query: DocumentQuery) -> Result<Page<Document>, StoreError> {
        query.run = self.run();
        self.0.store.documents(self.0.scope, query).await
    }

    /// How another run of the same tenant is doing; `None` = there is no such run.
    pub async fn status_of(&self, run: RunId) -> Result<Option<Status>, StoreError> {
        Ok(self.0.store.load(self.0.scope, run).await?.map(|loaded| loaded.head.status))
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
