//! What a name stands for: the active version of the tenant's catalogue, or what this program has brought along.
//!
//! A start does not read the store. The catalogue is kept in memory; when it is older than a second, one cell that counts
//! its changes says whether it is to be read again. A change that was made here is seen at once, one that another process has made
//! within a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use stepwell_core::near::did_you_mean;
use stepwell_core::{DefinitionHash, Name, Timestamp};
use stepwell_store::{Cell, CellQuery, Store, StoreError, TenantId, TenantScope};

use super::actions::{Remote, RemoteAction};
use super::entry::{ACTION, CHANGES, Entry, Pinned, Stamp, WORKFLOW, cell_key, those, version_key};
use crate::data::kv::one;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::registry::{OWN, Workflow, reserved_workflow};
use crate::runner;
use crate::start::Start;

/// How old what is known may be.
const FRESH_MS: u64 = 1_000;
/// Cells that are read at a time.
const READ_AT_ONCE: u32 = 200;
/// So many names are told to somebody who asks for one that is not there.
const NAMES_TOLD: usize = 20;

/// What this process knows of the tenants' catalogues.
#[derive(Debug, Default)]
pub(crate) struct Catalogues(Mutex<BTreeMap<TenantId, Held>>);

#[derive(Debug, Default, Clone)]
struct Held {
    /// What is older than this is not up to date: this process has changed it.
    least: u64,
    read_at: Option<Timestamp>,
    known: Arc<Known>,
}

/// A tenant's catalogue, as far as starts need it.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// How often it had been changed when it was read, or less.
    changes: u64,
    workflows: BTreeMap<Name, Entry>,
    /// The actions that workers elsewhere do.
    actions: BTreeMap<Name, Arc<Remote>>,
}

impl Known {
    /// A workflow that has been published.
    fn listed(&self, name: &str) -> Option<&Entry> {
        self.workflows.get(name)
    }

    /// A workflow that has been published and cannot be started.
    pub(crate) fn is_inactive(&self, name: &str) -> bool {
        self.listed(name).is_some_and(|entry| entry.active().is_none())
    }

    /// An action that workers elsewhere do.
    pub(crate) fn action(&self, name: &str) -> Option<&Arc<Remote>> {
        self.actions.get(name)
    }

    /// The actions that workers elsewhere do, in the order of their names.
    pub(crate) fn actions(&self) -> impl Iterator<Item = &RemoteAction> {
        self.actions.values().map(|remote| &remote.action)
    }

    /// Workers elsewhere do this action, in the edition that is asked for.
    pub(crate) fn does(&self, name: &str, version: Option<u32>) -> bool {
        self.action(name).is_some_and(|known| version.is_none_or(|version| version == known.action.version))
    }

    fn names(&self) -> impl Iterator<Item = &Name> {
        self.workflows.iter().filter(|(_, entry)| entry.active().is_some()).map(|(name, _)| name)
    }
}

impl Entry {
    /// The version that starts get.
    pub(super) fn active(&self) -> Option<Pinned> {
        self.active.filter(|_| !self.archived)
    }
}

impl Catalogues {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<TenantId, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process has changed a catalogue: it was changed so often by now.
    pub(super) fn changed(&self, tenant: TenantId, changes: u64) {
        let mut held = self.lock();
        let held = held.entry(tenant).or_default();
        // Nobody knows how often if the answer was lost: then it is read again.
        if changes == u64::MAX {
            held.read_at = None;
        } else {
            held.least = held.least.max(changes);
        }
    }

    /// What is known of a catalogue is read again before it is used.
    pub(crate) fn read_again(&self, tenant: TenantId) {
        self.changed(tenant, u64::MAX);
    }

    /// A tenant's catalogue as it was read last.
    pub(crate) fn held(&self, tenant: TenantId) -> Arc<Known> {
        self.lock().get(&tenant).map(|held| held.known.clone()).unwrap_or_default()
    }

    /// A tenant's catalogue, no older than a second.
    pub(crate) async fn known(
        &self,
        store: &dyn Store,
        scope: TenantScope,
        now: Timestamp,
    ) -> Result<Arc<Known>, StoreError> {
        let held = self.lock().get(&scope.tenant()).cloned().unwrap_or_default();
        let is_fresh = |at: Timestamp| at <= now && now < at.plus_ms(FRESH_MS);
        let is_whole = held.known.changes >= held.least;
        if is_whole && held.read_at.is_some_and(is_fresh) {
            return Ok(held.known);
        }
        let counted = store.cells(scope, one(cell_key(CHANGES.to_owned()), now, true)).await?.items.pop();
        let changes = counted.map_or(0, |cell| cell.revision);
        let known = match changes == held.known.changes {
            true => held.known,
            // It was counted before it is read: what is read is no older than that.
            false => {
                let workflows = read(store, scope, now, WORKFLOW, published).await?;
                let actions = read(store, scope, now, ACTION, remote).await?;
                Arc::new(Known { changes, workflows, actions })
            }
        };
        let mut all = self.lock();
        let held = all.entry(scope.tenant()).or_default();
        if held.known.changes <= known.changes {
            held.known = known.clone();
            held.read_at = Some(now);
        }
        Ok(known)
    }
}

/// Reads all cells of a catalogue whose keys begin so.
async fn read<T>(
    store: &dyn Store,
    scope: TenantScope,
    now: Timestamp,
    prefix: &str,
    each: fn(&Cell) -> Option<(Name, T)>,
) -> Result<BTreeMap<Name, T>, StoreError> {
    let (mut found, mut cursor) = (BTreeMap::new(), None);
    loop {
        let query = CellQuery { cursor, ..those(prefix.to_owned(), now, READ_AT_ONCE) };
        let page = store.cells(scope, query).await?;
        found.extend(page.items.iter().filter_map(each));
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(found),
        }
    }
}

/// An action that workers elsewhere do; one that cannot be read is not served.
fn remote(cell: &Cell) -> Option<(Name, Arc<Remote>)> {
    let name = Name::from(cell.key.key.strip_prefix(ACTION)?);
    match RemoteAction::deserialize(cell.value.as_ref()?).map_err(|error| error.to_string()) {
        Ok(action) => match action.read() {
            Ok(read) => return Some((name, Arc::new(read))),
            Err(error) => tracing::error!(action = %name, %error, "a remote action cannot be used"),
        },
        Err(error) => tracing::error!(action = %name, %error, "a remote action cannot be read"),
    }
    None
}

/// A workflow that has been published; one that has only a draft says nothing about starts.
fn published(cell: &Cell) -> Option<(Name, Entry)> {
    let name = Name::from(cell.key.key.strip_prefix(WORKFLOW)?);
    match Entry::deserialize(cell.value.as_ref()?) {
        Ok(entry) => (entry.versions > 0).then_some((name, entry)),
        Err(error) => {
            tracing::error!(workflow = %name, %error, "what the catalogue keeps of a workflow cannot be read");
            // Nothing is started that somebody may have archived.
            Some((name, Entry { versions: 1, ..Entry::default() }))
        }
    }
}

impl Inner {
    /// This process and the tenant's workers have every action and guard of a definition.
    pub(crate) fn serves(&self, tenant: TenantId, workflow: &Workflow) -> bool {
        let lacks = self.registry.lacks(workflow);
        if lacks.others || lacks.actions.is_empty() {
            return !lacks.others;
        }
        let known = self.catalogues.held(tenant);
        lacks.actions.iter().all(|(name, version)| known.does(name, *version))
    }

    /// The definitions of a tenant's runs of which this process and the tenant's workers have every action and guard.
    pub(crate) async fn servable(
        &self,
        scope: TenantScope,
    ) -> Result<Vec<(DefinitionHash, Name)>, EngineError> {
        let workflows = self.registry.of(scope.tenant());
        if workflows.iter().any(|workflow| self.registry.lacks(workflow).only_actions()) {
            self.catalogue_of(scope).await?;
        }
        let served = workflows.iter().filter(|workflow| self.serves(scope.tenant(), workflow));
        Ok(served.map(|workflow| (workflow.definition.hash(), workflow.definition.name().clone())).collect())
    }

    pub(crate) async fn catalogue_of(&self, scope: TenantScope) -> Result<Arc<Known>, EngineError> {
        Ok(self.catalogues.known(&*self.store, scope, self.host.now()).await?)
    }

    /// Resolves a workflow by name. Reloads the catalogue before it refuses: the cache may be a second old.
    pub(crate) async fn workflow(
        &self,
        scope: TenantScope,
        name: &Name,
    ) -> Result<Arc<Workflow>, EngineError> {
        if name.starts_with(OWN) {
            return Err(reserved_workflow(name));
        }
        match self.workflow_known(scope, name).await {
            Err(EngineError::UnknownWorkflow { .. } | EngineError::Inactive { .. }) => {
                self.catalogues.read_again(scope.tenant());
                self.workflow_known(scope, name).await
            }
            found => found,
        }
    }

    /// Resolves a workflow by name in the cached catalogue.
    async fn workflow_known(&self, scope: TenantScope, name: &Name) -> Result<Arc<Workflow>, EngineError> {
        let known = self.catalogue_of(scope).await?;
        let Some(entry) = known.listed(name) else {
            return self.registry.by_name(name).ok_or_else(|| self.unknown(name, &known));
        };
        match entry.active() {
            Some(pinned) => self.pinned(scope, name, pinned).await,
            None => {
                let why = if entry.archived {
                    "it is archived; restore it first"
                } else {
                    "no version of it is active; activate one"
                };
                Err(EngineError::Inactive { name: name.clone(), why: why.to_owned() })
            }
        }
    }

    /// What a start gets. The engine's own workflows are started by the engine alone.
    pub(crate) async fn workflow_of(
        &self,
        scope: TenantScope,
        start: &Start,
    ) -> Result<Arc<Workflow>, EngineError> {
        match start.is_own() {
            true => self.own_workflow(&start.workflow),
            false => self.workflow(scope, &start.workflow).await,
        }
    }

    fn own_workflow(&self, name: &Name) -> Result<Arc<Workflow>, EngineError> {
        self.registry.by_name(name).ok_or_else(|| self.unknown(name, &Known::default()))
    }

    /// What a name stands for, also if it cannot be started: the active version, or else the newest.
    pub(crate) async fn edition_of_name(
        &self,
        scope: TenantScope,
        name: &Name,
    ) -> Result<Arc<Workflow>, EngineError> {
        if name.starts_with(OWN) {
            return self.own_workflow(name);
        }
        let known = self.catalogue_of(scope).await?;
        match known.listed(name).and_then(|entry| entry.active.or(entry.newest)) {
            Some(pinned) => self.pinned(scope, name, pinned).await,
            None => self.workflow(scope, name).await,
        }
    }

    /// Every published workflow of a tenant that can be started, as it is started.
    pub(crate) async fn active(&self, scope: TenantScope) -> Result<Vec<Arc<Workflow>>, EngineError> {
        let known = self.catalogue_of(scope).await?;
        let mut active = Vec::new();
        for (name, entry) in &known.workflows {
            if let Some(pinned) = entry.active() {
                active.push(self.pinned(scope, name, pinned).await?);
            }
        }
        Ok(active)
    }

    /// The tenant's catalogue says what becomes of starts by this name.
    pub(crate) async fn is_listed(&self, scope: TenantScope, name: &Name) -> Result<bool, EngineError> {
        Ok(self.catalogue_of(scope).await?.listed(name).is_some())
    }

    /// A version that was published; `None` if the tenant's catalogue says nothing of it.
    pub(crate) async fn published_version(
        &self,
        scope: TenantScope,
        name: &Name,
        version: u32,
    ) -> Result<Option<Arc<Workflow>>, EngineError> {
        let query = one(cell_key(version_key(name, version)), self.host.now(), false);
        let cell = self.store.cells(scope, query).await?.items.pop();
        let Some(value) = cell.and_then(|cell| cell.value) else { return Ok(None) };
        let stamp = Stamp::deserialize(&value).map_err(|error| {
            EngineError::Invalid(format!(
                "what is kept of version {version} of `{name}` cannot be read: {error}"
            ))
        })?;
        self.pinned(scope, name, stamp.pinned).await.map(Some)
    }

    /// The definition of a version; it is learned from the store if it is not known yet.
    pub(super) async fn pinned(
        &self,
        scope: TenantScope,
        name: &Name,
        pinned: Pinned,
    ) -> Result<Arc<Workflow>, EngineError> {
        let (tenant, hash) = (scope.tenant(), pinned.hash);
        if let Some(known) = self.registry.by_hash(tenant, hash) {
            return Ok(known);
        }
        runner::learn(self, scope, hash).await?;
        let unknown = || EngineError::UnknownDefinition { workflow: name.clone(), hash };
        self.registry.by_hash(tenant, hash).ok_or_else(unknown)
    }

    fn unknown(&self, name: &Name, known: &Known) -> EngineError {
        let mut names = self.registry.names();
        names.extend(known.names().cloned());
        names.sort();
        names.dedup();
        let mut hint = did_you_mean(name, names.iter().map(Name::as_str));
        let told: Vec<_> = names.iter().take(NAMES_TOLD).map(|name| format!("`{name}`")).collect();
        let more = names.len() - told.len();
        match (names.is_empty(), more) {
            (true, _) => hint.push_str(": none is"),
            (false, 0) => hint.push_str(&format!("; there are {}", told.join(", "))),
            (false, more) => hint.push_str(&format!("; there are {} and {more} more", told.join(", "))),
        }
        EngineError::UnknownWorkflow { name: name.clone(), hint }
    }
}
