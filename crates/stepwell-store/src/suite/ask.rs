//! Helpers that call a store as the suite's usual tenant and panic if the call fails.

use stepwell_core::{Name, RunId, Timestamp};

use super::make::{ME, NAMESPACE, OPERATION, at, cell, hash, thing};
use crate::cell::{Cell, OpResult, Space};
use crate::commit::{Commit, CommitError, CommitId, Committed, Refused};
use crate::document::{Document, DocumentQuery};
use crate::handle::{HandleQuery, HandleRow};
use crate::link::{Direction, Link, LinkFilter, LinkQuery};
use crate::run::{Head, Loaded, ProcessId, RunSummary};
use crate::run_query::RunQuery;
use crate::scope::TenantScope;
use crate::seal::Seal;
use crate::shadow::ShadowRow;
use crate::store::{
    CellFilter, CellQuery, Claim, CountQuery, HistoryQuery, HistoryRow, Page, Record, RecordQuery, Recorded,
    Store, StoreError, WaitQuery, WaitRow,
};

/// Commits and expects success.
pub async fn apply(store: &dyn Store, commit: Commit) -> Committed {
    store.commit(ME, commit).await.expect("the commit is applied")
}

/// Commits a step and returns the run's head.
pub async fn moved(store: &dyn Store, commit: Commit) -> Head {
    apply(store, commit).await.head.expect("a step returns a head")
}

/// Commits the start of one run and returns its head.
pub async fn started(store: &dyn Store, commit: Commit) -> Head {
    apply(store, commit).await.created.pop().expect("a new run returns a head")
}

/// Commits one operation and returns its result.
pub async fn apply_one(store: &dyn Store, commit: Commit) -> OpResult {
    apply(store, commit).await.results.pop().expect("an operation returns a result")
}

/// Commits, expects a refusal and returns it.
pub async fn refuse(store: &dyn Store, commit: Commit) -> Refused {
    refuse_as(store, ME, commit).await
}

/// Commits for another tenant, expects a refusal and returns it.
pub async fn refuse_as(store: &dyn Store, scope: TenantScope, commit: Commit) -> Refused {
    match store.commit(scope, commit).await {
        Err(CommitError::Refused(refused)) => refused,
        other => panic!("expected a refusal, got {:.500}", format!("{other:?}")),
    }
}

/// Looks up the outcome of a commit.
pub async fn outcome(store: &dyn Store, commit: &Commit) -> Option<Recorded> {
    store.outcome(ME, commit.reference()).await.expect("an outcome can be looked up")
}

/// Loads a run that must exist.
pub async fn load(store: &dyn Store, run: RunId) -> Loaded {
    find(store, run).await.expect("the run exists")
}

/// Loads a run that may not exist.
pub async fn find(store: &dyn Store, run: RunId) -> Option<Loaded> {
    store.load(ME, run).await.expect("a run can be loaded")
}

/// Returns the topics in a run's inbox.
pub async fn topics(store: &dyn Store, run: RunId) -> Vec<String> {
    load(store, run).await.inbox.into_iter().map(|message| message.topic).collect()
}

/// Builds a claim of every run that is due at this second.
pub fn claim(by: ProcessId, seconds: i64) -> Claim {
    Claim { by: Some(by), now: at(seconds), limit: 100, definitions: None, expired: Vec::new() }
}

pub async fn claimed(store: &dyn Store, claim: Claim) -> Vec<Loaded> {
    store.claim(ME, claim).await.expect("the claim succeeds").items
}

/// Claims runs and returns their ids.
pub async fn taken(store: &dyn Store, claim: Claim) -> Vec<RunId> {
    claimed(store, claim).await.into_iter().map(|loaded| loaded.head.run).collect()
}

/// Builds a query for all live cells of the usual namespace.
pub fn cells(now: Timestamp) -> CellQuery {
    CellQuery {
        space: Space::Kv,
        owner: NAMESPACE.to_owned(),
        filter: CellFilter::Prefix(String::new()),
        now,
        include_deleted: false,
        limit: 200,
        cursor: None,
    }
}

/// Returns a live cell of the usual namespace at second 0.
pub async fn get(store: &dyn Store, key: &str) -> Option<Cell> {
    get_at(store, key, at(0)).await
}

/// Returns a live cell of the usual namespace.
pub async fn get_at(store: &dyn Store, key: &str, now: Timestamp) -> Option<Cell> {
    let filter = CellFilter::Key(cell(key).key);
    let mut page = store.cells(ME, CellQuery { filter, ..cells(now) }).await.expect("a cell can be read");
    assert!(page.items.len() <= 1 && page.next.is_none(), "a key names one cell: {page:?}");
    page.items.pop()
}

/// Returns a cell of the usual namespace, whether it is live, deleted or expired.
pub async fn get_any(store: &dyn Store, key: &str, now: Timestamp) -> Option<Cell> {
    let query = CellQuery { filter: CellFilter::Key(key.to_owned()), include_deleted: true, ..cells(now) };
    store.cells(ME, query).await.expect("a cell can be read").items.pop()
}

/// Returns the keys of all pages of a listing.
pub async fn keys(store: &dyn Store, query: CellQuery) -> Vec<String> {
    all_cells(store, ME, query).await.into_iter().map(|cell| cell.key.key).collect()
}

/// Returns the record of a key of the usual operation.
pub async fn recorded(store: &dyn Store, key: &str, now: Timestamp) -> Option<Recorded> {
    let query = RecordQuery::Key { operation: OPERATION.to_owned(), key: key.to_owned(), now };
    match store.records(ME, query).await.expect("a record can be read").items.pop()? {
        Record::Key(recorded) => Some(recorded),
        other => panic!("expected a key, got {other:?}"),
    }
}

/// Returns the cells of all pages.
pub async fn all_cells(store: &dyn Store, scope: TenantScope, query: CellQuery) -> Vec<Cell> {
    every_page(async |cursor| store.cells(scope, CellQuery { cursor, ..query.clone() }).await).await
}

/// Builds a query for all links of the usual namespace.
pub fn links() -> LinkQuery {
    let which = LinkFilter::All { from: None, to: None };
    LinkQuery { namespace: NAMESPACE.to_owned(), which, relation: None, limit: 200, cursor: None }
}

/// Builds a query for the links of an entity, written `type/id`.
pub fn links_of(end: &str, direction: Direction) -> LinkQuery {
    LinkQuery { which: LinkFilter::Of { end: thing(end), direction, far: None }, ..links() }
}

/// Returns the links of all pages.
pub async fn all_links(store: &dyn Store, scope: TenantScope, query: LinkQuery) -> Vec<Link> {
    every_page(async |cursor| store.links(scope, LinkQuery { cursor, ..query.clone() }).await).await
}

/// Returns the runs of all pages.
pub async fn all_runs(store: &dyn Store, scope: TenantScope, query: RunQuery) -> Vec<RunSummary> {
    every_page(async |cursor| store.runs(scope, RunQuery { cursor, ..query.clone() }).await).await
}

/// Returns the open waits of all pages.
pub async fn all_waits(store: &dyn Store, scope: TenantScope, query: WaitQuery) -> Vec<WaitRow> {
    every_page(async |cursor| store.waits(scope, WaitQuery { cursor, ..query.clone() }).await).await
}

/// Returns the shadow columns of a run that have a value.
pub async fn shadows_of(store: &dyn Store, scope: TenantScope, run: RunId) -> Vec<ShadowRow> {
    let page = store.records(scope, RecordQuery::Shadows(run)).await.expect("shadow columns can be read");
    let rows = page.items.into_iter().map(|record| match record {
        Record::Shadow(row) => row,
        other => panic!("expected a shadow column, got {other:?}"),
    });
    rows.collect()
}

fn a_handle(record: Record) -> HandleRow {
    match record {
        Record::Handle(row) => *row,
        other => panic!("expected a handle, got {other:?}"),
    }
}

/// Returns the handle with this number.
pub async fn handle(store: &dyn Store, number: u8) -> Option<HandleRow> {
    let query = RecordQuery::Handle(hash(number));
    let mut page = store.records(ME, query).await.expect("a handle can be read");
    assert!(page.items.len() <= 1 && page.next.is_none(), "a hash names one handle: {page:?}");
    page.items.pop().map(a_handle)
}

/// Returns the fence of the handle with this number.
pub async fn fence(store: &dyn Store, number: u8) -> Option<u64> {
    handle(store, number).await.map(|row| row.fence)
}

/// Returns the handles of all pages.
pub async fn all_handles(store: &dyn Store, scope: TenantScope, query: HandleQuery) -> Vec<HandleRow> {
    let query = |cursor| RecordQuery::Handles(HandleQuery { cursor, ..query.clone() });
    let page = async |cursor| store.records(scope, query(cursor)).await;
    every_page(page).await.into_iter().map(a_handle).collect()
}

/// Returns the handles whose delivery is due.
pub async fn undelivered(
    store: &dyn Store,
    scope: TenantScope,
    now: Timestamp,
    limit: u32,
) -> Vec<HandleRow> {
    let page = store.records(scope, RecordQuery::Undelivered { now, limit }).await;
    let page = page.expect("due deliveries can be read");
    assert_eq!(page.next, None, "a sent delivery is no longer listed, so there is only a first page");
    page.items.into_iter().map(a_handle).collect()
}

/// Returns true if the process has a valid lease at this second.
pub async fn is_alive(store: &dyn Store, process: ProcessId, seconds: i64) -> bool {
    let query = RecordQuery::AliveProcess { process, now: at(seconds) };
    let page = store.records(ME, query).await.expect("a process can be looked up");
    assert!(page.items.is_empty() || page.items == [Record::AliveProcess(process)], "{page:?}");
    !page.items.is_empty()
}

/// Builds a query for all documents that a run shows now.
pub fn documents(run: RunId) -> DocumentQuery {
    DocumentQuery { run, at: None, key: None, kind: None, tag: None, limit: 200, cursor: None }
}

/// Returns the documents of all pages.
pub async fn all_documents(store: &dyn Store, scope: TenantScope, query: DocumentQuery) -> Vec<Document> {
    every_page(async |cursor| store.documents(scope, DocumentQuery { cursor, ..query.clone() }).await).await
}

/// Returns the keys and bodies of the documents that a run shows at a version.
pub async fn shown(store: &dyn Store, run: RunId, at: Option<u64>) -> Vec<(String, String)> {
    let found = all_documents(store, ME, DocumentQuery { at, ..documents(run) }).await;
    let text = |document: Document| String::from_utf8(document.body.to_vec()).expect("a note is text");
    found.into_iter().map(|document| (document.key.clone(), text(document))).collect()
}

/// Returns the definitions of all pages.
pub async fn all_definitions(
    store: &dyn Store,
    scope: TenantScope,
    workflow: Option<Name>,
    limit: u32,
) -> Vec<Record> {
    let query = |cursor| RecordQuery::Definitions { workflow: workflow.clone(), limit, cursor };
    every_page(async |cursor| store.records(scope, query(cursor)).await).await
}

/// Returns the audit rows of all pages.
pub async fn all_audit(store: &dyn Store, scope: TenantScope, limit: u32) -> Vec<Record> {
    every_page(async |cursor| store.records(scope, RecordQuery::Audit { limit, cursor }).await).await
}

/// Returns all commits whose audit rows are not sealed yet.
pub async fn all_unsealed(store: &dyn Store, scope: TenantScope, limit: u32) -> Vec<CommitId> {
    let page = async |cursor| store.records(scope, RecordQuery::Unsealed { limit, cursor }).await;
    let waiting = every_page(page).await.into_iter().map(|record| match record {
        Record::Unsealed(commit) => commit,
        other => panic!("expected a commit, got {other:?}"),
    });
    waiting.collect()
}

/// Returns the seals of all pages.
pub async fn all_seals(store: &dyn Store, scope: TenantScope, limit: u32) -> Vec<Seal> {
    let page = async |cursor: Option<String>| {
        let from = cursor.map_or(0, |next| next.parse().expect("the next page begins at a seal"));
        store.records(scope, RecordQuery::Seals { from, limit }).await
    };
    let seals = every_page(page).await.into_iter().map(|record| match record {
        Record::Seal(seal) => seal,
        other => panic!("expected a seal, got {other:?}"),
    });
    seals.collect()
}

/// Returns the names and counts of all pages.
pub async fn tallied(
    store: &dyn Store,
    scope: TenantScope,
    of: CountQuery,
    limit: u32,
) -> Vec<(String, u64)> {
    let query = |cursor| RecordQuery::Count { of: of.clone(), limit, cursor };
    let page = async |cursor| store.records(scope, query(cursor)).await;
    let counts = every_page(page).await.into_iter().map(|record| match record {
        Record::Count { name, count } => (name, count),
        other => panic!("expected a count, got {other:?}"),
    });
    counts.collect()
}

/// Returns a run's history of all pages, from the version that the query names.
pub async fn all_history(store: &dyn Store, scope: TenantScope, query: HistoryQuery) -> Vec<HistoryRow> {
    every_page(async |cursor: Option<String>| {
        let from = cursor.map_or(query.from, |next| next.parse().expect("the next page begins at a version"));
        store.history(scope, HistoryQuery { from, ..query.clone() }).await
    })
    .await
}

/// Reads a listing to its end.
async fn every_page<T>(page: impl AsyncFn(Option<String>) -> Result<Page<T>, StoreError>) -> Vec<T> {
    let mut items = Vec::new();
    let mut cursor = None;
    loop {
        let Page { items: more, next, .. } = page(cursor.clone()).await.expect("a page can be read");
        assert!(
            next.is_none() || (!more.is_empty() && next != cursor),
            "the cursor does not advance: {next:?}"
        );
        items.extend(more);
        cursor = next;
        if cursor.is_none() {
            return items;
        }
    }
}
