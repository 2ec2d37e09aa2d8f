//! The engine: what programs hold on to, and what all of its parts share.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell_core::graph::Graph;
use stepwell_core::snapshot::Finished;
use stepwell_core::{Definition, DefinitionHash, Limits, Name, RunId, Snapshot, Timestamp};
use stepwell_store::{
    Document, DocumentQuery, Loaded, Page, ProcessId, RecordQuery, RunKey, Status, Store, TenantId,
    TenantScope,
};
use tokio::sync::Notify;

use crate::action::{Action, ActionInfo, BoxAction, boxed};
use crate::actor::{Actor, Permission};
use crate::error::{EngineError, RunError};
use crate::host::Host;
use crate::ledger::Ledger;
use crate::observe::Observer;
use crate::once::Done;
use crate::recent::Recent;
use crate::registry::{GuardInput, Registry, Workflow};
use crate::room::{Pass, Room};
use crate::runner;
use crate::schedule;
use crate::signal::{Signal, Signalled};
use crate::slots::{End, Slot, Slots};
use crate::standing::Standing;
use crate::start::{START, Start, Started};
use crate::wakes::Wakes;

/// How an engine works. Every field has a default.
#[derive(Debug, Clone)]
pub struct Options {
    /// Runs this process works on at a time; 0 = it only starts and signals them.
    pub max_runs: usize,
    /// Runs of one workflow that this process works on at a time.
    pub max_runs_of: BTreeMap<Name, usize>,
    /// How long a process counts as living without a heartbeat.
    pub lease_ms: u64,
    /// How often the store is asked for work when nothing says that there is some.
    pub poll_ms: u64,
    /// How often at most the store is asked for runs whose time has come.
    pub tick_ms: u64,
    /// How often a process may die under one transition before the run stops.
    pub max_crashes: u32,
    /// How long a signal that nothing takes is kept.
    pub signal_kept_ms: u64,
    /// How long an event waits for runs that come to wait for it.
    pub events_kept_ms: u64,
    /// Triggers of type `schedule` become schedules.
    pub plans_triggers: bool,
    /// How long a run is kept after its end; `None` = for ever.
    pub retention_ms: Option<u64>,
    /// How long a handle is kept after it is over; `None` = for ever.
    pub handles_kept_ms: Option<u64>,
    /// How long the key of a write holds.
    pub keys_kept_ms: u64,
    /// How long what is left of a deleted or expired key is kept, by namespace; for ever in one that is not named. After
    /// that the key counts as never written, and its revisions begin anew.
    pub tombstones_kept_ms: BTreeMap<String, u64>,
    /// How often is tidied up.
    pub upkeep_ms: u64,
    /// The limits in force.
    pub limits: Limits,
}

/// Runs are kept for this long after their end unless the options say otherwise: 30 days.
pub const DEFAULT_RETENTION_MS: u64 = 30 * 24 * 3_600_000;
/// Signals that nothing takes are kept for this long unless the options say otherwise: 7 days.
pub const DEFAULT_SIGNAL_KEPT_MS: u64 = 7 * 24 * 3_600_000;

/// Keys of writes hold for this long unless the options say otherwise: 7 days.
pub const DEFAULT_KEYS_KEPT_MS: u64 = 7 * 24 * 3_600_000;

impl Default for Options {
    fn default() -> Self {
        Options {
            max_runs: 256,
            max_runs_of: BTreeMap::new(),
            lease_ms: 15_000,
            poll_ms: 1_000,
            tick_ms: 25,
            max_crashes: 5,
            signal_kept_ms: DEFAULT_SIGNAL_KEPT_MS,
            events_kept_ms: crate::events::DEFAULT_EVENTS_KEPT_MS,
            plans_triggers: true,
            retention_ms: Some(DEFAULT_RETENTION_MS),
            handles_kept_ms: Some(0),
            keys_kept_ms: DEFAULT_KEYS_KEPT_MS,
            tombstones_kept_ms: BTreeMap::new(),
            upkeep_ms: 60_000,
            limits: Limits::default(),
        }
    }
}

/// A planted bug: see [`crate::testing::know_runs_by_id_alone`].
pub(crate) static BY_ID_ALONE: AtomicBool = AtomicBool::new(false);

/// What a process knows a run by that it works on.
fn known(run: RunKey) -> RunKey {
    if BY_ID_ALONE.load(Ordering::Relaxed) { TenantScope::single().run(run.run) } else { run }
}

/// Names that a process has given up and still remembers: by then the store has found them dead.
const GIVEN_UP_KEPT: usize = 64;

/// Puts an engine together: definitions, actions, guards and options.
pub struct Builder {
    store: Arc<dyn Store>,
    scope: TenantScope,
    host: Host,
    options: Options,
    observer: Option<Arc<dyn Observer>>,
    pub(crate) registry: Registry,
}

impl Builder {
    /// Makes a workflow known; starts by its name get the highest version.
    #[must_use]
    pub fn workflow(self, definition: Definition) -> Self {
        self.registry.add(definition).published_by(None);
        self
    }

    /// Registers an action: an async function of a [`Cx`](crate::Cx), or of one and an input.
    #[must_use]
    pub fn action<Shape: 'static>(mut self, name: impl Into<Name>, action: impl Action<Shape>) -> Self {
        self.registry.actions.insert(name.into(), boxed(action));
        self
    }

    /// Registers an action with what editors show of it: what it does, and JSON schemas of its input and output.
    #[must_use]
    pub fn described<F, Fut, I, O, E>(
        mut self,
        name: impl Into<Name>,
        about: impl Into<String>,
        action: F,
    ) -> Self
    where
        F: Fn(crate::Cx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, E>> + Send + 'static,
        I: DeserializeOwned + schemars::JsonSchema + Send + 'static,
        O: serde::Serialize + schemars::JsonSchema + 'static,
        E: Into<crate::ActionError> + 'static,
    {
        let name = name.into();
        let info = ActionInfo::of::<I, O>(name.clone(), about.into());
        let lists = crate::fit::lists(&info.input);
        if !lists.is_empty() {
            self.registry.lists.insert(name.clone(), lists);
        }
        self.registry.described.insert(name.clone(), info);
        self.action(name, action)
    }

    /// Puts something around an action, or in the place of one that is not registered; `version` is the one that is called.
    #[must_use]
    pub(crate) fn wrapped(
        mut self,
        name: Name,
        version: Option<u32>,
        wrap: impl FnOnce(Option<BoxAction>) -> BoxAction,
    ) -> Self {
        let real = self.registry.actions.remove(&name);
        if let (None, Some(version)) = (&real, version) {
            let info = ActionInfo::of::<Value, Value>(name.clone(), "").version(version);
            self.registry.described.insert(name.clone(), info);
        }
        if real.is_none() {
            // What is not here may take secrets anywhere.
            self = self.secret_fields(name.clone(), [""]);
        }
        self.registry.actions.insert(name, wrap(real));
        self
    }

    /// Says more of an action that was registered with what it does.
    #[must_use]
    pub fn describe(mut self, name: &str, change: impl FnOnce(ActionInfo) -> ActionInfo) -> Self {
        if let Some(info) = self.registry.described.remove(name) {
            let info = change(info);
            self.registry.described.insert(info.name.clone(), info);
        }
        self
    }

    /// The actions that say what they do, in the order of their names.
    pub fn actions(&self) -> Vec<ActionInfo> {
        self.registry.described.values().cloned().collect()
    }

    /// Where `{"$secret": …}` in an action's input comes from; without it there are no secrets.
    #[must_use]
    pub fn secrets(mut self, secrets: impl crate::secrets::Secrets + 'static) -> Self {
        self.registry.secrets = Some(Arc::new(secrets));
        self
    }

    /// Lets secrets stand in the input of an action: at these JSON pointers and below them; the empty one is the whole input.
    /// Without this an action is given none, unless its description says that it takes some.
    #[must_use]
    pub fn secret_fields<F: Into<String>>(
        mut self,
        name: impl Into<Name>,
        fields: impl IntoIterator<Item = F>,
    ) -> Self {
        let (name, fields) = (name.into(), fields.into_iter().map(Into::into).collect());
        self.registry.secret_fields.insert(name, fields);
        self
    }

    /// Registers a named guard: an async function of what it is shown.
    #[must_use]
    pub fn guard<F, Fut>(mut self, name: impl Into<Name>, guard: F) -> Self
    where
        F: Fn(GuardInput) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.registry.guards.insert(name.into(), Arc::new(move |input| Box::pin(guard(input))));
        self
    }

    /// Whose runs the engine's own calls are about. It works on every tenant's.
    #[must_use]
    pub fn tenant(mut self, scope: TenantScope) -> Self {
        self.scope = scope;
        self
    }

    /// How it works.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Changes how it works.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// Who is told what happens: metrics, traces.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Another clock, other tasks, other ids.
    #[must_use]
    pub fn host(mut self, host: Host) -> Self {
        self.host = host;
        self
    }

    /// Begins to work. Refused when a workflow needs an action or a guard that is not registered: every one is named.
    pub async fn start(self) -> Result<Engine, EngineError> {
        let Builder { store, scope, host, options, observer, registry } = self;
        let inner = Inner::new(store, host, options, Arc::new(registry));
        let inner = Arc::new(Inner { observer, ..inner });
        inner.has_everything(scope).await?;
        inner.lock_tenants().insert(scope.tenant());
        runner::begin(&inner).await?;
        if inner.options.max_runs > 0 && inner.registry.has_schedules() {
            // It is tried again with the upkeep.
            if let Err(error) = inner.plan_triggers(scope).await {
                tracing::error!(%error, "schedules are not what triggers say yet");
            }
        }
        let _life = Arc::new(Life(inner.clone()));
        Ok(Engine { inner, scope, actor: None, _life })
    }
}

/// A durable workflow engine in this process. Clones are the same engine; when the last one is dropped, it stops.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
    pub(crate) scope: TenantScope,
    /// Who asks; nobody in particular = whoever embeds the engine, who may do everything.
    actor: Option<Arc<Actor>>,
    _life: Arc<Life>,
}

/// Stops the engine's tasks when nobody holds on to it any more.
struct Life(Arc<Inner>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.stop();
        self.0.abandon();
    }
}

impl Engine {
    /// An engine on this store, still to be put together.
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        let builder = Builder {
            store,
            scope: TenantScope::single(),
            host: Host::system(),
            options: Options::default(),
            observer: None,
            registry: Registry::default(),
        };
        let builder = crate::events::equip(schedule::equip(builder));
        crate::builtin::equip(crate::data::actions::equip(builder))
    }

    /// The same engine, for another tenant.
    #[must_use]
    pub fn for_tenant(&self, scope: TenantScope) -> Engine {
        self.inner.lock_tenants().insert(scope.tenant());
        Engine { scope, ..self.clone() }
    }

    /// The same engine, for a tenant of whom nobody knows yet whether there is one.
    pub(crate) fn scoped(&self, scope: TenantScope) -> Engine {
        Engine { scope, ..self.clone() }
    }

    /// The same engine, asked by somebody: they may do what their permissions say, and are named in the audit trail.
    #[must_use]
    pub fn acting(&self, actor: Actor) -> Engine {
        Engine { actor: Some(Arc::new(actor)), ..self.clone() }
    }

    /// Who asks, if it is not the embedding program itself.
    pub fn actor(&self) -> Option<&Actor> {
        self.actor.as_deref()
    }

    /// Who asks, as rows and the audit trail name them.
    pub(crate) fn actor_id(&self) -> Option<String> {
        self.actor().map(|actor| actor.id.clone())
    }

    /// Refuses what whoever asks may not do.
    pub(crate) fn permit(&self, permission: Permission) -> Result<(), EngineError> {
        permit(self.actor(), permission)
    }

    /// Refuses to let somebody work on tasks of an action that is not among theirs.
    pub(crate) fn permit_work(&self, action: &Name) -> Result<(), EngineError> {
        permit_work(self.actor(), action)
    }

    /// Begins a run.
    pub async fn start(&self, start: Start) -> Result<Run, EngineError> {
        self.permit(Permission::Manage)?;
        Ok(self.inner.start(self.scope, &start, None).await?.run.asked_by(self.actor.clone()))
    }

    /// Begins a run and says whether it is new: the same key gives the same run.
    pub async fn start_once(&self, start: Start) -> Result<Started, EngineError> {
        self.permit(Permission::Manage)?;
        let started = self.inner.start(self.scope, &start, None).await?;
        Ok(Started { run: started.run.asked_by(self.actor.clone()), ..started })
    }

    /// A run was begun with this key, and is still kept.
    pub async fn has_started(&self, key: &str) -> Result<bool, EngineError> {
        self.permit(Permission::Manage)?;
        let query = RecordQuery::Key { operation: START.to_owned(), key: key.to_owned(), now: self.now() };
        Ok(!self.inner.store.records(self.scope, query).await?.items.is_empty())
    }

    /// Signals the run that was started with this key, or begins it with the signal, in one commit.
    pub async fn start_or_signal(&self, start: Start, signal: Signal) -> Result<Started, EngineError> {
        self.permit(Permission::Manage)?;
        let started = self.inner.start_or_signal(self.scope, &start, &signal).await?;
        Ok(Started { run: started.run.asked_by(self.actor.clone()), ..started })
    }

    /// Signals a run.
    pub async fn signal(&self, run: RunId, signal: Signal) -> Result<Signalled, EngineError> {
        Ok(self.signal_once(run, signal).await?.came_to)
    }

    /// Signals a run and says whether the signal is new: the same id is the same signal.
    pub async fn signal_once(&self, run: RunId, signal: Signal) -> Result<Done<Signalled>, EngineError> {
        self.permit(Permission::Manage)?;
        self.inner.signal(self.scope, run, &signal.by(self.actor())).await
    }

    /// A run by its id; whether it is there shows when it is asked for something.
    pub fn run(&self, run: RunId) -> Run {
        Run::new(self.inner.clone(), self.scope, run, false).asked_by(self.actor.clone())
    }

    /// Makes a workflow known while the engine works.
    pub fn register(&self, definition: Definition) -> Result<(), EngineError> {
        self.permit(Permission::Publish)?;
        let known = self.inner.catalogues.held(self.scope.tenant());
        let lacks = self.inner.registry.missing(&definition, |name, version| known.does(name, version));
        if !lacks.is_empty() {
            let name = definition.name();
            return Err(EngineError::Invalid(format!("workflow `{name}` needs {}", lacks.join(", "))));
        }
        if let Some(wrong) = self.inner.registry.miscalls(&definition) {
            return Err(EngineError::Invalid(wrong));
        }
        if let Some(flows) = self.inner.flows.get() {
            flows.admits(&definition)?;
        }
        self.inner.registry.add(definition).published_by(self.actor.clone());
        self.inner.wake.notify_one();
        if self.inner.registry.has_schedules() {
            let (inner, scope) = (self.inner.clone(), self.scope);
            self.inner.host.spawn.spawn(Box::pin(async move {
                if let Err(error) = inner.plan_triggers(scope).await {
                    tracing::warn!(%error, "schedules are not what triggers say yet");
                }
            }));
        }
        Ok(())
    }

    /// The actions that say what they do, in the order of their names.
    pub fn actions(&self) -> Vec<ActionInfo> {
        self.inner.registry.described.values().cloned().collect()
    }

    /// The store it works on.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// How many runs this process works on now, and how many it may.
    pub fn room(&self) -> (usize, usize) {
        let most = self.inner.options.max_runs;
        (most.saturating_sub(self.inner.room.free()), most)
    }

    /// Whose runs its calls are about.
    pub fn scope(&self) -> TenantScope {
        self.scope
    }

    /// The engine's time.
    pub fn now(&self) -> Timestamp {
        self.inner.host.now()
    }

    /// Stops: no new action begins, those that run are given `grace` to finish, and every run is let go of, so that
    /// another process goes on with it at once.
    pub async fn stop(&self, grace: Duration) {
        self.inner.stop();
        let until = self.inner.host.now().plus_ms(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let over = self.inner.host.clock.sleep_until(until);
        tokio::select! {
            biased;
            () = self.inner.all_let_go() => {}
            () = over => {}
        }
        self.inner.abandon();
        runner::release(&self.inner).await;
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("tenant", &self.scope.tenant()).finish_non_exhaustive()
    }
}

/// Refuses what somebody may not do; nobody in particular may do everything.
pub(crate) fn permit(actor: Option<&Actor>, permission: Permission) -> Result<(), EngineError> {
    match actor {
        Some(actor) if !actor.may(permission) => {
            Err(EngineError::Denied { actor: actor.id.clone(), permission })
        }
        _ => Ok(()),
    }
}

/// The same for tasks of a remote action.
pub(crate) fn permit_work(actor: Option<&Actor>, action: &Name) -> Result<(), EngineError> {
    match actor {
        Some(actor) if !actor.grants.may_work_on(action) => {
            Err(EngineError::NotAWorker { actor: actor.id.clone(), action: action.clone() })
        }
        _ => Ok(()),
    }
}

/// A run, to be waited for, signalled and looked at.
#[derive(Clone)]
pub struct Run {
    inner: Arc<Inner>,
    scope: TenantScope,
    id: RunId,
    slot: Arc<Slot>,
    /// Who asks for it, if it is not the embedding program itself.
    actor: Option<Arc<Actor>>,
    /// It was begun after this was made: whatever becomes of it here is told.
    is_new: bool,
}

impl Run {
    pub(crate) fn new(inner: Arc<Inner>, scope: TenantScope, id: RunId, is_new: bool) -> Self {
        let slot = inner.slots.slot(scope.run(id));
        Run { inner, scope, id, slot, actor: None, is_new }
    }

    fn asked_by(mut self, actor: Option<Arc<Actor>>) -> Self {
        self.actor = actor;
        self
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn scope(&self) -> TenantScope {
        self.scope
    }

    /// Its id.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Waits for its result. A run that has failed is an error here; it may still be retried.
    pub async fn result(&self) -> Result<Value, RunError> {
        permit(self.actor.as_deref(), Permission::View)?;
        let is_unsure = match self.slot.end() {
            None => !self.is_new,
            // Somebody else may have retried it since.
            Some(End::Failed(_)) => true,
            Some(End::Completed(_) | End::Cancelled) => false,
        };
        if is_unsure {
            let standing = self.inner.load(self.scope, self.id).await?;
            self.inner.slots.clear(self.scope.run(self.id));
            self.inner.published(self.scope, &standing);
        }
        let poll_ms = self.inner.options.poll_ms;
        let mut pause_ms = (poll_ms / 20).max(1);
        loop {
            let told = self.slot.told();
            if let Some(end) = self.slot.end() {
                return end.into_result(self.id);
            }
            let clock = &self.inner.host.clock;
            tokio::select! {
                biased;
                () = told => continue,
                () = clock.sleep_until(clock.now().plus_ms(pause_ms)) => {}
            }
            if self.inner.is_held(self.scope.run(self.id)) {
                continue;
            }
            // Another process may have ended it.
            let standing = self.inner.load(self.scope, self.id).await?;
            self.inner.published(self.scope, &standing);
            pause_ms = (pause_ms * 2).min(poll_ms);
        }
    }

    /// Waits for its result as a value of a type.
    pub async fn result_as<T: DeserializeOwned>(&self) -> Result<T, RunError> {
        let result = self.result().await?;
        T::deserialize(&result).map_err(|error| RunError::Unfit { run: self.id, why: error.to_string() })
    }

    /// Signals it.
    pub async fn signal(&self, signal: Signal) -> Result<Signalled, EngineError> {
        permit(self.actor.as_deref(), Permission::Manage)?;
        Ok(self.inner.signal(self.scope, self.id, &signal.by(self.actor.as_deref())).await?.came_to)
    }

    /// How it stands now.
    pub async fn view(&self) -> Result<RunView, EngineError> {
        permit(self.actor.as_deref(), Permission::View)?;
        let standing = self.inner.load(self.scope, self.id).await?;
        Ok(RunView {
            status: standing.head.status,
            snapshot: standing.snapshot,
            wake: standing.head.wake,
            owner: standing.head.owner,
            kept_signals: standing.inbox.len(),
            ledger: standing.ledger,
        })
    }

    /// Its workflow as a picture, with how it stands laid over.
    pub async fn graph(&self) -> Result<Graph, EngineError> {
        permit(self.actor.as_deref(), Permission::View)?;
        let standing = self.inner.load(self.scope, self.id).await?;
        Ok(Graph::with_status(standing.definition(), &standing.snapshot))
    }

    /// Its documents, in the order in which they were written; the query's run is this one.
    pub async fn documents(&self, query: DocumentQuery) -> Result<Page<Document>, EngineError> {
        permit(self.actor.as_deref(), Permission::Read)?;
        let query = DocumentQuery { run: self.id, ..query };
        let page = self.inner.store.documents(self.scope, query).await?;
        if page.items.is_empty() && self.inner.store.load(self.scope, self.id).await?.is_none() {
            return Err(EngineError::NoRun(self.id));
        }
        Ok(crate::lists::shown(page))
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Run").field(&self.id).finish()
    }
}

/// How a run stands.
#[derive(Debug, Clone)]
pub struct RunView {
    /// How it is doing.
    pub status: Status,
    /// Its state.
    pub snapshot: Arc<Snapshot>,
    /// When it is looked at next.
    pub wake: Option<Timestamp>,
    /// The process that works on it.
    pub owner: Option<ProcessId>,
    /// Messages in its inbox.
    pub kept_signals: usize,
    /// Tries, errors and the deadline.
    pub ledger: Ledger,
}

impl RunView {
    /// It stands still with an error.
    pub fn has_error(&self) -> bool {
        self.ledger.stopped.is_some()
    }
}

/// A run that this process works on.
struct Held {
    by: ProcessId,
    fence: u64,
    told: Arc<Notify>,
}

/// The names under which this process owns runs.
struct Names {
    /// For what it takes from here on.
    current: ProcessId,
    /// For what it took before and still works on.
    retired: Vec<ProcessId>,
    /// Names that it no longer goes by: what they own is anybody's.
    given_up: Vec<ProcessId>,
}

/// Remembers, when it is dropped before its time, that this process may own a run without knowing.
pub(crate) struct UnlessDropped<'a> {
    inner: &'a Inner,
    is_armed: bool,
}

impl UnlessDropped<'_> {
    /// The answer has come.
    pub(crate) fn done(mut self) {
        self.is_armed = false;
    }
}

impl Drop for UnlessDropped<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            self.inner.in_doubt();
        }
    }
}

/// A claim or a commit that is under way.
pub(crate) struct UnderWay<'a>(&'a Inner);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify_waiters();
    }
}

/// The right to decide on a run that is due and that nobody owns.
pub(crate) struct Deciding {
    inner: Arc<Inner>,
    run: RunKey,
}

impl Drop for Deciding {
    fn drop(&mut self) {
        let wanted = self.inner.lock_deciding().remove(&self.run);
        if wanted == Some(true) {
            self.inner.look_at(Some(self.inner.host.now()));
        }
        self.inner.ended.notify_waiters();
    }
}

/// What all parts of an engine share.
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) host: Host,
    pub(crate) options: Options,
    pub(crate) registry: Arc<Registry>,
    pub(crate) room: Room,
    pub(crate) slots: Slots,
    pub(crate) recent: Recent,
    names: Mutex<Names>,
    /// Held while a heartbeat is under way: until when this process counts as living, under any of its names, by the one
    /// before.
    pub(crate) beating: tokio::sync::Mutex<Timestamp>,
    /// A commit or claim that may have made this process the owner of a run had no answer.
    doubt: AtomicBool,
    /// Runs this process works on, and how to tell whoever does that somebody else has moved them.
    held: Mutex<BTreeMap<RunKey, Held>>,
    /// Definitions that are known to be in the store.
    stored: Mutex<BTreeSet<(TenantId, DefinitionHash)>>,
    /// Tenants that were seen.
    tenants: Mutex<BTreeSet<TenantId>>,
    /// The tenant whose runs were taken last.
    served: Mutex<Option<TenantId>>,
    /// Processes that are known to be dead.
    dead: Mutex<Vec<ProcessId>>,
    /// No other process lives.
    alone: AtomicBool,
    /// Runs that are due and are being decided on without an owner, and whether they were found due meanwhile.
    deciding: Mutex<BTreeMap<RunKey, bool>>,
    stopping: AtomicBool,
    abandoned: AtomicBool,
    /// When runs are due that this process knows of.
    pub(crate) wakes: Wakes,
    /// Until when this process counts as living.
    lease_until: AtomicI64,
    /// Nothing outside is reached from here: the runs are somebody's single passes.
    pub(crate) is_stateless: bool,
    /// There may be work.
    pub(crate) wake: Notify,
    ended: Notify,
    /// Claims and commits that may make this process the owner of a run, and whose answer is under way.
    under_way: AtomicU64,
    /// The engine is over: whoever sleeps for it need not.
    over: Notify,
    /// Where flows rest, if there are any.
    pub(crate) flows: OnceLock<Arc<crate::flow::flows::Shared>>,
    /// There may be something to be sent out.
    pub(crate) posted: Notify,
    /// What is known of names of events.
    pub(crate) event_names: crate::events::index::Names,
    /// What is known of the tenants' catalogues.
    pub(crate) catalogues: Arc<crate::catalogue::Catalogues>,
    /// Where workers elsewhere get what they are to do.
    pub(crate) desk: crate::remote::Desk,
    /// What was tidied up.
    pub(crate) tidied: Mutex<crate::upkeep::Upkeep>,
    /// Counts what happens, so that a test can see that nothing does.
    pulse: AtomicU64,
    /// Who is told what happens.
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Inner {
    fn new(store: Arc<dyn Store>, host: Host, options: Options, registry: Arc<Registry>) -> Self {
        Inner {
            room: Room::new(options.max_runs, &options.max_runs_of),
            names: Mutex::new(Names {
                current: ProcessId(host.ids.next()),
                retired: Vec::new(),
                given_up: Vec::new(),
            }),
            beating: tokio::sync::Mutex::new(Timestamp::MIN),
            doubt: AtomicBool::new(false),
            held: Mutex::default(),
            slots: Slots::default(),
            recent: Recent::default(),
            stored: Mutex::default(),
            tenants: Mutex::default(),
            served: Mutex::new(None),
            dead: Mutex::default(),
            alone: AtomicBool::new(false),
            deciding: Mutex::default(),
            stopping: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            wakes: Wakes::default(),
            lease_until: AtomicI64::new(i64::MAX),
            is_stateless: false,
            wake: Notify::new(),
            ended: Notify::new(),
            under_way: AtomicU64::new(0),
            over: Notify::new(),
            flows: OnceLock::new(),
            posted: Notify::new(),
            event_names: Mutex::default(),
            catalogues: Arc::default(),
            desk: crate::remote::Desk::default(),
            tidied: Mutex::default(),
            pulse: AtomicU64::new(0),
            observer: None,
            store,
            host,
            options,
            registry,
        }
    }

    /// Refuses when a workflow needs what is not registered and no worker elsewhere does: everything is named.
    async fn has_everything(&self, scope: TenantScope) -> Result<(), EngineError> {
        let (mut missing, registry) = (Vec::new(), &self.registry);
        for name in registry.names() {
            let Some(workflow) = registry.by_name(&name) else { continue };
            if let Some(wrong) = registry.miscalls(&workflow.definition) {
                return Err(EngineError::Invalid(wrong));
            }
            if registry.missing(&workflow.definition, |_, _| false).is_empty() {
                continue;
            }
            let known = self.catalogues.known(&*self.store, scope, self.host.now()).await?;
            let lacks = registry.missing(&workflow.definition, |name, version| known.does(name, version));
            if !lacks.is_empty() {
                missing.push(format!("workflow `{name}` needs {}", lacks.join(", ")));
            }
        }
        if missing.is_empty() || self.options.max_runs == 0 {
            return Ok(());
        }
        let missing = missing.join("; ");
        Err(EngineError::Invalid(format!("{missing}: register what is missing before the engine starts")))
    }

    /// The same definitions, actions and guards on another store, on which nothing works by itself.
    pub(crate) fn in_memory(&self, store: Arc<dyn Store>) -> Arc<Inner> {
        let options = Options { max_runs: 1, max_runs_of: BTreeMap::new(), ..self.options.clone() };
        let inner = Inner::new(store, self.host.clone(), options, self.registry.clone());
        Arc::new(Inner { is_stateless: true, ..inner })
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.options.limits
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn process(&self) -> ProcessId {
        self.names().current
    }

    /// The process still goes by this name.
    pub(crate) fn goes_by(&self, name: ProcessId) -> bool {
        let names = self.names();
        names.current == name || names.retired.contains(&name)
    }

    /// The lease is lost: what this process worked on is dropped, and it goes by another name.
    pub(crate) fn reborn(&self) {
        let mut names = self.names();
        let new = ProcessId(self.host.ids.next());
        let old = std::mem::replace(&mut names.current, new);
        let retired = std::mem::take(&mut names.retired);
        names.given_up.extend(retired.into_iter().chain([old]));
        drop(names);
        // Nothing is owned under a name that nobody has heard of.
        self.prolong(Timestamp::MIN);
        self.tell_all_holders();
    }

    /// Nobody knows whether this process has become the owner of a run: it takes another name, so that the run is found
    /// under the old one when what it works on under that is done.
    pub(crate) fn in_doubt(&self) {
        self.doubt.store(true, Ordering::Release);
        self.look_at(Some(self.host.now()));
    }

    /// Takes another name if there is doubt, and gives up those under which it works on nothing any more. Gives the names
    /// it goes by.
    pub(crate) fn renamed(&self) -> Vec<ProcessId> {
        let held: BTreeSet<_> = self.lock_held().values().map(|held| held.by).collect();
        let mut names = self.names();
        if self.doubt.swap(false, Ordering::AcqRel) {
            // Nothing is owned under a name that nobody has heard of.
            self.prolong(Timestamp::MIN);
            let new = ProcessId(self.host.ids.next());
            let old = std::mem::replace(&mut names.current, new);
            names.retired.push(old);
        }
        let (busy, idle): (Vec<_>, Vec<_>) =
            std::mem::take(&mut names.retired).into_iter().partition(|name| held.contains(name));
        names.retired = busy;
        names.given_up.extend(idle);
        let over = names.given_up.len().saturating_sub(GIVEN_UP_KEPT);
        names.given_up.drain(..over);
        std::iter::once(names.current).chain(names.retired.iter().copied()).collect()
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt.load(Ordering::Acquire) || !self.names().retired.is_empty()
    }

    /// Something has happened.
    pub(crate) fn beat_pulse(&self) {
        self.pulse.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn pulse(&self) -> u64 {
        self.pulse.load(Ordering::Relaxed)
    }

    /// It works on some run.
    pub(crate) fn is_at_work(&self) -> bool {
        !self.lock_held().is_empty() || !self.lock_deciding().is_empty()
    }

    /// Processes whose runs are free.
    pub(crate) fn dead(&self) -> Vec<ProcessId> {
        let mut dead = self.dead.lock().unwrap_or_else(PoisonError::into_inner).clone();
        dead.extend(self.names().given_up.iter().copied());
        dead.sort_unstable();
        dead.dedup();
        dead
    }

    /// As far as this process has heard, no other lives.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    pub(crate) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Release);
    }

    pub(crate) fn set_dead(&self, dead: Vec<ProcessId>) {
        let mut known = self.dead.lock().unwrap_or_else(PoisonError::into_inner);
        self.saw_deaths(dead.iter().filter(|process| !known.contains(process)).count());
        *known = dead;
    }

    pub(crate) fn held(&self, run: RunKey, by: ProcessId, fence: u64, told: Arc<Notify>) {
        self.lock_held().insert(known(run), Held { by, fence, told });
    }

    pub(crate) fn let_go(&self, run: RunKey, told: &Arc<Notify>) {
        let mut held = self.lock_held();
        if held.get(&known(run)).is_some_and(|known| Arc::ptr_eq(&known.told, told)) {
            held.remove(&known(run));
        }
        if held.is_empty() && self.is_stopping() {
            drop(held);
            self.ended.notify_waiters();
        }
    }

    /// This process works on the run under this fence. One of a lower fence is over, whether it has heard so or not.
    pub(crate) fn is_held_under(&self, run: RunKey, fence: u64) -> bool {
        self.lock_held().get(&known(run)).is_some_and(|held| held.fence >= fence)
    }

    pub(crate) fn is_held(&self, run: RunKey) -> bool {
        self.lock_held().contains_key(&known(run))
    }

    /// This process owns the run as it was read, has not moved it for a lease, and does not work on it. What it owns under a
    /// name that it has given up already is on its way to somebody else.
    pub(crate) fn is_undriven(&self, scope: TenantScope, loaded: &Loaded, now: Timestamp) -> bool {
        loaded.head.owner == Some(self.process())
            && now.ms_since(loaded.updated_at) > self.options.lease_ms
            && !self.is_held(scope.run(loaded.head.run))
    }

    /// Tells whoever works on a run in this process to read it again.
    pub(crate) fn tell_holder(&self, run: RunKey) -> bool {
        let told = self.lock_held().get(&known(run)).map(|held| held.told.clone());
        told.map(|told| told.notify_one()).is_some()
    }

    pub(crate) fn tell_all_holders(&self) {
        let all: Vec<_> = self.lock_held().values().map(|held| held.told.clone()).collect();
        all.iter().for_each(|told| told.notify_one());
    }

    fn lock_held(&self) -> MutexGuard<'_, BTreeMap<RunKey, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is under way that may make this process the owner of a run, until this is dropped.
    pub(crate) fn under_way(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(self)
    }

    /// The right to decide on a run that is due; `None` = somebody does already. Then it is looked at again after that.
    pub(crate) fn decides(self: &Arc<Self>, run: RunKey) -> Option<Deciding> {
        match self.lock_deciding().entry(run) {
            Entry::Occupied(mut wanted) => {
                wanted.insert(true);
                None
            }
            Entry::Vacant(free) => {
                free.insert(false);
                Some(Deciding { inner: self.clone(), run })
            }
        }
    }

    fn lock_deciding(&self) -> MutexGuard<'_, BTreeMap<RunKey, bool>> {
        self.deciding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_at_rest(&self) -> bool {
        self.lock_held().is_empty()
            && self.lock_deciding().is_empty()
            && self.under_way.load(Ordering::Acquire) == 0
    }

    pub(crate) async fn all_let_go(&self) {
        loop {
            let ended = self.ended.notified();
            if self.is_at_rest() {
                return;
            }
            ended.await;
        }
    }

    pub(crate) fn lock_tenants(&self) -> MutexGuard<'_, BTreeSet<TenantId>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tenant whose runs were taken last.
    pub(crate) fn served(&self) -> Option<TenantId> {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn serve(&self, tenant: TenantId) {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) = Some(tenant);
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake.notify_one();
        self.tell_all_holders();
    }

    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.over.notify_waiters();
        self.tell_all_holders();
    }

    /// Sleeps, unless the engine is over meanwhile: then it says so at once.
    pub(crate) async fn is_over_by(&self, at: Timestamp) -> bool {
        let over = self.over.notified();
        if self.is_abandoned() {
            return true;
        }
        tokio::select! {
            biased;
            () = over => true,
            () = self.host.clock.sleep_until(at) => false,
        }
    }

    /// Is done when the engine is over.
    pub(crate) async fn over(&self) {
        let over = self.over.notified();
        if !self.is_abandoned() {
            over.await;
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Room to work on a run that is free, if this process can serve it and counts as living.
    pub(crate) fn pass_for(&self, tenant: TenantId, workflow: &Workflow) -> Option<Pass> {
        if self.is_stopping() || !self.may_own() || !self.serves(tenant, workflow) {
            return None;
        }
        self.room.enter(workflow.definition.name())
    }

    /// The store knows that this process lives, under the name it goes by.
    pub(crate) fn may_own(&self) -> bool {
        self.host.now() < self.lease_until()
    }

    /// Whoever asked may go away while the answer is under way, and with them whoever would go on with the run.
    pub(crate) fn unless_dropped(&self) -> UnlessDropped<'_> {
        UnlessDropped { inner: self, is_armed: true }
    }

    /// A run of this process's is due then: the runner looks no later.
    pub(crate) fn look_at(&self, at: Option<Timestamp>) {
        if at.is_some_and(|at| self.wakes.add(at)) {
            self.wake.notify_one();
        }
    }

    /// Until when this process counts as living.
    pub(crate) fn lease_until(&self) -> Timestamp {
        Timestamp::from_micros(self.lease_until.load(Ordering::Acquire))
    }

    pub(crate) fn prolong(&self, until: Timestamp) {
        self.lease_until.store(until.micros(), Ordering::Release);
    }

    pub(crate) fn is_stored(&self, scope: TenantScope, hash: DefinitionHash) -> bool {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).contains(&(scope.tenant(), hash))
    }

    pub(crate) fn stored(&self, scope: TenantScope, hashes: &[DefinitionHash]) {
        if hashes.is_empty() {
            return;
        }
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        stored.extend(hashes.iter().map(|hash| (scope.tenant(), *hash)));
    }

    /// A run as it stands in the store, with the definition it is pinned to.
    pub(crate) async fn load(&self, scope: TenantScope, run: RunId) -> Result<Standing, EngineError> {
        let loaded = self.store.load(scope, run).await?.ok_or(EngineError::NoRun(run))?;
        if self.registry.by_hash(scope.tenant(), loaded.definition).is_none() {
            runner::learn(self, scope, loaded.definition).await?;
        }
        self.stand(scope, loaded).await
    }

    /// Tells whoever waits for a run how it stands.
    pub(crate) fn published(&self, scope: TenantScope, standing: &Standing) {
        let end = match (standing.snapshot.finished(), &standing.ledger.stopped) {
            (Some(Finished::Completed { output, .. }), _) => {
                End::Completed(output.clone().unwrap_or_default())
            }
            (Some(Finished::Cancelled), _) => End::Cancelled,
            (None, Some(stopped)) => End::Failed(stopped.error.clone()),
            (None, None) => return,
        };
        self.slots.tell(scope.run(standing.run()), end);
    }
}
