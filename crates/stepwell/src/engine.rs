//! The engine: the handle that programs use, and the state that its parts share.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell_core::graph::Graph;
use stepwell_core::snapshot::RunEnd;
use stepwell_core::{Definition, DefinitionHash, Limits, Name, RunId, Snapshot, Timestamp};
use stepwell_store::{
    Document, DocumentQuery, Loaded, Page, ProcessId, RecordQuery, RunKey, Status, Store, StoreError,
    TenantId, TenantScope,
};
use tokio::sync::Notify;

use crate::action::{Action, ActionInfo, BoxAction, boxed};
use crate::actor::{Actor, Permission};
use crate::concurrency::{ConcurrencyLimit, Permit};
use crate::error::{EngineError, RunError};
use crate::host::Host;
use crate::idempotent::Idempotent;
use crate::ledger::Ledger;
use crate::loaded_run::LoadedRun;
use crate::observe::Observer;
use crate::recent::Recent;
use crate::registry::{GuardInput, OWN, Registry, Workflow, reserved_name};
use crate::runner;
use crate::schedule;
use crate::signal::{Signal, Signalled};
use crate::slots::{End, Slot, Slots};
use crate::start::{START, Start, Started};
use crate::wakes::Wakes;

/// The options of an engine. Every field has a default.
#[derive(Debug, Clone)]
pub struct Options {
    /// Maximum number of runs this process drives at a time. With 0 it only starts and signals runs. Default: 256.
    pub max_runs: usize,
    /// Maximum number of runs of one workflow that this process drives at a time. Default: no limit per workflow.
    pub max_runs_per_workflow: BTreeMap<Name, usize>,
    /// Lifetime of a process's lease without a heartbeat, in milliseconds. Default: 15 s.
    pub lease_ms: u64,
    /// Interval at which the store is polled for work without a wake-up, in milliseconds. Default: 1 s.
    pub poll_ms: u64,
    /// Minimum interval between two polls for due runs, in milliseconds. Default: 25 ms.
    pub tick_ms: u64,
    /// Timeout of an action whose transition sets none, in milliseconds; 0 means unlimited. Default: 5 minutes.
    pub action_timeout_ms: u64,
    /// Number of process crashes during one transition after which the run stops. Default: 5.
    pub max_crashes: u32,
    /// Time to live of a signal that nothing consumes, in milliseconds. Default: 7 days.
    pub signal_ttl_ms: u64,
    /// Time an event stays available to runs that start to wait for it later, in milliseconds.
    pub event_ttl_ms: u64,
    /// Creates schedules from triggers of type `schedule`. Default: true.
    pub plans_triggers: bool,
    /// Retention of a run after its end, in milliseconds; `None` = never deleted. Default: 30 days. It applies to
    /// workflows that set no retention themselves.
    pub retention_ms: Option<u64>,
    /// Retention of runs of single workflows, in milliseconds; `None` = never deleted. It overrides the retention that a
    /// workflow sets itself.
    pub workflow_retention_ms: BTreeMap<Name, Option<u64>>,
    /// Retention of the audit trail, in milliseconds; `None` = never cut. Default: never cut. The trail is cut at a seal,
    /// and some rows stay up to a day longer.
    pub audit_retention_ms: Option<u64>,
    /// Retention of a handle after it is over, in milliseconds; `None` = never deleted. Default: 0.
    pub handle_retention_ms: Option<u64>,
    /// Time to live of an idempotency key, in milliseconds. Default: 7 days.
    pub idempotency_key_ttl_ms: u64,
    /// Retention of the tombstone of a deleted or expired key, in milliseconds, by namespace. Default: never deleted.
    /// Afterwards the key counts as never written, and its revisions start again.
    pub tombstone_retention_ms: BTreeMap<String, u64>,
    /// Interval between maintenance passes, in milliseconds. Default: 1 minute.
    pub maintenance_interval_ms: u64,
    pub limits: Limits,
}

/// Default retention of a run after its end: 30 days.
pub const DEFAULT_RETENTION_MS: u64 = 30 * 24 * 3_600_000;
/// Default timeout of an action: 5 minutes.
pub const DEFAULT_ACTION_TIMEOUT_MS: u64 = 5 * 60_000;
/// Default time to live of a signal that nothing consumes: 7 days.
pub const DEFAULT_SIGNAL_TTL_MS: u64 = 7 * 24 * 3_600_000;

/// Default time to live of an idempotency key: 7 days.
pub const DEFAULT_IDEMPOTENCY_KEY_TTL_MS: u64 = 7 * 24 * 3_600_000;

impl Default for Options {
    fn default() -> Self {
        Options {
            max_runs: 256,
            max_runs_per_workflow: BTreeMap::new(),
            lease_ms: 15_000,
            poll_ms: 1_000,
            tick_ms: 25,
            action_timeout_ms: DEFAULT_ACTION_TIMEOUT_MS,
            max_crashes: 5,
            signal_ttl_ms: DEFAULT_SIGNAL_TTL_MS,
            event_ttl_ms: crate::events::DEFAULT_EVENT_TTL_MS,
            plans_triggers: true,
            retention_ms: Some(DEFAULT_RETENTION_MS),
            workflow_retention_ms: BTreeMap::new(),
            audit_retention_ms: None,
            handle_retention_ms: Some(0),
            idempotency_key_ttl_ms: DEFAULT_IDEMPOTENCY_KEY_TTL_MS,
            tombstone_retention_ms: BTreeMap::new(),
            maintenance_interval_ms: 60_000,
            limits: Limits::default(),
        }
    }
}

/// A deliberate bug for tests: see [`crate::testing::ignore_tenant_in_run_keys`].
pub(crate) static IGNORE_TENANT_IN_RUN_KEYS: AtomicBool = AtomicBool::new(false);

/// Returns the key under which this process tracks a run that it drives.
fn known(run: RunKey) -> RunKey {
    if IGNORE_TENANT_IN_RUN_KEYS.load(Ordering::Relaxed) { TenantScope::single().run(run.run) } else { run }
}

/// Number of given-up process names that a process remembers. By then the store has reported older ones as expired.
const GIVEN_UP_KEPT: usize = 64;

/// Builds an engine from definitions, actions, guards and options.
pub struct Builder {
    store: Arc<dyn Store>,
    scope: TenantScope,
    host: Host,
    options: Options,
    observer: Option<Arc<dyn Observer>>,
    pub(crate) registry: Registry,
    /// Registered workflows whose names are reserved for the engine.
    reserved: Vec<Name>,
}

impl Builder {
    /// Registers a workflow. A start by name uses the highest version. A name that begins with `stepwell.` is reserved
    /// for the engine, and the engine does not start with it.
    #[must_use]
    pub fn workflow(mut self, definition: Definition) -> Self {
        if definition.name().starts_with(OWN) {
            self.reserved.push(definition.name().clone());
            return self;
        }
        self.own_workflow(definition)
    }

    /// Registers one of the engine's own workflows.
    #[must_use]
    pub(crate) fn own_workflow(self, definition: Definition) -> Self {
        self.registry.add(definition).set_publisher(None);
        self
    }

    /// Registers an action: an async function of a [`Cx`](crate::Cx), or of one and an input.
    #[must_use]
    pub fn action<Shape: 'static>(mut self, name: impl Into<Name>, action: impl Action<Shape>) -> Self {
        self.registry.actions.insert(name.into(), boxed(action));
        self
    }

    /// Registers an action with a description and JSON schemas of its input and output, which editors show.
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
        let lists = crate::call_check::lists(&info.input);
        if !lists.is_empty() {
            self.registry.lists.insert(name.clone(), lists);
        }
        self.registry.described.insert(name.clone(), info);
        self.action(name, action)
    }

    /// Wraps an action, or replaces one that is not registered. `version` is the version that is called.
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
            // The real action is unknown here, so secrets are allowed anywhere in its input.
            self = self.secret_fields(name.clone(), [""]);
        }
        self.registry.actions.insert(name, wrap(real));
        self
    }

    /// Changes the description of an action that was registered with one. Does nothing for other actions.
    #[must_use]
    pub fn describe(mut self, name: &str, change: impl FnOnce(ActionInfo) -> ActionInfo) -> Self {
        if let Some(info) = self.registry.described.remove(name) {
            let info = change(info);
            self.registry.described.insert(info.name.clone(), info);
        }
        self
    }

    /// Returns the actions that have a description, ordered by name.
    pub fn actions(&self) -> Vec<ActionInfo> {
        self.registry.described.values().cloned().collect()
    }

    /// Sets the source of `{"$secret": …}` values in action inputs. Without it there are no secrets.
    #[must_use]
    pub fn secrets(mut self, secrets: impl crate::secrets::Secrets + 'static) -> Self {
        self.registry.secrets = Some(Arc::new(secrets));
        self
    }

    /// Allows secrets in the input of an action, at these JSON pointers and below them. The empty pointer is the whole
    /// input. Without this call an action gets no secrets, unless its description declares some.
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

    /// Registers a named guard: an async function of a [`GuardInput`].
    #[must_use]
    pub fn guard<F, Fut>(mut self, name: impl Into<Name>, guard: F) -> Self
    where
        F: Fn(GuardInput) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.registry.guards.insert(name.into(), Arc::new(move |input| Box::pin(guard(input))));
        self
    }

    /// Sets the tenant of the engine's own calls. The engine drives the runs of every tenant.
    #[must_use]
    pub fn tenant(mut self, scope: TenantScope) -> Self {
        self.scope = scope;
        self
    }

    /// Replaces all options by these.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Changes the options in place.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// Sets the observer of engine activity, for metrics and traces.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Replaces the clock, the task spawner and the id source.
    #[must_use]
    pub fn host(mut self, host: Host) -> Self {
        self.host = host;
        self
    }

    /// Starts the engine. Fails if a workflow needs an action or a guard that is not registered; the error names all of
    /// them. Fails if the limits contradict each other.
    pub async fn start(self) -> Result<Engine, EngineError> {
        let Builder { store, scope, host, options, observer, registry, reserved } = self;
        if let Some(name) = reserved.first() {
            return Err(reserved_name(name));
        }
        options.limits.check().map_err(EngineError::Invalid)?;
        let inner = Inner::new(store, host, options, Arc::new(registry));
        let inner = Arc::new(Inner { observer, ..inner });
        inner.check_requirements(scope).await?;
        inner.lock_tenants().insert(scope.tenant());
        runner::begin(&inner).await?;
        if inner.options.max_runs > 0 && inner.registry.has_schedules() {
            // Maintenance tries it again.
            if let Err(error) = inner.plan_triggers(scope).await {
                tracing::error!(%error, "schedules could not be updated from triggers; maintenance tries again");
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
    /// The caller. `None` is the embedding program, which has every permission.
    actor: Option<Arc<Actor>>,
    _life: Arc<Life>,
}

/// Stops the engine's tasks when its last handle is dropped.
struct Life(Arc<Inner>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.stop();
        self.0.abandon();
    }
}

impl Engine {
    /// Returns a builder for an engine on this store.
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        let builder = Builder {
            store,
            scope: TenantScope::single(),
            host: Host::system(),
            options: Options::default(),
            observer: None,
            registry: Registry::default(),
            reserved: Vec::new(),
        };
        let builder = crate::admission::gate::equip(builder);
        let builder = crate::bulk::equip(crate::events::equip(schedule::equip(builder)));
        let builder = crate::data::actions::equip(builder);
        let builder = crate::data::slot_actions::equip(builder);
        crate::builtin::equip(crate::data::document_actions::equip(builder))
    }

    /// Returns a handle to the same engine for another tenant.
    #[must_use]
    pub fn for_tenant(&self, scope: TenantScope) -> Engine {
        self.inner.lock_tenants().insert(scope.tenant());
        Engine { scope, ..self.clone() }
    }

    /// Returns a handle for a tenant that may not exist. Does not add it to the known tenants.
    pub(crate) fn scoped(&self, scope: TenantScope) -> Engine {
        Engine { scope, ..self.clone() }
    }

    /// Returns a handle that acts for `actor`. Their permissions apply, and the audit trail names them.
    #[must_use]
    pub fn acting(&self, actor: Actor) -> Engine {
        Engine { actor: Some(Arc::new(actor)), ..self.clone() }
    }

    /// Returns the caller; `None` is the embedding program itself.
    pub fn actor(&self) -> Option<&Actor> {
        self.actor.as_deref()
    }

    /// Returns the caller's id, as rows and the audit trail store it.
    pub(crate) fn actor_id(&self) -> Option<String> {
        self.actor().map(|actor| actor.id.clone())
    }

    pub(crate) fn shared_actor(&self) -> Option<&Arc<Actor>> {
        self.actor.as_ref()
    }

    /// Rejects the call if the caller lacks this permission.
    pub(crate) fn permit(&self, permission: Permission) -> Result<(), EngineError> {
        permit(self.actor(), permission)
    }

    /// Rejects the call if the caller may not work on tasks of this action.
    pub(crate) fn permit_work(&self, action: &Name) -> Result<(), EngineError> {
        permit_work(self.actor(), action)
    }

    /// Starts a run and returns a handle to it.
    pub async fn start(&self, start: Start) -> Result<Run, EngineError> {
        self.permit(Permission::Manage)?;
        let start = start.by(self.actor_id());
        Ok(self.inner.start(self.scope, &start, None).await?.run.with_actor(self.actor.clone()))
    }

    /// Starts a run and reports whether it is new. The same idempotency key returns the same run.
    pub async fn start_once(&self, start: Start) -> Result<Started, EngineError> {
        self.permit(Permission::Manage)?;
        let start = start.by(self.actor_id());
        let started = self.inner.start(self.scope, &start, None).await?;
        Ok(Started { run: started.run.with_actor(self.actor.clone()), ..started })
    }

    /// Returns true if a run was started with this idempotency key and the key has not expired.
    pub async fn has_started(&self, key: &str) -> Result<bool, EngineError> {
        self.permit(Permission::Manage)?;
        let query = RecordQuery::Key { operation: START.to_owned(), key: key.to_owned(), now: self.now() };
        Ok(!self.inner.store.records(self.scope, query).await?.items.is_empty())
    }

    /// Signals the run that was started with this key, or starts it with the signal, in one commit.
    pub async fn start_or_signal(&self, start: Start, signal: Signal) -> Result<Started, EngineError> {
        self.permit(Permission::Manage)?;
        let (start, signal) = (start.by(self.actor_id()), signal.by(self.shared_actor()));
        let started = self.inner.start_or_signal(self.scope, &start, &signal).await?;
        Ok(Started { run: started.run.with_actor(self.actor.clone()), ..started })
    }

    /// Sends a signal to a run.
    pub async fn signal(&self, run: RunId, signal: Signal) -> Result<Signalled, EngineError> {
        Ok(self.signal_once(run, signal).await?.value)
    }

    /// Signals a run and reports whether the signal is new. A repeated signal id is the same signal.
    pub async fn signal_once(
        &self,
        run: RunId,
        signal: Signal,
    ) -> Result<Idempotent<Signalled>, EngineError> {
        self.permit(Permission::Manage)?;
        self.inner.signal(self.scope, run, &signal.by(self.shared_actor())).await
    }

    /// Returns the limits on sizes and counts that this engine enforces.
    pub fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    /// Returns a handle to a run. Does not check that the run exists; the first call on the handle does.
    pub fn run(&self, run: RunId) -> Run {
        Run::new(self.inner.clone(), self.scope, run, false).with_actor(self.actor.clone())
    }

    /// Registers a workflow while the engine is running.
    pub fn register(&self, definition: Definition) -> Result<(), EngineError> {
        self.permit(Permission::Publish)?;
        if definition.name().starts_with(OWN) {
            return Err(reserved_name(definition.name()));
        }
        let known = self.inner.catalogues.cached(self.scope.tenant());
        let missing_parts =
            self.inner.registry.missing(&definition, |name, version| known.offers_action(name, version));
        if !missing_parts.is_empty() {
            let name = definition.name();
            return Err(EngineError::Invalid(format!(
                "workflow `{name}` needs {}",
                missing_parts.join(", ")
            )));
        }
        if let Some(wrong) = self.inner.registry.miscalls(&definition) {
            return Err(EngineError::Invalid(wrong));
        }
        if let Some(flows) = self.inner.flows.get() {
            flows.check_workflow(&definition)?;
        }
        self.inner.registry.add(definition).set_publisher(self.actor.clone());
        self.inner.wake.notify_one();
        if self.inner.registry.has_schedules() {
            let (inner, scope) = (self.inner.clone(), self.scope);
            self.inner.host.spawn.spawn(Box::pin(async move {
                if let Err(error) = inner.plan_triggers(scope).await {
                    tracing::warn!(%error, "schedules could not be updated from triggers; maintenance tries again");
                }
            }));
        }
        Ok(())
    }

    /// Returns the actions that have a description, ordered by name.
    pub fn actions(&self) -> Vec<ActionInfo> {
        self.inner.registry.described.values().cloned().collect()
    }

    /// Returns the store this engine uses.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Returns the number of runs this process drives now, and its maximum.
    pub fn run_capacity(&self) -> (usize, usize) {
        let most = self.inner.options.max_runs;
        (most.saturating_sub(self.inner.concurrency.free()), most)
    }

    /// Returns the tenant of this handle's calls.
    pub fn scope(&self) -> TenantScope {
        self.scope
    }

    /// Returns the current time of the engine's clock.
    pub fn now(&self) -> Timestamp {
        self.inner.host.now()
    }

    /// Stops the engine. No new action starts, and running actions get `grace` to finish. Every run is then released,
    /// so that another process can continue it at once.
    pub async fn stop(&self, grace: Duration) {
        self.inner.stop();
        let until = self.inner.host.now().plus_ms(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let over = self.inner.host.clock.sleep_until(until);
        tokio::select! {
            biased;
            () = self.inner.wait_until_idle() => {}
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

/// Rejects the call if the actor lacks this permission. `None` (the embedding program) has every permission.
pub(crate) fn permit(actor: Option<&Actor>, permission: Permission) -> Result<(), EngineError> {
    match actor {
        Some(actor) if !actor.may(permission) => {
            Err(EngineError::Denied { actor: actor.id.clone(), permission })
        }
        _ => Ok(()),
    }
}

/// Rejects the call if the actor may not work on tasks of this remote action.
pub(crate) fn permit_work(actor: Option<&Actor>, action: &Name) -> Result<(), EngineError> {
    match actor {
        Some(actor) if !actor.grants.may_work_on(action) => {
            Err(EngineError::NotAWorker { actor: actor.id.clone(), action: action.clone() })
        }
        _ => Ok(()),
    }
}

/// A handle to a run: wait for its result, signal it, inspect it.
#[derive(Clone)]
pub struct Run {
    inner: Arc<Inner>,
    scope: TenantScope,
    id: RunId,
    slot: Arc<Slot>,
    /// The caller; `None` is the embedding program itself.
    actor: Option<Arc<Actor>>,
    /// The run was started after this handle was made, so its slot receives every end that this process observes.
    is_new: bool,
}

impl Run {
    pub(crate) fn new(inner: Arc<Inner>, scope: TenantScope, id: RunId, is_new: bool) -> Self {
        let slot = inner.slots.slot(scope.run(id));
        Run { inner, scope, id, slot, actor: None, is_new }
    }

    pub(crate) fn with_actor(mut self, actor: Option<Arc<Actor>>) -> Self {
        self.actor = actor;
        self
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn scope(&self) -> TenantScope {
        self.scope
    }

    pub(crate) fn caller(&self) -> Option<&Arc<Actor>> {
        self.actor.as_ref()
    }

    /// Returns the id of this run.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Waits for the result. A failed run is an error here, although it may still be retried.
    pub async fn result(&self) -> Result<Value, RunError> {
        permit(self.actor.as_deref(), Permission::View)?;
        let is_unsure = match self.slot.end() {
            None => !self.is_new,
            // Another caller may have retried it since.
            Some(End::Failed(_)) => true,
            Some(End::Completed(_) | End::Cancelled) => false,
        };
        if is_unsure {
            let loaded_run = self.inner.load(self.scope, self.id).await?;
            self.inner.slots.clear(self.scope.run(self.id));
            self.inner.publish_end(self.scope, &loaded_run);
        }
        let poll_ms = self.inner.options.poll_ms;
        let mut pause_ms = (poll_ms / 20).max(1);
        loop {
            let notification = self.slot.notification();
            if let Some(end) = self.slot.end() {
                return end.into_result(self.id);
            }
            let clock = &self.inner.host.clock;
            tokio::select! {
                biased;
                () = notification => continue,
                () = clock.sleep_until(clock.now().plus_ms(pause_ms)) => {}
            }
            if self.inner.is_driven(self.scope.run(self.id)) {
                continue;
            }
            // Another process may have ended it.
            let loaded_run = self.inner.load(self.scope, self.id).await?;
            self.inner.publish_end(self.scope, &loaded_run);
            pause_ms = (pause_ms * 2).min(poll_ms);
        }
    }

    /// Waits for the result and deserializes it.
    pub async fn result_as<T: DeserializeOwned>(&self) -> Result<T, RunError> {
        let result = self.result().await?;
        T::deserialize(&result)
            .map_err(|error| RunError::InvalidResult { run: self.id, why: error.to_string() })
    }

    /// Sends a signal to this run.
    pub async fn signal(&self, signal: Signal) -> Result<Signalled, EngineError> {
        permit(self.actor.as_deref(), Permission::Manage)?;
        Ok(self.inner.signal(self.scope, self.id, &signal.by(self.actor.as_ref())).await?.value)
    }

    /// Loads the current state of this run.
    pub async fn view(&self) -> Result<RunView, EngineError> {
        permit(self.actor.as_deref(), Permission::View)?;
        let loaded_run = self.inner.load(self.scope, self.id).await?;
        Ok(RunView {
            status: loaded_run.head.status,
            snapshot: loaded_run.snapshot,
            wake: loaded_run.head.wake,
            owner: loaded_run.head.owner,
            buffered_signals: loaded_run.inbox.len(),
            ledger: loaded_run.ledger,
        })
    }

    /// Returns the workflow as a graph, annotated with the current state of this run.
    pub async fn graph(&self) -> Result<Graph, EngineError> {
        permit(self.actor.as_deref(), Permission::View)?;
        let loaded_run = self.inner.load(self.scope, self.id).await?;
        Ok(Graph::with_status(loaded_run.definition(), &loaded_run.snapshot))
    }

    /// Returns the documents of this run in the order of writing. The query's `run` field is overwritten.
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

/// The state of a run at one revision.
#[derive(Debug, Clone)]
pub struct RunView {
    pub status: Status,
    pub snapshot: Arc<Snapshot>,
    /// Time of the next wake-up; `None` = only a message or command wakes it.
    pub wake: Option<Timestamp>,
    /// The process that owns the run.
    pub owner: Option<ProcessId>,
    /// Number of messages in the inbox.
    pub buffered_signals: usize,
    /// Attempts, errors and the deadline.
    pub ledger: Ledger,
}

impl RunView {
    /// Returns true if the run is stopped by an error.
    pub fn has_error(&self) -> bool {
        self.ledger.stopped.is_some()
    }
}

/// A run that this process drives.
struct ActiveDriver {
    by: ProcessId,
    fence: u64,
    notification: Arc<Notify>,
}

/// The names under which this process owns runs.
struct Names {
    /// The name under which it claims new runs.
    current: ProcessId,
    /// Earlier names under which it still drives runs.
    retired: Vec<ProcessId>,
    /// Names it no longer uses. Any process may claim their runs.
    given_up: Vec<ProcessId>,
}

/// Records on an early drop that this process may own a run without knowing it.
pub(crate) struct OwnershipGuard<'a> {
    inner: &'a Inner,
    is_armed: bool,
}

impl OwnershipGuard<'_> {
    /// Disarms the guard: the answer has arrived.
    pub(crate) fn done(mut self) {
        self.is_armed = false;
    }
}

impl Drop for OwnershipGuard<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            self.inner.in_doubt();
        }
    }
}

/// A claim or commit that is waiting for its answer. It ends after the driver of its run is registered.
pub(crate) struct UnderWay<'a> {
    inner: &'a Inner,
    number: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.inner.lock_under_way().open.remove(&self.number);
        self.inner.ended.notify_waiters();
    }
}

/// The calls under way, numbered in the order in which they began.
#[derive(Default)]
struct CallsUnderWay {
    next: u64,
    open: BTreeSet<u64>,
}

/// The right to decide on a due run that no process owns.
pub(crate) struct Deciding {
    inner: Arc<Inner>,
    run: RunKey,
}

impl Drop for Deciding {
    fn drop(&mut self) {
        let wanted = self.inner.lock_deciding().remove(&self.run);
        if wanted == Some(true) {
            self.inner.wake_at(Some(self.inner.host.now()));
        }
        self.inner.ended.notify_waiters();
    }
}

/// The state that all parts of an engine share.
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) host: Host,
    pub(crate) options: Options,
    pub(crate) registry: Arc<Registry>,
    pub(crate) concurrency: ConcurrencyLimit,
    pub(crate) slots: Slots,
    pub(crate) recent: Recent,
    names: Mutex<Names>,
    /// Locked during a heartbeat. Holds the lease expiry set by the previous heartbeat, for all names of this process.
    pub(crate) heartbeat_lock: tokio::sync::Mutex<Timestamp>,
    /// A commit or claim that may have made this process the owner of a run had no answer.
    ownership_in_doubt: AtomicBool,
    /// Runs that this process drives, with the notifier that tells their driver to reload.
    drivers: Mutex<BTreeMap<RunKey, ActiveDriver>>,
    /// Definitions that are known to be in the store.
    stored: Mutex<BTreeSet<(TenantId, DefinitionHash)>>,
    /// Tenants that this process has seen.
    tenants: Mutex<BTreeSet<TenantId>>,
    /// The tenant whose runs were claimed last.
    last_served_tenant: Mutex<Option<TenantId>>,
    /// Processes whose lease is known to have expired.
    expired: Mutex<Vec<ProcessId>>,
    /// No other process is alive.
    alone: AtomicBool,
    /// Due runs that are being decided without an owner. The value is true if the run was found due again meanwhile.
    deciding: Mutex<BTreeMap<RunKey, bool>>,
    stopping: AtomicBool,
    abandoned: AtomicBool,
    /// Due times of runs that this process knows about.
    pub(crate) wakes: Wakes,
    /// Expiry of this process's lease, in microseconds.
    lease_until: AtomicI64,
    /// This engine runs single stateless passes: nothing outside of it is reached.
    pub(crate) is_stateless: bool,
    /// Wakes the runner: there may be work.
    pub(crate) wake: Notify,
    ended: Notify,
    /// Number of pending claims and commits that may make this process the owner of a run.
    under_way: Mutex<CallsUnderWay>,
    /// Wakes tasks that sleep for this engine when it is over.
    over: Notify,
    /// The flow strategies, if any are registered.
    pub(crate) flows: OnceLock<Arc<crate::flow::flows::Shared>>,
    /// Wakes the outbox sender: there may be something to send.
    pub(crate) queued: Notify,
    /// Cached index of event names.
    pub(crate) event_names: crate::events::index::Names,
    /// Cached catalogues of the tenants.
    pub(crate) catalogues: Arc<crate::catalogue::Catalogues>,
    /// The task queue for remote workers.
    pub(crate) queue: crate::remote::TaskQueue,
    /// The secrets in the inputs of tasks that this process has leased to workers.
    pub(crate) leased_secrets: crate::remote::LeasedSecrets,
    /// Totals of what maintenance has cleaned up.
    pub(crate) maintenance_counts: Mutex<crate::maintenance::MaintenanceTotals>,
    /// Counts activity, so that a test can detect that the engine is idle.
    activity_count: AtomicU64,
    /// Receives observations, for metrics and traces.
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Inner {
    fn new(store: Arc<dyn Store>, host: Host, options: Options, registry: Arc<Registry>) -> Self {
        Inner {
            concurrency: ConcurrencyLimit::new(options.max_runs, &options.max_runs_per_workflow),
            names: Mutex::new(Names {
                current: ProcessId(host.ids.next()),
                retired: Vec::new(),
                given_up: Vec::new(),
            }),
            heartbeat_lock: tokio::sync::Mutex::new(Timestamp::MIN),
            ownership_in_doubt: AtomicBool::new(false),
            drivers: Mutex::default(),
            slots: Slots::default(),
            recent: Recent::default(),
            stored: Mutex::default(),
            tenants: Mutex::default(),
            last_served_tenant: Mutex::new(None),
            expired: Mutex::default(),
            alone: AtomicBool::new(false),
            deciding: Mutex::default(),
            stopping: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            wakes: Wakes::default(),
            lease_until: AtomicI64::new(i64::MAX),
            is_stateless: false,
            wake: Notify::new(),
            ended: Notify::new(),
            under_way: Mutex::default(),
            over: Notify::new(),
            flows: OnceLock::new(),
            queued: Notify::new(),
            event_names: Mutex::default(),
            catalogues: Arc::default(),
            queue: crate::remote::TaskQueue::default(),
            leased_secrets: crate::remote::LeasedSecrets::default(),
            maintenance_counts: Mutex::default(),
            activity_count: AtomicU64::new(0),
            observer: None,
            store,
            host,
            options,
            registry,
        }
    }

    /// Fails if a workflow needs an action or guard that is neither registered nor offered by a remote worker. The
    /// error names all of them.
    async fn check_requirements(&self, scope: TenantScope) -> Result<(), EngineError> {
        let (mut missing, registry) = (Vec::new(), &self.registry);
        for name in registry.names() {
            let Some(workflow) = registry.by_name(&name) else { continue };
            if let Some(wrong) = registry.miscalls(&workflow.definition) {
                return Err(EngineError::Invalid(wrong));
            }
            if registry.missing(&workflow.definition, |_, _| false).is_empty() {
                continue;
            }
            let known = match self.catalogues.known(&*self.store, scope, self.host.now()).await {
                // The tenant's database node may be down, and the other tenants need this process. Runs that need a
                // missing part wait until a process has it.
                Err(StoreError::Unavailable(why)) => {
                    tracing::warn!(workflow = %name, why, "the actions of remote workers could not be read");
                    continue;
                }
                known => known?,
            };
            let missing_parts =
                registry.missing(&workflow.definition, |name, version| known.offers_action(name, version));
            if !missing_parts.is_empty() {
                missing.push(format!("workflow `{name}` needs {}", missing_parts.join(", ")));
            }
        }
        if missing.is_empty() || self.options.max_runs == 0 {
            return Ok(());
        }
        let missing = missing.join("; ");
        Err(EngineError::Invalid(format!("{missing}: register the missing parts before the engine starts")))
    }

    /// Returns an engine with the same definitions, actions and guards on another store. It runs nothing by itself.
    pub(crate) fn in_memory(&self, store: Arc<dyn Store>) -> Arc<Inner> {
        let options = Options { max_runs: 1, max_runs_per_workflow: BTreeMap::new(), ..self.options.clone() };
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

    /// Returns true if the process still uses this name.
    pub(crate) fn uses_name(&self, name: ProcessId) -> bool {
        let names = self.names();
        names.current == name || names.retired.contains(&name)
    }

    /// Handles a lost lease: takes a new process name, gives up the old ones and notifies all drivers.
    pub(crate) fn reset_after_lost_lease(&self) {
        let mut names = self.names();
        let new = ProcessId(self.host.ids.next());
        let old = std::mem::replace(&mut names.current, new);
        let retired = std::mem::take(&mut names.retired);
        names.given_up.extend(retired.into_iter().chain([old]));
        drop(names);
        // The store does not know the new name yet, so own nothing until the next heartbeat.
        self.set_lease_until(Timestamp::MIN);
        self.notify_all_drivers();
    }

    /// Records that this process may own a run without knowing it. It will take a new name, and the run can be claimed
    /// from the old name once everything else under that name is done.
    pub(crate) fn in_doubt(&self) {
        self.ownership_in_doubt.store(true, Ordering::Release);
        self.wake_at(Some(self.host.now()));
    }

    /// Takes a new name if ownership is in doubt, and gives up names under which it drives nothing. Returns the names
    /// in use, the current one first.
    pub(crate) fn rotate_names(&self) -> Vec<ProcessId> {
        let in_use: BTreeSet<_> = self.lock_drivers().values().map(|driver| driver.by).collect();
        let mut names = self.names();
        if self.ownership_in_doubt.swap(false, Ordering::AcqRel) {
            // The store does not know the new name yet, so own nothing until the next heartbeat.
            self.set_lease_until(Timestamp::MIN);
            let new = ProcessId(self.host.ids.next());
            let old = std::mem::replace(&mut names.current, new);
            names.retired.push(old);
        }
        let (busy, idle): (Vec<_>, Vec<_>) =
            std::mem::take(&mut names.retired).into_iter().partition(|name| in_use.contains(name));
        names.retired = busy;
        names.given_up.extend(idle);
        let over = names.given_up.len().saturating_sub(GIVEN_UP_KEPT);
        names.given_up.drain(..over);
        std::iter::once(names.current).chain(names.retired.iter().copied()).collect()
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.ownership_in_doubt.load(Ordering::Acquire) || !self.names().retired.is_empty()
    }

    /// Counts one activity in `activity_count`.
    pub(crate) fn record_activity(&self) {
        self.activity_count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn activity_count(&self) -> u64 {
        self.activity_count.load(Ordering::Relaxed)
    }

    /// Returns true if this process drives or decides on any run.
    pub(crate) fn has_active_runs(&self) -> bool {
        !self.lock_drivers().is_empty() || !self.lock_deciding().is_empty()
    }

    /// Returns the processes whose runs can be claimed, including this process's given-up names.
    pub(crate) fn expired(&self) -> Vec<ProcessId> {
        let mut expired = self.expired.lock().unwrap_or_else(PoisonError::into_inner).clone();
        expired.extend(self.names().given_up.iter().copied());
        expired.sort_unstable();
        expired.dedup();
        expired
    }

    /// Returns true if no other process is alive, as far as this process knows.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    pub(crate) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Release);
    }

    pub(crate) fn set_expired(&self, expired: Vec<ProcessId>) {
        let mut known = self.expired.lock().unwrap_or_else(PoisonError::into_inner);
        self.observe_expired_processes(expired.iter().filter(|process| !known.contains(process)).count());
        *known = expired;
    }

    pub(crate) fn register_driver(&self, run: RunKey, by: ProcessId, fence: u64, notification: Arc<Notify>) {
        self.lock_drivers().insert(known(run), ActiveDriver { by, fence, notification });
    }

    pub(crate) fn unregister_driver(&self, run: RunKey, notification: &Arc<Notify>) {
        let mut drivers = self.lock_drivers();
        if drivers.get(&known(run)).is_some_and(|known| Arc::ptr_eq(&known.notification, notification)) {
            drivers.remove(&known(run));
        }
        if drivers.is_empty() && self.is_stopping() {
            drop(drivers);
            self.ended.notify_waiters();
        }
    }

    /// Returns true if this process drives the run under this fence or a higher one. A driver with a lower fence is
    /// over, even if it has not noticed.
    pub(crate) fn is_driven_under(&self, run: RunKey, fence: u64) -> bool {
        self.lock_drivers().get(&known(run)).is_some_and(|driver| driver.fence >= fence)
    }

    pub(crate) fn is_driven(&self, run: RunKey) -> bool {
        self.lock_drivers().contains_key(&known(run))
    }

    /// Returns the names under which this process owns runs, the current one first.
    pub(crate) fn names_in_use(&self) -> Vec<ProcessId> {
        let names = self.names();
        std::iter::once(names.current).chain(names.retired.iter().copied()).collect()
    }

    /// Returns true if this process owns the run as loaded, has not moved it for a lease, and does not drive it. Runs
    /// under a given-up name do not count: another process can claim those.
    pub(crate) fn is_undriven(&self, scope: TenantScope, loaded: &Loaded, now: Timestamp) -> bool {
        loaded.head.owner.is_some_and(|owner| self.uses_name(owner))
            && now.ms_since(loaded.updated_at) > self.options.lease_ms
            // In this order: a decision ends after its driver is registered.
            && !self.lock_deciding().contains_key(&scope.run(loaded.head.run))
            && !self.is_driven(scope.run(loaded.head.run))
    }

    /// Tells the driver of a run in this process to reload it. Returns false if there is none.
    pub(crate) fn notify_driver(&self, run: RunKey) -> bool {
        let notification = self.lock_drivers().get(&known(run)).map(|driver| driver.notification.clone());
        notification.map(|notification| notification.notify_one()).is_some()
    }

    pub(crate) fn notify_all_drivers(&self) {
        let all: Vec<_> = self.lock_drivers().values().map(|driver| driver.notification.clone()).collect();
        all.iter().for_each(|notification| notification.notify_one());
    }

    fn lock_drivers(&self) -> MutexGuard<'_, BTreeMap<RunKey, ActiveDriver>> {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation that may make this process the owner of a run, until the guard is dropped.
    pub(crate) fn under_way(&self) -> UnderWay<'_> {
        let mut calls = self.lock_under_way();
        let number = calls.next;
        calls.next += 1;
        calls.open.insert(number);
        UnderWay { inner: self, number }
    }

    /// Waits until every call that is under way now has ended, but at most for the length of a lease. Returns false if
    /// some have not ended by then.
    pub(crate) async fn calls_under_way_end(&self) -> bool {
        let later = self.lock_under_way().next;
        let have_ended = || self.lock_under_way().open.first().is_none_or(|oldest| *oldest >= later);
        let limit = self.host.now().plus_ms(self.options.lease_ms);
        loop {
            let ended = self.ended.notified();
            if have_ended() {
                return true;
            }
            tokio::select! {
                biased;
                () = ended => {}
                () = self.host.clock.sleep_until(limit) => return have_ended(),
            }
        }
    }

    fn lock_under_way(&self) -> MutexGuard<'_, CallsUnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires the right to decide on a due run. `None` means that a decision is in progress; the run is checked again
    /// after it.
    pub(crate) fn try_begin_decision(self: &Arc<Self>, run: RunKey) -> Option<Deciding> {
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

    fn is_idle(&self) -> bool {
        self.lock_drivers().is_empty()
            && self.lock_deciding().is_empty()
            && self.lock_under_way().open.is_empty()
    }

    pub(crate) async fn wait_until_idle(&self) {
        loop {
            let ended = self.ended.notified();
            if self.is_idle() {
                return;
            }
            ended.await;
        }
    }

    pub(crate) fn lock_tenants(&self) -> MutexGuard<'_, BTreeSet<TenantId>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the tenant whose runs were claimed last.
    pub(crate) fn last_served_tenant(&self) -> Option<TenantId> {
        *self.last_served_tenant.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_last_served_tenant(&self, tenant: TenantId) {
        *self.last_served_tenant.lock().unwrap_or_else(PoisonError::into_inner) = Some(tenant);
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake.notify_one();
        self.notify_all_drivers();
    }

    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.over.notify_waiters();
        self.notify_all_drivers();
    }

    /// Sleeps until `at`. Returns true at once when the engine is over.
    pub(crate) async fn abandoned_before(&self, at: Timestamp) -> bool {
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

    /// Completes when the engine is over.
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

    /// Acquires a permit to drive an unowned run. `None` if the engine is stopping, holds no lease, cannot serve the
    /// workflow or is at its limit.
    pub(crate) fn try_acquire_permit(&self, tenant: TenantId, workflow: &Workflow) -> Option<Permit> {
        if self.is_stopping() || !self.has_lease() || !self.serves(tenant, workflow) {
            return None;
        }
        self.concurrency.try_acquire(workflow.definition.name())
    }

    /// Returns true while this process has a live lease under its current name.
    pub(crate) fn has_lease(&self) -> bool {
        self.host.now() < self.lease_until()
    }

    /// Guards a request whose caller may be cancelled before the answer arrives, which would leave the run without a
    /// driver.
    pub(crate) fn ownership_guard(&self) -> OwnershipGuard<'_> {
        OwnershipGuard { inner: self, is_armed: true }
    }

    /// Schedules a wake-up: the runner checks for due runs at `at` or earlier.
    pub(crate) fn wake_at(&self, at: Option<Timestamp>) {
        if at.is_some_and(|at| self.wakes.add(at)) {
            self.wake.notify_one();
        }
    }

    /// Returns the expiry of this process's lease.
    pub(crate) fn lease_until(&self) -> Timestamp {
        Timestamp::from_micros(self.lease_until.load(Ordering::Acquire))
    }

    pub(crate) fn set_lease_until(&self, until: Timestamp) {
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

    /// Loads a run and the definition that it is pinned to.
    pub(crate) async fn load(&self, scope: TenantScope, run: RunId) -> Result<LoadedRun, EngineError> {
        let loaded = self.store.load(scope, run).await?.ok_or(EngineError::NoRun(run))?;
        if self.registry.by_hash(scope.tenant(), loaded.definition).is_none() {
            runner::learn(self, scope, loaded.definition).await?;
        }
        self.build_loaded_run(scope, loaded).await
    }

    /// Publishes the end of a run, if it has ended or failed, to the callers that wait for it.
    pub(crate) fn publish_end(&self, scope: TenantScope, loaded_run: &LoadedRun) {
        let end = match (loaded_run.snapshot.finished(), &loaded_run.ledger.stopped) {
            (Some(RunEnd::Completed { output, .. }), _) => End::Completed(output.clone().unwrap_or_default()),
            (Some(RunEnd::Cancelled), _) => End::Cancelled,
            (None, Some(stopped)) => End::Failed(stopped.error.clone()),
            (None, None) => return,
        };
        self.slots.tell(scope.run(loaded_run.run()), end);
    }
}
