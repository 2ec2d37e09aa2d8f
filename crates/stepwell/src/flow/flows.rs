//! The entry point for interactive flows: an engine with strategies, keys and outlets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use stepwell_store::{
    AuditRow, CellKey, CellOp, CellWrite, Cleanup, CleanupKind, HandleChange, HandleHash, HandleQuery,
    HandleRow, HandleWrite, Page, Precondition, Record, RecordQuery, Refused, Space, StoreError, TenantId,
    TenantScope, Ttl, ValueType,
};

use super::answer::FlowError;
use super::keys::{KeyRing, is_id};
use super::outlet::{Outlet, Outlets, SEND_LEASE_MS};
use super::strategy::{Chooser, ONLY, ROUTES, Strategies, Strategy};
use super::token;
use crate::actor::Permission;
use crate::commit_cycle::CommitFailure;
use crate::data::kv::{one, whole_or_bad};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::loaded_run::CommitExtras;
use crate::maintenance::ago;

/// Maximum number of handles per page while revoking or cleaning up.
const REVOKED_AT_ONCE: u32 = 100;
/// Owner of the slots that record revocations.
pub(crate) const REVOKED: &str = "stepwell.revoked";

/// Builds [`Flows`] from strategies, keys and outlets.
pub struct FlowsBuilder {
    engine: Engine,
    ring: KeyRing,
    strategies: BTreeMap<String, Strategy>,
    default: Option<Chooser>,
    of_workflow: BTreeMap<Name, String>,
    outlets: Outlets,
    allowed: Option<BTreeSet<Name>>,
    blocked: BTreeSet<Name>,
    delivers: bool,
}

impl FlowsBuilder {
    /// Registers the only strategy, as `default`.
    #[must_use]
    pub fn only(self, strategy: impl Into<Strategy>) -> Self {
        self.strategy(ONLY, strategy)
    }

    /// Registers a strategy under a name. The name is part of its tokens.
    #[must_use]
    pub fn strategy(mut self, name: impl Into<String>, strategy: impl Into<Strategy>) -> Self {
        self.strategies.insert(name.into(), strategy.into());
        self
    }

    /// Sets the default strategy of new flows.
    #[must_use]
    pub fn default_strategy(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.choose_strategy(move |_| name.clone())
    }

    /// Sets a function that chooses the strategy of a new flow by its workflow.
    #[must_use]
    pub fn choose_strategy<S: Into<String>>(
        mut self,
        choose: impl Fn(&Name) -> S + Send + Sync + 'static,
    ) -> Self {
        self.default = Some(Arc::new(move |workflow| choose(workflow).into()));
        self
    }

    /// Sets the strategy of one workflow. It overrides the one that the workflow itself names.
    #[must_use]
    pub fn workflow_strategy(mut self, workflow: impl Into<Name>, strategy: impl Into<String>) -> Self {
        self.of_workflow.insert(workflow.into(), strategy.into());
        self
    }

    /// Leaves queued messages to other processes, for short-lived programs. A message of a sealed flow that is stored
    /// nowhere is still sent at once.
    #[must_use]
    pub fn without_delivery(mut self) -> Self {
        self.delivers = false;
        self
    }

    /// Registers an outlet under a name.
    #[must_use]
    pub fn outlet(mut self, name: impl Into<String>, outlet: impl Outlet + 'static) -> Self {
        self.outlets.insert(name.into(), Arc::new(outlet));
        self
    }

    /// Restricts starting and resuming to these workflows.
    #[must_use]
    pub fn allow<N: Into<Name>>(mut self, workflows: impl IntoIterator<Item = N>) -> Self {
        self.allowed.get_or_insert_default().extend(workflows.into_iter().map(Into::into));
        self
    }

    /// Excludes these workflows from starting and resuming.
    #[must_use]
    pub fn block<N: Into<Name>>(mut self, workflows: impl IntoIterator<Item = N>) -> Self {
        self.blocked.extend(workflows.into_iter().map(Into::into));
        self
    }

    /// Checks the configuration and starts sending queued messages.
    ///
    /// Fails if an allowed workflow of the engine cannot use the strategy it begins with.
    pub fn build(self) -> Result<Flows, EngineError> {
        let FlowsBuilder {
            engine,
            ring,
            strategies,
            default,
            of_workflow,
            outlets,
            allowed,
            blocked,
            delivers,
        } = self;
        let default = match (default, strategies.len()) {
            (Some(default), _) => default,
            (None, 1) => {
                let only = strategies.keys().next().cloned().unwrap_or_default();
                Arc::new(move |_: &Name| only.clone()) as Chooser
            }
            (None, _) => {
                let why = "several strategies are registered: set the default one with `default_strategy` or `choose_strategy`";
                return Err(EngineError::Invalid(why.to_owned()));
            }
        };
        let strategies = Strategies { by_name: strategies, default, of_workflow };
        strategies.check()?;
        let named = allowed.iter().flatten().chain(strategies.of_workflow.keys());
        if let Some(name) = named.into_iter().find(|name| ROUTES.contains(&name.as_str())) {
            return Err(EngineError::Invalid(reserved_route(name)));
        }
        if let Some(name) = outlets.keys().find(|name| !is_id(name)) {
            return Err(EngineError::Invalid(format!(
                "`{name}` is not a valid outlet name: use 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`"
            )));
        }
        let shared = Arc::new(Shared {
            ring,
            strategies,
            outlets,
            allowed,
            blocked,
            delivers,
            under_way: Mutex::default(),
            queued: Mutex::default(),
            again: Mutex::default(),
        });
        for name in engine.inner.registry.names() {
            let Some(workflow) = engine.inner.registry.by_name(&name) else { continue };
            shared.check_workflow(&workflow.definition)?;
        }
        if engine.inner.flows.set(shared.clone()).is_err() {
            return Err(EngineError::Invalid("flows were already built for this engine".to_owned()));
        }
        engine.inner.queued.notify_one();
        Ok(Flows { engine, shared })
    }
}

/// Configuration and in-process state that all flows of an engine share.
pub(crate) struct Shared {
    pub(crate) ring: KeyRing,
    pub(crate) strategies: Strategies,
    pub(crate) outlets: Outlets,
    allowed: Option<BTreeSet<Name>>,
    blocked: BTreeSet<Name>,
    /// This process sends queued messages.
    pub(crate) delivers: bool,
    /// Idempotency keys of requests in progress in this process.
    under_way: Mutex<BTreeSet<(TenantId, String)>>,
    /// Handles with a message to send that this process has just committed.
    queued: Mutex<Vec<(TenantScope, HandleHash)>>,
    /// Times at which this process retries a message.
    again: Mutex<BTreeSet<Timestamp>>,
}

impl Shared {
    /// Returns true if flows of this workflow may be started and resumed here.
    pub(crate) fn is_allowed(&self, workflow: &Name) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contains(workflow))
            && !self.blocked.contains(workflow)
    }

    /// Looks up an outlet by name.
    pub(crate) fn outlet(&self, name: &str) -> Result<&Arc<dyn Outlet>, EngineError> {
        self.outlets.get(name).ok_or_else(|| {
            let known = self.outlets.keys().cloned().collect();
            EngineError::UnknownOutlet { name: name.to_owned(), known }
        })
    }

    /// Returns the longest TTL of all sealed strategies, in milliseconds.
    pub(crate) fn longest_sealed_ms(&self) -> Option<u64> {
        let sealed = self.strategies.by_name.values().filter_map(|strategy| match strategy {
            Strategy::Sealed(sealed) => Some(sealed.ttl_ms),
            Strategy::Handle(_) | Strategy::Durable(_) => None,
        });
        sealed.max()
    }

    /// Rejects an allowed workflow that cannot use the strategy it begins with.
    pub(crate) fn check_workflow(&self, definition: &stepwell_core::Definition) -> Result<(), EngineError> {
        if !self.is_allowed(definition.name()) {
            return Ok(());
        }
        self.strategies.of(definition).map(drop)
    }

    /// Queues the messages of these handles, which have just been committed.
    pub(crate) fn post(&self, scope: TenantScope, handles: Vec<HandleHash>) {
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        queued.extend(handles.into_iter().map(|handle| (scope, handle)));
    }

    /// Returns the time from which other processes may send a message that is committed now.
    pub(crate) fn deliver_at(&self, now: Timestamp) -> Timestamp {
        if self.delivers { now.plus_ms(SEND_LEASE_MS) } else { now }
    }

    /// Schedules a retry at this time.
    pub(crate) fn schedule_retry(&self, at: Timestamp) {
        self.again.lock().unwrap_or_else(PoisonError::into_inner).insert(at);
    }

    /// Returns the time of the next retry that this process has scheduled.
    pub(crate) fn next_retry(&self) -> Option<Timestamp> {
        self.again.lock().unwrap_or_else(PoisonError::into_inner).first().copied()
    }

    /// Removes the retry times that have passed.
    pub(crate) fn drop_past_retries(&self, now: Timestamp) {
        self.again.lock().unwrap_or_else(PoisonError::into_inner).retain(|at| *at > now);
    }

    /// Takes the queued messages.
    pub(crate) fn take_queued(&self) -> Vec<(TenantScope, HandleHash)> {
        std::mem::take(&mut *self.queued.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Marks a request with this idempotency key as in progress until the guard is dropped.
    ///
    /// Returns `None` if such a request is already in progress in this process.
    pub(crate) fn answering(self: &Arc<Self>, tenant: TenantId, key: &str) -> Option<Answering> {
        let place = (tenant, key.to_owned());
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.insert(place.clone()).then(|| Answering { shared: self.clone(), place })
    }
}

/// A guard for a request in progress with an idempotency key.
pub(crate) struct Answering {
    shared: Arc<Shared>,
    place: (TenantId, String),
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.shared.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.place);
    }
}

/// Interactive flows on an engine. Clones share their state.
#[derive(Clone)]
pub struct Flows {
    pub(crate) engine: Engine,
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for Flows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flows").field("tenant", &self.engine.scope.tenant()).finish_non_exhaustive()
    }
}

/// Selects the tokens to revoke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoke {
    /// Tokens of this flow, and answer links to the run of this id.
    Flow(RunId),
    /// Tokens of flows that this actor started.
    Actor(String),
}

impl Flows {
    /// Starts building flows on this engine with these sealing keys.
    pub fn builder(engine: &Engine, ring: KeyRing) -> FlowsBuilder {
        FlowsBuilder {
            engine: engine.clone(),
            ring,
            strategies: BTreeMap::new(),
            default: None,
            of_workflow: BTreeMap::new(),
            outlets: Outlets::new(),
            allowed: None,
            blocked: BTreeSet::new(),
            delivers: true,
        }
    }

    /// Returns these flows for another tenant.
    #[must_use]
    pub fn for_tenant(&self, scope: TenantScope) -> Flows {
        Flows { engine: self.engine.for_tenant(scope), shared: self.shared.clone() }
    }

    /// Returns these flows for the tenant that a token names, for links without other authentication.
    ///
    /// The token is verified only when it is used.
    #[must_use]
    pub fn of_token(&self, token: &str) -> Flows {
        let scope = token::tenant_of(token).map_or(self.engine.scope, TenantScope::trusted);
        Flows { engine: self.engine.scoped(scope), shared: self.shared.clone() }
    }

    /// Returns these flows with `actor` as the caller.
    #[must_use]
    pub fn acting(&self, actor: crate::Actor) -> Flows {
        Flows { engine: self.engine.acting(actor), shared: self.shared.clone() }
    }

    /// Returns the underlying engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the sealing keys, for rotation and revocation.
    pub fn keys(&self) -> &KeyRing {
        &self.shared.ring
    }

    /// Lists handles: stored flow states and answer links. The store has only the hashes of their secrets.
    pub async fn handles(&self, query: HandleQuery) -> Result<Page<HandleRow>, FlowError> {
        self.engine.permit(Permission::View)?;
        if let (Some(workflow), false) = (&query.workflow, query.shadows.is_empty()) {
            self.engine.check_filters(workflow, &query.shadows).await?;
        }
        Ok(self.found(query).await?)
    }

    async fn found(&self, query: HandleQuery) -> Result<Page<HandleRow>, StoreError> {
        let page = self.engine.inner.store.records(self.engine.scope, RecordQuery::Handles(query)).await?;
        Ok(page.filter_map(handle))
    }

    /// Deletes handles that expired at least `retention_ms` ago and returns their number. `None` deletes nothing.
    pub async fn cleanup(&self, retention_ms: Option<u64>) -> Result<u64, FlowError> {
        self.engine.permit(Permission::Admin)?;
        let Some(retention_ms) = retention_ms else { return Ok(0) };
        let inner = &self.engine.inner;
        let now = inner.host.now();
        let (expired_by, mut count) = (ago(now, retention_ms), 0);
        loop {
            let cleanup = Cleanup { now, limit: REVOKED_AT_ONCE, what: CleanupKind::Handles { expired_by } };
            let cleaned = inner.store.cleanup(self.engine.scope, cleanup).await?;
            count += cleaned.count;
            if !cleaned.more {
                return Ok(count);
            }
        }
    }

    /// Revokes tokens. Deletes the matching handles and returns their number.
    ///
    /// Sealed tokens of single-use strategies are refused from now on. Other sealed tokens stay valid until they expire
    /// or their key is revoked.
    pub async fn revoke(&self, which: Revoke) -> Result<u64, FlowError> {
        self.engine.permit(Permission::Admin)?;
        self.note_revoked(&which).await?;
        let (mut query, mut count) = (HandleQuery { limit: REVOKED_AT_ONCE, ..HandleQuery::default() }, 0);
        match &which {
            Revoke::Flow(flow) => query.run = Some(*flow),
            Revoke::Actor(actor) => query.created_by = Some(actor.clone()),
        }
        loop {
            // Start from the first page each time: a flow that was resumed meanwhile has another handle.
            let page = self.found(query.clone()).await?;
            if page.items.is_empty() {
                return Ok(count);
            }
            for row in &page.items {
                count += u64::from(self.revoke_row(row, &which).await?);
            }
        }
    }

    /// Records a revocation of the sealed flows that were started before now.
    ///
    /// The record lives for twice the longest TTL of sealed tokens, because a resume in progress may still create a
    /// token.
    async fn note_revoked(&self, which: &Revoke) -> Result<(), FlowError> {
        let is_once = |strategy: &Strategy| matches!(strategy, Strategy::Sealed(sealed) if sealed.is_once);
        if !self.shared.strategies.by_name.values().any(is_once) {
            return Ok(());
        }
        let longest = self.shared.longest_sealed_ms().unwrap_or(0);
        let inner = &self.engine.inner;
        let now = inner.host.now();
        let (value, ttl) = (json!(now.micros()), Ttl::ForMs(longest.saturating_mul(2)));
        let op = CellOp::Set { value, value_type: ValueType::Number, ttl };
        let write = CellWrite {
            key: revoked_key(which),
            op,
            expect: Precondition::Anything,
            initial: None,
            by: None,
        };
        let actor = self.engine.actor_id();
        let extras = CommitExtras { cells: vec![write], actor, ..CommitExtras::default() };
        let commit = inner.commit_of(self.engine.scope, extras, now);
        inner.apply(self.engine.scope, commit).await.map_err(EngineError::from)?;
        Ok(())
    }

    /// Returns the time of the last recorded revocation.
    pub(crate) async fn revoked_at(&self, which: &Revoke) -> Result<Option<Timestamp>, FlowError> {
        let inner = &self.engine.inner;
        let query = one(revoked_key(which), inner.host.now(), false);
        let cell = whole_or_bad(&*inner.store, self.engine.scope, query).await?;
        let value = match cell {
            Ok(cell) => cell.and_then(|cell| cell.value),
            Err(_) => Some(Value::Null),
        };
        // An unreadable record may revoke every token so far. A later revocation replaces it.
        Ok(value.map(|value| value.as_i64().map_or(inner.host.now(), Timestamp::from_micros)))
    }

    /// Looks up an outlet by name.
    pub(crate) fn outlet(&self, name: &str) -> Result<&Arc<dyn Outlet>, EngineError> {
        self.shared.outlet(name)
    }

    /// Deletes one handle. Returns false if it no longer exists.
    async fn revoke_row(&self, row: &HandleRow, which: &Revoke) -> Result<bool, FlowError> {
        let inner = &self.engine.inner;
        let because = match which {
            Revoke::Flow(_) => json!("flow"),
            Revoke::Actor(actor) => json!({"actor": actor}),
        };
        let audit = AuditRow {
            operation: "handle.revoke".to_owned(),
            subject: format!("handle/{}", row.handle),
            actor: self.engine.actor_id(),
            run: Some(row.run),
            detail: json!({"workflow": row.workflow, "because": because}).to_string().into(),
        };
        let mut fence = row.fence;
        loop {
            let take = HandleWrite { handle: row.handle, expected: Some(fence), then: HandleChange::Take };
            let extras =
                CommitExtras { handles: vec![take], audit: vec![audit.clone()], ..CommitExtras::default() };
            let commit = inner.commit_of(self.engine.scope, extras, inner.host.now());
            match inner.apply(self.engine.scope, commit).await {
                Ok(_) => return Ok(true),
                Err(CommitFailure::Refused(Refused::Handle { actual: None, .. })) => return Ok(false),
                Err(CommitFailure::Refused(Refused::Handle { actual: Some(actual), .. })) => fence = actual,
                Err(CommitFailure::Moved) => {}
                Err(failure) => return Err(EngineError::from(failure).into()),
            }
        }
    }
}

/// Returns the error for a workflow whose name is a path of the routes of flows.
pub(crate) fn reserved_route(name: &str) -> String {
    format!(
        "a workflow named `{name}` cannot be started as a flow: `/v1/flows/{name}` has another use. Rename it"
    )
}

/// Returns the cell that records a revocation.
fn revoked_key(which: &Revoke) -> CellKey {
    let key = match which {
        Revoke::Flow(flow) => format!("flow:{flow}"),
        // Hash the name, because it may be too long for a key.
        Revoke::Actor(actor) => format!("actor:{}", DefinitionHash::of(actor.as_bytes())),
    };
    CellKey { space: Space::Workflow, owner: REVOKED.to_owned(), key }
}

/// Extracts the row from a handle record.
pub(crate) fn handle(record: Record) -> Option<HandleRow> {
    match record {
        Record::Handle(row) => Some(*row),
        _ => None,
    }
}
