//! Short ways to ask a store as the suite's usual tenant, for answers that must come.

use stepwell_core::{Name, RunId, Timestamp};

use super::make::{ME, NAMESPACE, OPERATION, at, cell, hash, thing};
use crate::cell::{Cell, OpResult, Space};
use crate::commit::{Commit, CommitError, CommitId, Committed, Refused};
use crate::document::{Document, DocumentQuery};
use crate::handle::{HandleQuery, HandleRow};
use crate::link::{Direction, Link, LinkFilter, LinkQuery};
use crate::run::{Head, Loaded, ProcessId, RunSummary};
use crate::scope::TenantScope;
use crate::seal::Seal;
use crate::shadow::ShadowRow;
use crate::store::{
    CellFilter, CellQuery, Claim, HistoryQuery, HistoryRow, Page, Record, RecordQuery, Recorded, RunQuery,
    Store, StoreError, Tally, WaitQuery, WaitRow,
};

/// Commits what must be applied.
pub async fn apply(store: &dyn Store, commit: Commit) -> Committed {
    store.commit(ME, commit).await.expect("the commit is applied")
}

/// Commits a step that must be applied; gives where the run stands.
pub async fn moved(store: &dyn Store, commit: Commit) -> Head {
    apply(store, commit).await.head.expect("a step gives a head")
}

/// Commits the start of one run; gives where it stands.
pub async fn started(store: &dyn Store, commit: Commit) -> Head {
    apply(store, commit).await.created.pop().expect("a new run gives a head")
}

/// Commits one operation; gives its result.
pub async fn operated(store: &dyn Store, commit: Commit) -> OpResult {
    apply(store, commit).await.results.pop().expect("an operation gives a result")
}

/// Commits what must be refused.
pub async fn refuse(store: &dyn Store, commit: Commit) -> Refused {
    refuse_as(store, ME, commit).await
}

/// Commits what must be refused, as another tenant.
pub async fn refuse_as(store: &dyn Store, scope: TenantScope, commit: Commit) -> Refused {
    match store.commit(scope, commit).await {
        Err(CommitError::Refused(refused)) => refused,
        other => panic!("the commit was to be refused: {:.500}", format!("{other:?}")),
    }
}

/// What became of a commit.
pub async fn outcome(store: &dyn Store, commit: &Commit) -> Option<Recorded> {
    store.outcome(ME, commit.reference()).await.expect("an outcome can be looked up")
}

/// A run that is there.
pub async fn load(store: &dyn Store, run: RunId) -> Loaded {
    find(store, run).await.expect("the run is there")
}

/// A run that may be there.
pub async fn find(store: &dyn Store, run: RunId) -> Option<Loaded> {
    store.load(ME, run).await.expect("a run can be loaded")
}

/// The topics in a run's inbox.
pub async fn topics(store: &dyn Store, run: RunId) -> Vec<String> {
    load(store, run).await.inbox.into_iter().map(|message| message.topic).collect()
}

/// A claim on whatever is due at this second.
pub fn claim(by: ProcessId, seconds: i64) -> Claim {
    Claim { by: Some(by), now: at(seconds), limit: 100, definitions: None, dead: Vec::new() }
}

/// Claims runs.
pub async fn claimed(store: &dyn Store, claim: Claim) -> Vec<Loaded> {
    store.claim(ME, claim).await.expect("a claim is answered").items
}

/// The ids of the runs a claim takes.
pub async fn taken(store: &dyn Store, claim: Claim) -> Vec<RunId> {
    claimed(store, claim).await.into_iter().map(|loaded| loaded.head.run).collect()
}

/// Everything of the suite's usual namespace.
pub fn cells(now: Timestamp) -> CellQuery {
    CellQuery {
        space: Space::Kv,
        owner: NAMESPACE.to_owned(),
        filter: CellFilter::Prefix(String::new()),
        now,
        with_dead: false,
        limit: 200,
        cursor: None,
    }
}

/// A live cell of the usual namespace, at second 0.
pub async fn get(store: &dyn Store, key: &str) -> Option<Cell> {
    get_at(store, key, at(0)).await
}

/// A live cell of the usual namespace.
pub async fn get_at(store: &dyn Store, key: &str, now: Timestamp) -> Option<Cell> {
    let filter = CellFilter::Key(cell(key).key);
    let mut page = store.cells(ME, CellQuery { filter, ..cells(now) }).await.expect("a cell can be read");
    assert!(page.items.len() <= 1 && page.next.is_none(), "a key names one cell: {page:?}");
    page.items.pop()
}

/// A cell of the usual namespace, dead or alive.
pub async fn get_dead(store: &dyn Store, key: &str, now: Timestamp) -> Option<Cell> {
    let query = CellQuery { filter: CellFilter::Key(key.to_owned()), with_dead: true, ..cells(now) };
    store.cells(ME, query).await.expect("a cell can be read").items.pop()
}

/// The keys a listing gives, page by page.
pub async fn keys(store: &dyn Store, query: CellQuery) -> Vec<String> {
    all_cells(store, ME, query).await.into_iter().map(|cell| cell.key.key).collect()
}

/// The record of a key of the usual operation.
pub async fn recorded(store: &dyn Store, key: &str, now: Timestamp) -> Option<Recorded> {
    let query = RecordQuery::Key { operation: OPERATION.to_owned(), key: key.to_owned(), now };
    match store.records(ME, query).await.expect("a record can be read").items.pop()? {
        Record::Key(recorded) => Some(recorded),
        other => panic!("a key was asked for, not {other:?}"),
    }
}

/// Every page of cells.
pub async fn all_cells(store: &dyn Store, scope: TenantScope, query: CellQuery) -> Vec<Cell> {
    every_page(async |cursor| store.cells(scope, CellQuery { cursor, ..query.clone() }).await).await
}

/// Every link of the usual namespace.
pub fn links() -> LinkQuery {
    let which = LinkFilter::All { from: None, to: None };
    LinkQuery { namespace: NAMESPACE.to_owned(), which, relation: None, limit: 200, cursor: None }
}

/// The links of a thing, written `type/id`.
pub fn links_of(end: &str, direction: Direction) -> LinkQuery {
    LinkQuery { which: LinkFilter::Of { end: thing(end), direction, far: None }, ..links() }
}

/// Every page of links.
pub async fn all_links(store: &dyn Store, scope: TenantScope, query: LinkQuery) -> Vec<Link> {
    every_page(async |cursor| store.links(scope, LinkQuery { cursor, ..query.clone() }).await).await
}

/// Every page of runs.
pub async fn all_runs(store: &dyn Store, scope: TenantScope, query: RunQuery) -> Vec<RunSummary> {
    every_page(async |cursor| store.runs(scope, RunQuery { cursor, ..query.clone() }).await).await
}

/// Every page of open waits.
pub async fn all_waits(store: &dyn Store, scope: TenantScope, query: WaitQuery) -> Vec<WaitRow> {
    every_page(async |cursor| store.waits(scope, WaitQuery { cursor, ..query.clone() }).await).await
}

/// The shadow columns of a run that hold something.
pub async fn shadows_of(store: &dyn Store, scope: TenantScope, run: RunId) -> Vec<ShadowRow> {
    let page = store.records(scope, RecordQuery::Shadows(run)).await.expect("shadow columns can be read");
    let rows = page.items.into_iter().map(|record| match record {
        Record::Shadow(row) => row,
        other => panic!("shadow columns were asked for, not {other:?}"),
    });
    rows.collect()
}

fn a_handle(record: Record) -> HandleRow {
    match record {
        Record::Handle(row) => *row,
        other => panic!("a handle was asked for, not {other:?}"),
    }
}

/// The handle of this number.
pub async fn handle(store: &dyn Store, number: u8) -> Option<HandleRow> {
    let query = RecordQuery::Handle(hash(number));
    let mut page = store.records(ME, query).await.expect("a handle can be read");
    assert!(page.items.len() <= 1 && page.next.is_none(), "a hash names one handle: {page:?}");
    page.items.pop().map(a_handle)
}

/// The fence of the handle of this number, if it is there.
pub async fn fence(store: &dyn Store, number: u8) -> Option<u64> {
    handle(store, number).await.map(|row| row.fence)
}

/// Every page of handles.
pub async fn all_handles(store: &dyn Store, scope: TenantScope, query: HandleQuery) -> Vec<HandleRow> {
    let query = |cursor| RecordQuery::Handles(HandleQuery { cursor, ..query.clone() });
    let page = async |cursor| store.records(scope, query(cursor)).await;
    every_page(page).await.into_iter().map(a_handle).collect()
}

/// Handles whose delivery is due.
pub async fn undelivered(
    store: &dyn Store,
    scope: TenantScope,
    now: Timestamp,
    limit: u32,
) -> Vec<HandleRow> {
    let page = store.records(scope, RecordQuery::Undelivered { now, limit }).await;
    let page = page.expect("what is to be sent out can be read");
    assert_eq!(page.next, None, "what is sent out is no longer listed, so the next page is the first again");
    page.items.into_iter().map(a_handle).collect()
}

/// Whether a process lives at this second.
pub async fn lives(store: &dyn Store, process: ProcessId, seconds: i64) -> bool {
    let query = RecordQuery::Living { process, now: at(seconds) };
    let page = store.records(ME, query).await.expect("who lives can be read");
    assert!(page.items.is_empty() || page.items == [Record::Living(process)], "{page:?}");
    !page.items.is_empty()
}

/// Everything a run shows now.
pub fn documents(run: RunId) -> DocumentQuery {
    DocumentQuery { run, at: None, key: None, kind: None, tag: None, limit: 200, cursor: None }
}

/// Every page of a run's documents.
pub async fn all_documents(store: &dyn Store, scope: TenantScope, query: DocumentQuery) -> Vec<Document> {
    every_page(async |cursor| store.documents(scope, DocumentQuery { cursor, ..query.clone() }).await).await
}

/// The keys and bodies a run shows at a version.
pub async fn shown(store: &dyn Store, run: RunId, at: Option<u64>) -> Vec<(String, String)> {
    let found = all_documents(store, ME, DocumentQuery { at, ..documents(run) }).await;
    let text = |document: Document| String::from_utf8(document.body.to_vec()).expect("a note is text");
    found.into_iter().map(|document| (document.key.clone(), text(document))).collect()
}

/// Every page of the definitions.
pub async fn all_definitions(
    store: &dyn Store,
    scope: TenantScope,
    workflow: Option<Name>,
    limit: u32,
) -> Vec<Record> {
    let query = |cursor| RecordQuery::Definitions { workflow: workflow.clone(), limit, cursor };
    every_page(async |cursor| store.records(scope, query(cursor)).await).await
}

/// Every page of the audit trail.
pub async fn all_audit(store: &dyn Store, scope: TenantScope, limit: u32) -> Vec<Record> {
    every_page(async |cursor| store.records(scope, RecordQuery::Audit { limit, cursor }).await).await
}

/// Every page of the commits whose rows are not sealed yet.
pub async fn all_unsealed(store: &dyn Store, scope: TenantScope, limit: u32) -> Vec<CommitId> {
    let page = async |cursor| store.records(scope, RecordQuery::Unsealed { limit, cursor }).await;
    let waiting = every_page(page).await.into_iter().map(|record| match record {
        Record::Unsealed(commit) => commit,
        other => panic!("commits were asked for, not {other:?}"),
    });
    waiting.collect()
}

/// Every page of the seals.
pub async fn all_seals(store: &dyn Store, scope: TenantScope, limit: u32) -> Vec<Seal> {
    let page = async |cursor: Option<String>| {
        let from = cursor.map_or(0, |next| next.parse().expect("the next page begins at a seal"));
        store.records(scope, RecordQuery::Seals { from, limit }).await
    };
    let seals = every_page(page).await.into_iter().map(|record| match record {
        Record::Seal(seal) => seal,
        other => panic!("seals were asked for, not {other:?}"),
    });
    seals.collect()
}

/// Every page of what is in use, and how often.
pub async fn tallied(store: &dyn Store, scope: TenantScope, of: Tally, limit: u32) -> Vec<(String, u64)> {
    let query = |cursor| RecordQuery::Tally { of: of.clone(), limit, cursor };
    let page = async |cursor| store.records(scope, query(cursor)).await;
    let counts = every_page(page).await.into_iter().map(|record| match record {
        Record::Tally { name, count } => (name, count),
        other => panic!("counts were asked for, not {other:?}"),
    });
    counts.collect()
}

/// Every page of a run's history, from the version a query names.
pub async fn all_history(store: &dyn Store, scope: TenantScope, query: HistoryQuery) -> Vec<HistoryRow> {
    every_page(async |cursor: Option<String>| {
        let from = cursor.map_or(query.from, |next| next.parse().expect("the next page begins at a version"));
        store.history(scope, HistoryQuery { from, ..query.clone() }).await
    })
    .await
}

/// Follows a listing to its end.
async fn every_page<T>(page: impl AsyncFn(Option<String>) -> Result<Page<T>, StoreError>) -> Vec<T> {
    let mut items = Vec::new();
    let mut cursor = None;
    loop {
        let Page { items: more, next, .. } = page(cursor.clone()).await.expect("a page can be read");
        assert!(next.is_none() || (!more.is_empty() && next != cursor), "a page leads on: {next:?}");
        items.extend(more);
        cursor = next;
        if cursor.is_none() {
            return items;
        }
    }
}
