//! A dump of everything that a store shows of a tenant, to compare two stores, or one store at two times.

use std::collections::BTreeSet;

use stepwell_core::{DefinitionHash, RunId, Timestamp};

use super::ask::{
    all_audit, all_cells, all_definitions, all_documents, all_handles, all_history, all_links, all_runs,
    all_seals, all_unsealed, all_waits, documents, links, links_of, shadows_of, tallied, undelivered,
};
use super::make::{self, NAMESPACE, OPERATION};
use crate::cell::{Cell, Space};
use crate::commit::CommitId;
use crate::document::{Document, DocumentQuery};
use crate::handle::{HandleKind, HandleQuery, HandleRow};
use crate::link::{Direction, Link, LinkQuery};
use crate::run::{Loaded, RunSummary};
use crate::run_query::RunQuery;
use crate::scope::TenantScope;
use crate::seal::{Hash, Seal, sealed};
use crate::shadow::ShadowRow;
use crate::store::{
    CellFilter, CellQuery, CountQuery, DueTenant, HistoryQuery, HistoryRow, Page, Record, RecordQuery, Store,
    StoreError, WaitQuery, WaitRow,
};

/// Names for queries about rows that no listing shows.
#[derive(Debug, Clone)]
pub struct Names {
    /// Runs and flows that may have left shadow columns behind.
    pub runs: Vec<RunId>,
    /// Spaces and owners of cells.
    pub owners: Vec<(Space, String)>,
    /// Operations and keys of idempotency records.
    pub keys: Vec<(String, String)>,
    pub definitions: Vec<DefinitionHash>,
    /// Namespaces of entity links.
    pub namespaces: Vec<String>,
    /// Entities at the ends of links, written `type/id`.
    pub things: Vec<String>,
}

impl Default for Names {
    /// Returns the names that [`make`] uses.
    fn default() -> Self {
        let runs = (1..=4).map(|number| (Space::Execution, make::run(number).to_string()));
        let owners = runs.chain([(Space::Kv, NAMESPACE.to_owned()), (Space::Workflow, "orders".to_owned())]);
        let keys = ["a", "b", "c"].map(|key| (OPERATION.to_owned(), key.to_owned()));
        Names {
            runs: (1..=4).map(make::run).collect(),
            owners: owners.collect(),
            keys: keys.to_vec(),
            definitions: ["orders", "other"].map(make::definition).to_vec(),
            namespaces: [NAMESPACE, "other"].map(str::to_owned).to_vec(),
            things: ["a/1", "a/2", "b/1", "b/2"].map(str::to_owned).to_vec(),
        }
    }
}

/// Everything that a store shows of a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Dump {
    /// Runs as the listing shows them.
    pub runs: Vec<RunSummary>,
    /// Runs as loaded, with their inboxes.
    pub loaded: Vec<Loaded>,
    /// The history of each run, with every state.
    pub history: Vec<(RunId, Vec<HistoryRow>)>,
    /// The documents of each run, at every remaining version and now.
    pub documents: Vec<(RunId, Vec<Shown>)>,
    pub waits: Vec<WaitRow>,
    /// Shadow columns of runs and flows.
    pub shadows: Vec<ShadowRow>,
    /// Handles in the order of run and handle.
    pub handles: Vec<HandleRow>,
    /// The handles whose delivery is due.
    pub undelivered: Vec<HandleRow>,
    /// Cells, including deleted and expired ones.
    pub cells: Vec<Cell>,
    /// Records of the idempotency keys in [`Names::keys`].
    pub keys: Vec<(String, Page<Record>)>,
    /// The definitions in [`Names::definitions`], looked up one by one.
    pub definitions: Vec<Page<Record>>,
    /// The definitions as listed.
    pub listed: Vec<Record>,
    /// Links in the order of their edges.
    pub links: Vec<Link>,
    /// Links as found from each entity in each direction.
    pub found: Vec<(String, Vec<Link>)>,
    /// Kind, name and count.
    pub tallies: Vec<(&'static str, String, u64)>,
    pub audit: Vec<Record>,
    /// Commits whose audit rows are not sealed yet.
    pub unsealed: Vec<CommitId>,
    pub seals: Vec<Seal>,
    /// The tenant of the dump.
    pub scope: TenantScope,
    /// The time at which the tenant has work, if it has.
    pub due: Option<DueTenant>,
}

impl Dump {
    /// Returns the inconsistencies within the dump.
    ///
    /// These are gaps in a history, a state that is not the newest one, rows without a run or flow, handles or links
    /// that are found but not listed, and audit rows that are neither sealed nor listed as unsealed.
    pub fn faults(&self) -> Vec<String> {
        let runs = self.runs.iter().zip(&self.loaded).zip(&self.history);
        let mut faults: Vec<String> =
            runs.flat_map(|((row, loaded), (_, rows))| wrong(row, loaded, rows)).collect();
        let known = |run| self.runs.iter().any(|row| row.run == run);
        let strays = self.waits.iter().filter(|row| !known(row.run));
        faults.extend(strays.map(|row| format!("a wait of run {}, which does not exist", row.run)));
        for (run, versions) in &self.documents {
            let wrong = versions.iter().filter(|shown| !shown.is_sound());
            faults.extend(wrong.map(|shown| format!("run {run}: inconsistent documents at {:?}", shown.at)));
            let newest = versions.iter().rev().take(2).map(|shown| &shown.documents);
            if newest.collect::<Vec<_>>().windows(2).any(|pair| pair[0] != pair[1]) {
                faults.push(format!("run {run}: the newest version does not show the current documents"));
            }
        }
        faults.extend(self.link_faults().chain(self.seal_faults()).chain(self.handle_faults()));
        faults
    }

    /// Returns handles that are out of order or without a fence, and shadow columns without a run or flow.
    fn handle_faults(&self) -> impl Iterator<Item = String> {
        let mut faults = Vec::new();
        if !self.handles.is_sorted_by(|a, b| (a.run, a.handle) < (b.run, b.handle)) {
            faults.push("the handles are not in order".to_owned());
        }
        let unwritten = self.handles.iter().filter(|row| row.fence == 0);
        faults.extend(unwritten.map(|row| format!("handle {} has no fence", row.handle)));
        let stray = self.undelivered.iter().filter(|row| !self.handles.contains(row));
        faults.extend(stray.map(|row| format!("handle {} is due but not listed", row.handle)));
        if !self.undelivered.is_sorted_by_key(|row| (row.deliver_at, row.handle)) {
            faults.push("the due deliveries are not in order".to_owned());
        }
        let known = |run| {
            let rests = |row: &HandleRow| row.kind == HandleKind::Flow && row.run == run;
            self.runs.iter().any(|row| row.run == run) || self.handles.iter().any(rests)
        };
        let strays = self.shadows.iter().filter(|row| !known(row.run));
        faults.extend(
            strays.map(|row| format!("a shadow column of {}, which is neither a run nor a flow", row.run)),
        );
        faults.into_iter()
    }

    /// Returns links that are out of order, or found from an end but not listed.
    fn link_faults(&self) -> impl Iterator<Item = String> {
        let mut faults = Vec::new();
        let mut edges: Vec<_> = self.links.iter().map(|link| &link.edge).collect();
        edges.sort_by_key(|edge| (edge.namespace() != NAMESPACE, *edge));
        if !self.links.iter().map(|link| &link.edge).eq(edges) {
            faults.push("the links are not in order".to_owned());
        }
        for (question, found) in &self.found {
            let stray = found.iter().filter(|link| !self.links.contains(link));
            faults.extend(stray.map(|link| format!("{question}: {:?} is not listed", link.edge)));
        }
        faults.into_iter()
    }

    /// Returns seals that are not a chain or do not match the sealed audit rows.
    fn seal_faults(&self) -> impl Iterator<Item = String> {
        let tenant = self.scope.tenant();
        let mut faults = Vec::new();
        let mut before: Hash = [0; 32];
        for (number, seal) in (1..).zip(&self.seals) {
            if (seal.number, seal.before, seal.hash) != (number, before, seal.expected(tenant)) {
                faults.push(format!("seal {} does not follow the previous one", seal.number));
            }
            before = seal.hash;
        }
        let mut is: Vec<_> = self.seals.iter().flat_map(|seal| &seal.rows).cloned().collect();
        let rows = self.audit.iter().filter_map(|record| match record {
            Record::Audit { commit, ordinal, at, row } if !self.unsealed.contains(commit) => {
                Some(sealed(tenant, *commit, *ordinal, *at, row))
            }
            _ => None,
        });
        is.sort_by_key(|row| (row.commit, row.ordinal));
        if is != rows.collect::<Vec<_>>() {
            faults.push("the sealed rows do not match the audit trail".to_owned());
        }
        faults.into_iter()
    }
}

/// The documents that a run shows at a version.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// The version; `None` = now.
    pub at: Option<u64>,
    pub documents: Vec<Document>,
}

impl Shown {
    /// Returns true if the documents can all be visible at that version, in this order.
    fn is_sound(&self) -> bool {
        let keys: BTreeSet<_> = self.documents.iter().map(|document| &document.key).collect();
        let is_visible = |document: &Document| {
            document.visible_at(self.at) && document.visible_to.is_none_or(|to| to > document.visible_from)
        };
        keys.len() == self.documents.len()
            && self.documents.is_sorted_by_key(|document| document.visible_from)
            && self.documents.iter().all(is_visible)
    }
}

fn wrong(row: &RunSummary, loaded: &Loaded, history: &[HistoryRow]) -> Vec<String> {
    let head = &loaded.head;
    let newest = history.last();
    let first = history.first().map_or(0, |first| first.version);
    let listed = (row.version, row.status, row.wake, row.owner, row.updated_at);
    let checks = [
        ("versions have gaps", history.iter().map(|row| row.version).eq(first..=head.version)),
        ("the state is not the newest one", newest.and_then(|row| row.state.as_ref()) == Some(&head.state)),
        ("the inbox is not in order", loaded.inbox.is_sorted_by(|a, b| a.seq < b.seq)),
        (
            "a message is newer than the newest sequence number",
            loaded.inbox.iter().all(|message| message.seq <= head.inbox_seen),
        ),
        ("an owner without a fence", head.owner.is_none() || head.fence > 0),
        (
            "the listing differs from the loaded run",
            listed == (head.version, head.status, head.wake, head.owner, loaded.updated_at),
        ),
    ];
    let broken = checks.into_iter().filter(|(_, holds)| !holds);
    broken.map(|(what, _)| format!("run {}: {what}", row.run)).collect()
}

/// Reads everything in small pages.
pub async fn dump(store: &dyn Store, scope: TenantScope, names: &Names, now: Timestamp) -> Dump {
    let limit = 3;
    let runs = all_runs(store, scope, RunQuery { limit, ..RunQuery::default() }).await;
    let mut loaded = Vec::new();
    let mut history = Vec::new();
    let mut shown = Vec::new();
    for run in runs.iter().map(|row| row.run) {
        loaded.push(store.load(scope, run).await.expect("a run can be loaded").expect("a listed run exists"));
        let query = HistoryQuery { run, from: 0, with_state: true, limit: 50 };
        let rows = all_history(store, scope, query).await;
        let mut versions = Vec::new();
        for at in rows.iter().map(|row| Some(row.version)).chain([None]) {
            let query = DocumentQuery { at, limit, ..documents(run) };
            versions.push(Shown { at, documents: all_documents(store, scope, query).await });
        }
        shown.push((run, versions));
        history.push((run, rows));
    }
    let mut cells = Vec::new();
    for (space, owner) in names.owners.iter().cloned() {
        let filter = CellFilter::Prefix(String::new());
        let query = CellQuery { space, owner, filter, now, include_deleted: true, limit, cursor: None };
        cells.extend(all_cells(store, scope, query).await);
    }
    let handles = all_handles(store, scope, HandleQuery { limit, ..HandleQuery::default() }).await;
    let undelivered = undelivered(store, scope, now, u32::MAX).await;
    let mut shadows = Vec::new();
    for run in shadow_owners(&runs, &handles, names) {
        shadows.extend(shadows_of(store, scope, run).await);
    }
    let (keys, definitions) = small(store, scope, names, now).await.expect("records can be read");
    let waits = all_waits(store, scope, WaitQuery { limit, ..WaitQuery::default() }).await;
    let listed = all_definitions(store, scope, None, limit).await;
    let audit = all_audit(store, scope, limit).await;
    let (links, found) = linked(store, scope, names).await;
    let tallies = counted(store, scope, names, now).await;
    let (unsealed, seals) = (all_unsealed(store, scope, limit).await, all_seals(store, scope, limit).await);
    let due = store.due(Vec::new()).await.expect("due tenants can be listed");
    let due = due.into_iter().find(|due| due.tenant == scope.tenant());
    Dump {
        runs,
        loaded,
        history,
        documents: shown,
        waits,
        shadows,
        handles,
        undelivered,
        cells,
        keys,
        definitions,
        listed,
        links,
        found,
        tallies,
        audit,
        unsealed,
        seals,
        scope,
        due,
    }
}

/// Returns the ids that may have shadow columns: runs, flows and removed runs.
fn shadow_owners(runs: &[RunSummary], handles: &[HandleRow], names: &Names) -> BTreeSet<RunId> {
    let of_rows = runs.iter().map(|row| row.run).chain(handles.iter().map(|row| row.run));
    of_rows.chain(names.runs.iter().copied()).collect()
}

/// Returns all links, and the links of each entity in each direction.
async fn linked(
    store: &dyn Store,
    scope: TenantScope,
    names: &Names,
) -> (Vec<Link>, Vec<(String, Vec<Link>)>) {
    let (mut all, mut found) = (Vec::new(), Vec::new());
    for namespace in &names.namespaces {
        all.extend(
            all_links(store, scope, LinkQuery { namespace: namespace.clone(), limit: 3, ..links() }).await,
        );
        for thing in &names.things {
            for direction in [Direction::Forward, Direction::Reverse, Direction::Either] {
                let query =
                    LinkQuery { namespace: namespace.clone(), limit: 3, ..links_of(thing, direction) };
                let question = format!("{direction:?} from {thing} in {namespace}");
                found.push((question, all_links(store, scope, query).await));
            }
        }
    }
    (all, found)
}

/// Returns kind, name and count of every tally.
async fn counted(
    store: &dyn Store,
    scope: TenantScope,
    names: &Names,
    now: Timestamp,
) -> Vec<(&'static str, String, u64)> {
    let of_each = names.namespaces.iter().flat_map(|namespace| {
        let types = CountQuery::Types { namespace: namespace.clone() };
        [("type", types), ("relation", CountQuery::Relations { namespace: namespace.clone() })]
    });
    let mut counts = Vec::new();
    for (what, of) in [
        ("keys", CountQuery::Keys { now }),
        ("links", CountQuery::Links),
        ("runs", CountQuery::Runs { max: 100 }),
    ]
    .into_iter()
    .chain(of_each)
    {
        let found = tallied(store, scope, of, 2).await;
        counts.extend(found.into_iter().map(|(name, count)| (what, name, count)));
    }
    counts
}

type Small = (Vec<(String, Page<Record>)>, Vec<Page<Record>>);

async fn small(
    store: &dyn Store,
    scope: TenantScope,
    names: &Names,
    now: Timestamp,
) -> Result<Small, StoreError> {
    let mut keys = Vec::new();
    for (operation, key) in names.keys.iter().cloned() {
        let label = format!("{operation} {key}");
        keys.push((label, store.records(scope, RecordQuery::Key { operation, key, now }).await?));
    }
    let mut definitions = Vec::new();
    for hash in &names.definitions {
        definitions.push(store.records(scope, RecordQuery::Definition(*hash)).await?);
    }
    Ok((keys, definitions))
}
