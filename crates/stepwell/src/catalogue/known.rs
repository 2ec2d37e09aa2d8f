//! Resolution of workflow names: the active version of the tenant's catalogue, or a workflow that this program
//! registered.
//!
//! A start does not read the catalogue from the store. The catalogue is cached; when the cache is older than a second,
//! one cell that counts the changes decides whether it is reloaded. A change made by this process is visible at once,
//! one made by another process within a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::Value;
use stepwell_core::near::did_you_mean;
use stepwell_core::spec::Retention;
use stepwell_core::{Definition, DefinitionHash, Name, Timestamp};
use stepwell_store::{BadRow, CellKey, CellQuery, Page, Store, StoreError, TenantId, TenantScope};

use super::actions::{Remote, RemoteAction};
use super::entry::{ACTION, CHANGES, Entry, Pinned, Stamp, WORKFLOW, cell_key, those, version_key};
use crate::data::kv::{one, whole_or_bad};
use crate::engine::Inner;
use crate::error::EngineError;
use crate::registry::{OWN, Workflow, reserved_workflow};
use crate::runner;
use crate::start::Start;

/// Maximum age of the cached catalogue, in milliseconds.
const FRESH_MS: u64 = 1_000;
/// Page size when the catalogue is loaded.
const READ_AT_ONCE: u32 = 200;
/// Maximum number of names in the error for an unknown workflow.
const NAMES_TOLD: usize = 20;

/// This process's cache of the tenants' catalogues.
#[derive(Debug, Default)]
pub(crate) struct Catalogues {
    cached: Mutex<BTreeMap<TenantId, Cached>>,
    /// Incremented whenever another version may declare the shadow columns of a workflow.
    revision: AtomicU64,
}

#[derive(Debug, Default, Clone)]
struct Cached {
    /// Change count that the cache must have reached. It is set when this process changes the catalogue.
    least: u64,
    read_at: Option<Timestamp>,
    known: Arc<Known>,
}

/// The part of a tenant's catalogue that starts need.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Change count read before the content. The content may be newer.
    changes: u64,
    workflows: BTreeMap<Name, Entry>,
    /// Remote actions by name.
    actions: BTreeMap<Name, Arc<Remote>>,
    /// Entries of workflows and actions that cannot be read, by their keys.
    unreadable: BTreeMap<String, BadRow>,
}

/// Workflows with their definitions, without those that cannot be read.
#[derive(Default)]
pub(crate) struct ReadWorkflows {
    pub(crate) items: Vec<Arc<Workflow>>,
    /// Workflows whose entry or definition cannot be read.
    pub(crate) unreadable: Vec<(Name, BadRow)>,
}

impl ReadWorkflows {
    /// Returns `true` if this workflow exists but cannot be read now.
    pub(crate) fn is_unreadable(&self, name: &Name) -> bool {
        self.unreadable.iter().any(|(unreadable, _)| unreadable == name)
    }

    /// Returns the workflows as a page of their definitions.
    pub(crate) fn page(self) -> Page<Definition> {
        let items = self.items.iter().map(|workflow| workflow.definition.clone()).collect();
        let bad = self.unreadable.into_iter().map(|(_, row)| row).collect();
        Page { items, next: None, bad }
    }
}

impl Known {
    /// Returns the entry of a published workflow.
    fn listed(&self, name: &str) -> Option<&Entry> {
        self.workflows.get(name)
    }

    /// Returns `true` for a published workflow that cannot be started.
    pub(crate) fn is_inactive(&self, name: &str) -> bool {
        self.listed(name).is_some_and(|entry| entry.active().is_none())
    }

    /// Returns the version that declares the shadow columns of a published workflow: the active one, or else the newest.
    fn declaring(&self, name: &str) -> Option<Pinned> {
        self.listed(name).and_then(|entry| entry.active.or(entry.newest))
    }

    /// Returns `true` if the same versions declare shadow columns.
    fn declares_as(&self, other: &Known) -> bool {
        let declaring = |known: &Known| -> Vec<_> {
            let entries = known.workflows.iter();
            entries.map(|(name, entry)| (name.clone(), entry.active.or(entry.newest))).collect()
        };
        declaring(self) == declaring(other)
    }

    /// Returns a remote action by name.
    pub(crate) fn action(&self, name: &str) -> Option<&Arc<Remote>> {
        self.actions.get(name)
    }

    /// Returns the remote actions, ordered by name.
    pub(crate) fn actions(&self) -> impl Iterator<Item = &RemoteAction> {
        self.actions.values().map(|remote| &remote.action)
    }

    /// Returns `true` if remote workers run this action, in the given version if there is one.
    pub(crate) fn offers_action(&self, name: &str, version: Option<u32>) -> bool {
        self.action(name).is_some_and(|known| version.is_none_or(|version| version == known.action.version))
    }

    /// Returns the remote actions that cannot be read.
    pub(crate) fn unreadable_actions(&self) -> impl Iterator<Item = &BadRow> {
        self.unreadable.iter().filter(|(key, _)| key.starts_with(ACTION)).map(|(_, row)| row)
    }

    /// Returns the unreadable entry of a workflow.
    fn unreadable(&self, name: &str) -> Option<&BadRow> {
        self.unreadable.get(&format!("{WORKFLOW}{name}"))
    }

    fn names(&self) -> impl Iterator<Item = &Name> {
        self.workflows.iter().filter(|(_, entry)| entry.active().is_some()).map(|(name, _)| name)
    }
}

impl Entry {
    /// Returns the version that new runs use. `None` if the workflow is archived.
    pub(super) fn active(&self) -> Option<Pinned> {
        self.active.filter(|_| !self.archived)
    }
}

impl Catalogues {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<TenantId, Cached>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that this process changed a catalogue and that the change count is now `changes`.
    pub(super) fn changed(&self, tenant: TenantId, changes: u64) {
        self.revision.fetch_add(1, Ordering::Release);
        self.reload(tenant, changes);
    }

    fn reload(&self, tenant: TenantId, changes: u64) {
        let mut cached = self.lock();
        let cached = cached.entry(tenant).or_default();
        // `u64::MAX`: the acknowledgement was lost, so the count is unknown. The catalogue is reloaded at its next use.
        if changes == u64::MAX {
            cached.read_at = None;
        } else {
            cached.least = cached.least.max(changes);
        }
    }

    /// Forces a reload of the catalogue at its next use.
    pub(crate) fn read_again(&self, tenant: TenantId) {
        self.reload(tenant, u64::MAX);
    }

    /// Returns a counter that changes whenever another version may declare the shadow columns of a workflow.
    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Returns the cached catalogue, which may be out of date.
    pub(crate) fn cached(&self, tenant: TenantId) -> Arc<Known> {
        self.lock().get(&tenant).map(|cached| cached.known.clone()).unwrap_or_default()
    }

    /// Returns the tenant's catalogue, at most a second old. Reloads it if necessary.
    pub(crate) async fn known(
        &self,
        store: &dyn Store,
        scope: TenantScope,
        now: Timestamp,
    ) -> Result<Arc<Known>, StoreError> {
        let cached = self.lock().get(&scope.tenant()).cloned().unwrap_or_default();
        let is_fresh = |at: Timestamp| at <= now && now < at.plus_ms(FRESH_MS);
        let is_whole = cached.known.changes >= cached.least;
        if is_whole && cached.read_at.is_some_and(is_fresh) {
            return Ok(cached.known);
        }
        let before = cached.known.changes.max(cached.least);
        let counted = whole_or_bad(store, scope, one(cell_key(CHANGES.to_owned()), now, true)).await?;
        let (changes, is_counted) = match counted {
            Ok(cell) => (cell.map_or(0, |cell| cell.revision), true),
            // The count is derived data: without it the catalogue is reloaded whenever it is a second old.
            Err(_) => (before, false),
        };
        let known = match is_counted && changes == cached.known.changes {
            true => cached.known,
            // The count is read first, so the content is at least as new as the count.
            false => Arc::new(Known::load(store, scope, now, changes, &cached.known).await?),
        };
        let mut all = self.lock();
        let cached = all.entry(scope.tenant()).or_default();
        // The count never decreases, unless its row was lost.
        let is_lost = changes < before;
        if is_lost || cached.known.changes <= known.changes {
            let is_loaded = cached.read_at.is_some() || cached.known.changes > 0;
            if is_loaded && !cached.known.declares_as(&known) {
                self.revision.fetch_add(1, Ordering::Release);
            }
            cached.known = known.clone();
            cached.read_at = (!is_lost).then_some(now);
            if is_lost {
                cached.least = 0;
            }
        }
        Ok(known)
    }
}

impl Known {
    /// Loads a tenant's catalogue. Unreadable entries that are not in `before` are logged.
    async fn load(
        store: &dyn Store,
        scope: TenantScope,
        now: Timestamp,
        changes: u64,
        before: &Known,
    ) -> Result<Self, StoreError> {
        let mut unreadable = BTreeMap::new();
        let mut workflows = read(store, scope, now, WORKFLOW, published, &mut unreadable).await?;
        // The workflow may be archived, so an unreadable entry refuses starts.
        let refused = || Entry { versions: 1, ..Entry::default() };
        let names = unreadable.keys().filter_map(|key| key.strip_prefix(WORKFLOW));
        workflows.extend(names.map(|name| (Name::from(name), refused())));
        let actions = read(store, scope, now, ACTION, remote, &mut unreadable).await?;
        for row in unreadable.iter().filter(|(key, _)| !before.unreadable.contains_key(*key)) {
            tracing::error!(tenant = %scope.tenant(), row = %row.1, "an entry of the catalogue is unreadable");
        }
        Ok(Known { changes, workflows, actions, unreadable })
    }
}

/// Reads all catalogue cells whose keys begin with `prefix`. Adds the unreadable ones to `unreadable`, by key.
async fn read<T>(
    store: &dyn Store,
    scope: TenantScope,
    now: Timestamp,
    prefix: &str,
    each: fn(&Value) -> Result<Option<T>, String>,
    unreadable: &mut BTreeMap<String, BadRow>,
) -> Result<BTreeMap<Name, T>, StoreError> {
    let (mut found, mut cursor) = (BTreeMap::new(), None);
    loop {
        let query = CellQuery { cursor, ..those(prefix.to_owned(), now, READ_AT_ONCE) };
        let page = store.cells(scope, query).await?;
        for cell in page.items {
            let Some((name, value)) = cell.key.key.strip_prefix(prefix).zip(cell.value.as_ref()) else {
                continue;
            };
            match each(value) {
                Ok(read) => found.extend(read.map(|read| (Name::from(name), read))),
                Err(why) => drop(unreadable.insert(cell.key.key.clone(), cell.key.bad(why))),
            }
        }
        for row in page.bad {
            let key = CellKey::from_address(&row.key).map_or_else(|| row.key.clone(), |cell| cell.key);
            unreadable.insert(key, row);
        }
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(found),
        }
    }
}

/// Reads a remote action with its schemas.
fn remote(value: &Value) -> Result<Option<Arc<Remote>>, String> {
    let action = RemoteAction::deserialize(value).map_err(|error| error.to_string())?;
    Ok(Some(Arc::new(action.read()?)))
}

/// Reads the entry of a published workflow. A workflow that has only a draft does not affect starts and is left out.
fn published(value: &Value) -> Result<Option<Entry>, String> {
    let entry = Entry::deserialize(value).map_err(|error| error.to_string())?;
    Ok((entry.versions > 0).then_some(entry))
}

impl Inner {
    /// Returns `true` if this process and the tenant's remote workers have every action and guard of a definition.
    pub(crate) fn serves(&self, tenant: TenantId, workflow: &Workflow) -> bool {
        let missing_parts = self.registry.missing_parts(workflow);
        if missing_parts.others || missing_parts.actions.is_empty() {
            return !missing_parts.others;
        }
        let known = self.catalogues.cached(tenant);
        missing_parts.actions.iter().all(|(name, version)| known.offers_action(name, *version))
    }

    /// Returns the definitions for which this process and the tenant's remote workers have every action and guard.
    pub(crate) async fn servable(
        &self,
        scope: TenantScope,
    ) -> Result<Vec<(DefinitionHash, Name)>, EngineError> {
        let workflows = self.registry.of(scope.tenant());
        if workflows.iter().any(|workflow| self.registry.missing_parts(workflow).only_actions()) {
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
                let why = match known.unreadable(name) {
                    Some(_) => "its catalogue entry is unreadable; activate a version to rebuild it",
                    None if entry.archived => "it is archived; restore it first",
                    None => "no version is active; activate one",
                };
                Err(EngineError::Inactive { name: name.clone(), why: why.to_owned() })
            }
        }
    }

    /// Resolves the workflow of a start. Only the engine itself can start its own workflows.
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

    /// Resolves a workflow by name, also one that cannot be started: the active version, or else the newest.
    pub(crate) async fn active_or_newest_version(
        &self,
        scope: TenantScope,
        name: &Name,
    ) -> Result<Arc<Workflow>, EngineError> {
        if name.starts_with(OWN) {
            return self.own_workflow(name);
        }
        let known = self.catalogue_of(scope).await?;
        match known.declaring(name) {
            Some(pinned) => self.pinned(scope, name, pinned).await,
            None => self.workflow(scope, name).await,
        }
    }

    /// Returns the active version of every published workflow of the tenant that is not archived. An unreadable one
    /// is reported and affects no other.
    pub(crate) async fn active(&self, scope: TenantScope) -> Result<ReadWorkflows, EngineError> {
        let known = self.catalogue_of(scope).await?;
        let mut active = ReadWorkflows::default();
        for (name, entry) in &known.workflows {
            let Some(pinned) = entry.active() else {
                active.unreadable.extend(known.unreadable(name).map(|row| (name.clone(), row.clone())));
                continue;
            };
            match self.pinned(scope, name, pinned).await {
                Ok(workflow) => active.items.push(workflow),
                Err(error) => {
                    let row = unreadable_definition(name, pinned, error)?;
                    tracing::error!(tenant = %scope.tenant(), %row, "the active version of a workflow is unreadable");
                    active.unreadable.push((name.clone(), row));
                }
            }
        }
        Ok(active)
    }

    /// Returns the retention of every workflow that sets one itself, in milliseconds; `None` = its runs stay. The version
    /// for new runs decides, or else the newest one. The runs of a workflow that cannot be read stay.
    pub(crate) async fn own_retentions(
        &self,
        scope: TenantScope,
    ) -> Result<BTreeMap<Name, Option<u64>>, EngineError> {
        let registered = self.registry.names().into_iter().filter_map(|name| self.registry.by_name(&name));
        let own = |workflow: &Workflow| workflow.definition.spec().retention.map(Retention::ms);
        let mut found: BTreeMap<_, _> = registered
            .filter_map(|workflow| Some((workflow.definition.name().clone(), own(&workflow)?)))
            .collect();
        let known = self.catalogue_of(scope).await?;
        for name in known.workflows.keys() {
            let retention = match known.declaring(name) {
                None => Some(None),
                Some(pinned) => match self.pinned(scope, name, pinned).await {
                    Ok(workflow) => own(&workflow),
                    Err(error) => unreadable_definition(name, pinned, error).map(|_| Some(None))?,
                },
            };
            match retention {
                Some(retention) => found.insert(name.clone(), retention),
                None => found.remove(name),
            };
        }
        Ok(found)
    }

    /// Returns `true` if the definition of a published version can be read.
    pub(super) async fn is_readable(
        &self,
        scope: TenantScope,
        name: &Name,
        pinned: Pinned,
    ) -> Result<bool, EngineError> {
        match self.pinned(scope, name, pinned).await {
            Ok(_) => Ok(true),
            Err(error) => unreadable_definition(name, pinned, error).map(|_| false),
        }
    }

    /// Returns `true` if the tenant's catalogue has published this name. Then it decides on starts, and not the
    /// registry.
    pub(crate) async fn is_listed(&self, scope: TenantScope, name: &Name) -> Result<bool, EngineError> {
        Ok(self.catalogue_of(scope).await?.listed(name).is_some())
    }

    /// Returns a published version. `None` if the tenant's catalogue does not have it.
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
                "the stored record of version {version} of `{name}` is unreadable: {error}"
            ))
        })?;
        self.pinned(scope, name, stamp.pinned).await.map(Some)
    }

    /// Returns the definition of a version. Loads it from the store if this process does not know it yet.
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

    /// Loads the version that declares the shadow columns of a run, for [`declaring`](Self::declaring). `own` is the
    /// version of the run.
    pub(crate) async fn load_declaring(&self, scope: TenantScope, own: &Workflow) -> Result<(), EngineError> {
        let (name, tenant) = (own.definition.name(), scope.tenant());
        // The tenant's catalogue has nothing to say about most workflows of an embedding program.
        let is_local = || {
            self.registry.is_registered(own.definition.hash())
                && !self.registry.has_shadows()
                && self.catalogues.cached(tenant).listed(name).is_none()
        };
        if name.starts_with(OWN) || self.is_stateless || is_local() {
            return Ok(());
        }
        match self.catalogue_of(scope).await?.declaring(name) {
            Some(pinned) if pinned.version >= own.definition.version() => {
                self.pinned(scope, name, pinned).await.map(drop)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the version that declares the shadow columns of a run, as far as this process knows: the version for new
    /// runs, unless the run's own is higher. Columns of an archived or inactive workflow are declared by the version
    /// that was active last, or else by the newest.
    pub(crate) fn declaring(&self, tenant: TenantId, own: &Arc<Workflow>) -> Arc<Workflow> {
        let name = own.definition.name();
        if name.starts_with(OWN) {
            return own.clone();
        }
        // This includes runs that are pinned to an older version. Otherwise a healed column would be outdated
        // after the next step of such a run.
        let Some(pinned) = self.catalogues.cached(tenant).declaring(name) else {
            return self.registry.declaring(own);
        };
        let declaring = match pinned.version >= own.definition.version() {
            true => self.registry.by_hash(tenant, pinned.hash),
            false => None,
        };
        declaring.unwrap_or_else(|| own.clone())
    }

    /// Waits until every process knows the current versions of a published workflow. Until then, the steps of another
    /// process may write the shadow columns of an earlier version.
    pub(crate) async fn await_known(&self, scope: TenantScope, name: &Name) -> Result<(), EngineError> {
        if !self.is_listed(scope, name).await? {
            return Ok(());
        }
        let now = self.host.now();
        let latest = now.plus_ms(2 * FRESH_MS);
        let changed = whole_or_bad(&*self.store, scope, one(cell_key(CHANGES.to_owned()), now, true)).await?;
        let until = match changed {
            // The clock of the process that made the change may be ahead.
            Ok(cell) => cell.map(|cell| cell.updated_at.plus_ms(2 * FRESH_MS).min(latest)),
            // Without the count, a change may have been made just now.
            Err(_) => Some(latest),
        };
        if let Some(until) = until.filter(|until| *until > now) {
            self.host.clock.sleep_until(until).await;
        }
        Ok(())
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
            (true, _) => hint.push_str("; no workflows exist"),
            (false, 0) => hint.push_str(&format!("; existing workflows: {}", told.join(", "))),
            (false, more) => {
                hint.push_str(&format!("; existing workflows: {} and {more} more", told.join(", ")));
            }
        }
        EngineError::UnknownWorkflow { name: name.clone(), hint }
    }
}

/// Returns the row of an unreadable or missing definition. Returns any other error unchanged.
fn unreadable_definition(name: &Name, pinned: Pinned, error: EngineError) -> Result<BadRow, EngineError> {
    match error {
        EngineError::Store(StoreError::Bad(row)) => Ok(row),
        EngineError::UnknownDefinition { .. } => {
            let key = format!("{name} {}", pinned.hash);
            let why = format!("the definition of version {} is missing or unreadable", pinned.version);
            Ok(BadRow { table: "definitions", key, run: None, why })
        }
        error => Err(error),
    }
}
