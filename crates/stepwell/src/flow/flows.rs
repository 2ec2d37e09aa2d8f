//! What programs hold on to for their flows: strategies, keys and outlets on top of an engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use stepwell_store::{
    AuditRow, CellKey, CellOp, CellWrite, Expect, HandleChange, HandleHash, HandleQuery, HandleRow,
    HandleWrite, Page, Record, RecordQuery, Refused, Space, StoreError, Sweep, SweepWhat, TenantId,
    TenantScope, Ttl, ValueType,
};

use super::answer::FlowError;
use super::keys::{KeyRing, is_id};
use super::outlet::{Outlet, Outlets};
use super::strategy::{Chooser, Durable, ONLY, Strategies, Strategy};
use super::token;
use crate::actor::Permission;
use crate::data::kv::one;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::standing::Along;
use crate::turn::Turnless;
use crate::upkeep::ago;

/// Handles that are revoked in one commit.
const REVOKED_AT_ONCE: u32 = 100;
/// Whose slots say which tokens are revoked.
const REVOKED: &str = "stepwell.revoked";

/// Puts strategies, keys and outlets together.
pub struct FlowsBuilder {
    engine: Engine,
    ring: KeyRing,
    strategies: BTreeMap<String, Strategy>,
    default: Option<Chooser>,
    outlets: Outlets,
    allowed: Option<BTreeSet<Name>>,
    blocked: BTreeSet<Name>,
}

impl FlowsBuilder {
    /// Registers the only strategy, as `default`.
    #[must_use]
    pub fn only(self, strategy: impl Into<Strategy>) -> Self {
        self.strategy(ONLY, strategy)
    }

    /// Registers a strategy under a name, which is part of its tokens.
    #[must_use]
    pub fn strategy(mut self, name: impl Into<String>, strategy: impl Into<Strategy>) -> Self {
        self.strategies.insert(name.into(), strategy.into());
        self
    }

    /// Flows begin with this strategy.
    #[must_use]
    pub fn begin_with(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.begin_by(move |_| name.clone())
    }

    /// Flows begin with the strategy that this says for their workflow.
    #[must_use]
    pub fn begin_by<S: Into<String>>(mut self, choose: impl Fn(&Name) -> S + Send + Sync + 'static) -> Self {
        self.default = Some(Arc::new(move |workflow| choose(workflow).into()));
        self
    }

    /// Registers an outlet under a name.
    #[must_use]
    pub fn outlet(mut self, name: impl Into<String>, outlet: impl Outlet + 'static) -> Self {
        self.outlets.insert(name.into(), Arc::new(outlet));
        self
    }

    /// Only these workflows can be started and resumed here.
    #[must_use]
    pub fn allow<N: Into<Name>>(mut self, workflows: impl IntoIterator<Item = N>) -> Self {
        self.allowed.get_or_insert_default().extend(workflows.into_iter().map(Into::into));
        self
    }

    /// These workflows can be neither started nor resumed here.
    #[must_use]
    pub fn block<N: Into<Name>>(mut self, workflows: impl IntoIterator<Item = N>) -> Self {
        self.blocked.extend(workflows.into_iter().map(Into::into));
        self
    }

    /// Checks everything, and begins to send out what waits for it. Refused for a workflow that cannot rest where it begins.
    pub fn build(self) -> Result<Flows, EngineError> {
        let FlowsBuilder { engine, ring, strategies, default, outlets, allowed, blocked } = self;
        let default = match (default, strategies.len()) {
            (Some(default), _) => default,
            (None, 1) => {
                let only = strategies.keys().next().cloned().unwrap_or_default();
                Arc::new(move |_: &Name| only.clone()) as Chooser
            }
            (None, _) => {
                let why = "of several strategies it has to be said with which flows begin: use `begin_with` or `begin_by`";
                return Err(EngineError::Invalid(why.to_owned()));
            }
        };
        let strategies = Strategies { by_name: strategies, default };
        strategies.check()?;
        if let Some(name) = outlets.keys().find(|name| !is_id(name)) {
            return Err(EngineError::Invalid(format!("`{name}` is not an outlet's name")));
        }
        let shared = Arc::new(Shared {
            ring,
            strategies,
            outlets,
            allowed,
            blocked,
            under_way: Mutex::default(),
            posts: Mutex::default(),
            again: Mutex::default(),
        });
        for name in engine.inner.registry.names() {
            let Some(workflow) = engine.inner.registry.by_name(&name) else { continue };
            shared.admits(&workflow.definition)?;
        }
        if engine.inner.flows.set(shared.clone()).is_err() {
            return Err(EngineError::Invalid("the engine has its flows already".to_owned()));
        }
        engine.inner.posted.notify_one();
        Ok(Flows { engine, shared })
    }
}

/// What all flows of an engine share.
pub(crate) struct Shared {
    pub(crate) ring: KeyRing,
    pub(crate) strategies: Strategies,
    pub(crate) outlets: Outlets,
    allowed: Option<BTreeSet<Name>>,
    blocked: BTreeSet<Name>,
    /// Requests with a key that are being answered.
    under_way: Mutex<BTreeSet<(TenantId, String)>>,
    /// Handles with something that is to be sent out, which this process has just put there.
    posts: Mutex<Vec<(TenantScope, HandleHash)>>,
    /// When something is to be sent again that this process has tried.
    again: Mutex<BTreeSet<Timestamp>>,
}

impl Shared {
    /// Flows of this workflow can be started and resumed here.
    pub(crate) fn is_allowed(&self, workflow: &Name) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contains(workflow))
            && !self.blocked.contains(workflow)
    }

    /// An outlet by its name.
    pub(crate) fn outlet(&self, name: &str) -> Result<&Arc<dyn Outlet>, EngineError> {
        self.outlets.get(name).ok_or_else(|| {
            let known: Vec<_> = self.outlets.keys().map(|name| format!("`{name}`")).collect();
            let known = if known.is_empty() {
                "there is none".to_owned()
            } else {
                format!("there are {}", known.join(", "))
            };
            EngineError::Invalid(format!("there is no outlet `{name}`; {known}"))
        })
    }

    /// How long sealed tokens are good at most.
    pub(crate) fn longest_sealed_ms(&self) -> Option<u64> {
        let sealed = self.strategies.by_name.values().filter_map(|strategy| match strategy {
            Strategy::Sealed(sealed) => Some(sealed.ttl_ms),
            Strategy::Handle(_) | Strategy::Durable(_) => None,
        });
        sealed.max()
    }

    /// The strategy by which runs hand out links.
    pub(crate) fn durable(&self) -> Option<(&str, &Durable)> {
        self.strategies.by_name.iter().find_map(|(name, strategy)| match strategy {
            Strategy::Durable(durable) => Some((name.as_str(), durable)),
            Strategy::Sealed(_) | Strategy::Handle(_) => None,
        })
    }

    /// Refuses a workflow that cannot rest where it would begin.
    pub(crate) fn admits(&self, definition: &stepwell_core::Definition) -> Result<(), EngineError> {
        if !self.is_allowed(definition.name()) {
            return Ok(());
        }
        self.strategies.of(definition).map(drop)
    }

    /// What was committed with these handles is to be sent out.
    pub(crate) fn post(&self, scope: TenantScope, handles: Vec<HandleHash>) {
        let mut posts = self.posts.lock().unwrap_or_else(PoisonError::into_inner);
        posts.extend(handles.into_iter().map(|handle| (scope, handle)));
    }

    /// Something is to be sent again then.
    pub(crate) fn post_again(&self, at: Timestamp) {
        self.again.lock().unwrap_or_else(PoisonError::into_inner).insert(at);
    }

    /// When something is to be sent again next, as far as this process knows.
    pub(crate) fn next_post(&self) -> Option<Timestamp> {
        self.again.lock().unwrap_or_else(PoisonError::into_inner).first().copied()
    }

    /// What was to be sent again by now is looked for.
    pub(crate) fn posts_until(&self, now: Timestamp) {
        self.again.lock().unwrap_or_else(PoisonError::into_inner).retain(|at| *at > now);
    }

    /// Takes what is to be sent out.
    pub(crate) fn take_posts(&self) -> Vec<(TenantScope, HandleHash)> {
        std::mem::take(&mut *self.posts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A request with this key is being answered until this is dropped; `None` = one is already.
    pub(crate) fn answering(self: &Arc<Self>, tenant: TenantId, key: &str) -> Option<Answering> {
        let place = (tenant, key.to_owned());
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.insert(place.clone()).then(|| Answering { shared: self.clone(), place })
    }
}

/// A request with a key that is being answered.
pub(crate) struct Answering {
    shared: Arc<Shared>,
    place: (TenantId, String),
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.shared.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.place);
    }
}

/// Interactive flows on an engine. Clones are the same flows.
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

/// Which tokens are to be good no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoke {
    /// Those of a flow, and those that lead to a run.
    Flow(RunId),
    /// Those of flows that somebody began.
    Actor(String),
}

impl Flows {
    /// Flows on this engine, under these keys.
    pub fn builder(engine: &Engine, ring: KeyRing) -> FlowsBuilder {
        FlowsBuilder {
            engine: engine.clone(),
            ring,
            strategies: BTreeMap::new(),
            default: None,
            outlets: Outlets::new(),
            allowed: None,
            blocked: BTreeSet::new(),
        }
    }

    /// The same flows, for another tenant.
    #[must_use]
    pub fn for_tenant(&self, scope: TenantScope) -> Flows {
        Flows { engine: self.engine.for_tenant(scope), shared: self.shared.clone() }
    }

    /// The same flows, for the tenant that a token names: for links that are followed by whoever has them. What the token is
    /// worth shows when it is used.
    #[must_use]
    pub fn of_token(&self, token: &str) -> Flows {
        let scope = token::tenant_of(token).map_or(self.engine.scope, TenantScope::vouched);
        Flows { engine: self.engine.scoped(scope), shared: self.shared.clone() }
    }

    /// The same flows, asked by somebody.
    #[must_use]
    pub fn acting(&self, actor: crate::Actor) -> Flows {
        Flows { engine: self.engine.acting(actor), shared: self.shared.clone() }
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The keys: to be rotated, and revoked by their ids.
    pub fn keys(&self) -> &KeyRing {
        &self.shared.ring
    }

    /// Handles: where flows rest, and links to runs. Their secrets are nowhere.
    pub async fn handles(&self, query: HandleQuery) -> Result<Page<HandleRow>, FlowError> {
        self.engine.permit(Permission::View)?;
        Ok(self.found(query).await?)
    }

    async fn found(&self, query: HandleQuery) -> Result<Page<HandleRow>, StoreError> {
        let page = self.engine.inner.store.records(self.engine.scope, RecordQuery::Handles(query)).await?;
        Ok(page.filter_map(handle))
    }

    /// Deletes handles that were over `retention_ms` ago; `None` = none at all. Gives how many.
    pub async fn cleanup(&self, retention_ms: Option<u64>) -> Result<u64, FlowError> {
        self.engine.permit(Permission::Admin)?;
        let Some(retention_ms) = retention_ms else { return Ok(0) };
        let inner = &self.engine.inner;
        let now = inner.host.now();
        let (expired_by, mut count) = (ago(now, retention_ms), 0);
        loop {
            let sweep = Sweep { now, limit: REVOKED_AT_ONCE, what: SweepWhat::Handles { expired_by } };
            let swept = inner.store.sweep(self.engine.scope, sweep).await?;
            count += swept.count;
            if !swept.more {
                return Ok(count);
            }
        }
    }

    /// Makes tokens good no longer. Handles go; gives how many. Sealed tokens of strategies whose tokens are used once are
    /// refused from here on; others are good until they expire or their key is revoked.
    pub async fn revoke(&self, which: Revoke) -> Result<u64, FlowError> {
        self.engine.permit(Permission::Admin)?;
        self.note_revoked(&which).await?;
        let (mut query, mut count) = (HandleQuery { limit: REVOKED_AT_ONCE, ..HandleQuery::default() }, 0);
        match &which {
            Revoke::Flow(flow) => query.run = Some(*flow),
            Revoke::Actor(actor) => query.created_by = Some(actor.clone()),
        }
        loop {
            // From the beginning each time: a flow that has gone on meanwhile is behind another handle.
            let page = self.found(query.clone()).await?;
            if page.items.is_empty() {
                return Ok(count);
            }
            for row in &page.items {
                count += u64::from(self.take_away(row, &which).await?);
            }
        }
    }

    /// Sealed flows that were begun before now are revoked; kept for as long as any of their tokens can be good. One may be
    /// on its way to another token.
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
        let write =
            CellWrite { key: revoked_key(which), op, expect: Expect::Anything, initial: None, by: None };
        let actor = self.engine.actor_id();
        let along = Along { cells: vec![write], actor, ..Along::default() };
        let commit = inner.commit_of(self.engine.scope, along, now);
        inner.apply(self.engine.scope, commit).await.map_err(EngineError::from)?;
        Ok(())
    }

    /// When tokens were revoked last.
    pub(crate) async fn revoked_at(&self, which: &Revoke) -> Result<Option<Timestamp>, FlowError> {
        let inner = &self.engine.inner;
        let query = one(revoked_key(which), inner.host.now(), false);
        let cell = inner.store.cells(self.engine.scope, query).await?.items.pop();
        let at = cell.and_then(|cell| cell.value).and_then(|value| value.as_i64());
        Ok(at.map(Timestamp::from_micros))
    }

    /// An outlet by its name.
    pub(crate) fn outlet(&self, name: &str) -> Result<&Arc<dyn Outlet>, EngineError> {
        self.shared.outlet(name)
    }

    /// Takes one handle away; says whether it was still there.
    async fn take_away(&self, row: &HandleRow, which: &Revoke) -> Result<bool, FlowError> {
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
            let along = Along { handles: vec![take], audit: vec![audit.clone()], ..Along::default() };
            let commit = inner.commit_of(self.engine.scope, along, inner.host.now());
            match inner.apply(self.engine.scope, commit).await {
                Ok(_) => return Ok(true),
                Err(Turnless::Refused(Refused::Handle { actual: None, .. })) => return Ok(false),
                Err(Turnless::Refused(Refused::Handle { actual: Some(actual), .. })) => fence = actual,
                Err(Turnless::Moved) => {}
                Err(turnless) => return Err(EngineError::from(turnless).into()),
            }
        }
    }
}

/// The cell in which a revocation is kept.
fn revoked_key(which: &Revoke) -> CellKey {
    let key = match which {
        Revoke::Flow(flow) => format!("flow:{flow}"),
        // Names may be long.
        Revoke::Actor(actor) => format!("actor:{}", DefinitionHash::of(actor.as_bytes())),
    };
    CellKey { space: Space::Workflow, owner: REVOKED.to_owned(), key }
}

/// The row of a handle's record.
pub(crate) fn handle(record: Record) -> Option<HandleRow> {
    match record {
        Record::Handle(row) => Some(*row),
        _ => None,
    }
}
