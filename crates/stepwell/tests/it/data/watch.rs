//! Watching values: a watcher gets the newest value from any writer, even without a change notification.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::json;
use stepwell::core::RunId;
use stepwell::data::{Set, SlotEvent};
use stepwell::engine::Builder;
use stepwell::store::{
    Cell, CellQuery, Claim, Cleanup, CleanupResult, Commit, CommitError, CommitRef, Committed, Document,
    DocumentQuery, DueTenant, Heartbeat, HintSender, Hints, HistoryQuery, HistoryRow, Link, LinkQuery,
    Loaded, Membership, Page, ProcessId, Record, RecordQuery, Recorded, RunQuery, RunSummary, SchemaVersion,
    Store, StoreError, TenantId, TenantScope, WaitQuery, WaitRow,
};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{Engine, ManualClock};

use super::as_time_passes;
use crate::kit::{ground, soon};

async fn on(store: Arc<dyn Store>, clock: &ManualClock) -> TestEngine {
    TestEngine::start_on(store, clock.clone(), |builder| builder).await.unwrap()
}

async fn two() -> (TestEngine, TestEngine) {
    let (store, clock) = ground().await;
    (on(store.clone(), &clock).await, on(store, &clock).await)
}

fn slot(engine: &Engine) -> stepwell::data::Slot<i64> {
    engine.state().workflow("w", "watched")
}

/// Returns whether nothing arrives for a short time.
async fn is_quiet<T>(what: impl Future<Output = T>) -> bool {
    tokio::time::timeout(Duration::from_millis(20), what).await.is_err()
}

fn change(value: Option<i64>, previous: Option<i64>, version: u64) -> SlotEvent<i64> {
    SlotEvent::Change { value, previous, version }
}

#[tokio::test]
async fn a_watcher_sees_changes_made_by_another_engine() {
    let (here, there) = two().await;
    let mut seen = Box::pin(slot(&here).watch().unwrap());
    assert_eq!(soon(seen.next()).await.unwrap().unwrap(), change(None, None, 0));
    slot(&there).set(&1).await.unwrap();
    assert_eq!(soon(seen.next()).await.unwrap().unwrap(), change(Some(1), None, 1));
    slot(&there).increment(4).await.unwrap();
    assert_eq!(soon(seen.next()).await.unwrap().unwrap(), change(Some(5), Some(1), 2));
    slot(&there).delete().await.unwrap();
    assert_eq!(soon(seen.next()).await.unwrap().unwrap(), change(None, Some(5), 3));
    slot(&here).set(&6).await.unwrap();
    assert_eq!(soon(seen.next()).await.unwrap().unwrap(), change(Some(6), None, 4), "and its own changes");
    let mut late = Box::pin(slot(&there).watch().unwrap());
    assert_eq!(soon(late.next()).await.unwrap().unwrap(), change(Some(6), None, 4));
}

#[tokio::test]
async fn a_watcher_sees_only_its_own_slot() {
    let (here, there) = two().await;
    let mut seen = Box::pin(slot(&here).watch().unwrap());
    soon(seen.next()).await.unwrap().unwrap();
    there.state().workflow::<i64>("w", "another").set(&1).await.unwrap();
    there.state().workflow::<i64>("another", "watched").set(&1).await.unwrap();
    there.kv("w").set("watched", 1).await.unwrap();
    slot(&there.for_tenant(crate::kit::other_tenant())).set(&1).await.unwrap();
    assert!(is_quiet(seen.next()).await);
    slot(&there).set(&2).await.unwrap();
    assert_eq!(soon(seen.next()).await.unwrap().unwrap(), change(Some(2), None, 1));
}

/// A watcher that is slower than the writers gets the newest value and may skip others.
#[tokio::test]
async fn a_slow_watcher_skips_values_but_versions_rise() {
    let (here, there) = two().await;
    let mut seen = Box::pin(slot(&here).watch().unwrap());
    soon(seen.next()).await.unwrap().unwrap();
    let writes = async {
        for _ in 0..40 {
            slot(&there).increment(1).await.unwrap();
        }
    };
    let watch = async {
        let (mut last, mut version) = (None, 0);
        while version < 40 {
            let SlotEvent::Change { value, previous, version: next } = seen.next().await.unwrap().unwrap()
            else {
                panic!("a watcher receives changes only");
            };
            assert!(next > version, "{next} after {version}");
            assert_eq!((previous, value), (last, Some(i64::try_from(next).unwrap())));
            (last, version) = (value, next);
        }
    };
    soon(futures_util::future::join(writes, watch)).await;
}

#[tokio::test]
async fn a_watcher_sees_a_key_expire() {
    let (store, clock) = ground().await;
    let (here, there) = (on(store.clone(), &clock).await, on(store, &clock).await);
    there.kv("test").set_with("a", Set::new(1).ttl(Duration::from_secs(10))).await.unwrap();
    let mut seen = Box::pin(here.kv("test").watch("a").unwrap());
    let first = soon(seen.next()).await.unwrap().unwrap();
    assert_eq!((first.value, first.version), (Some(json!(1)), 1));
    assert!(is_quiet(seen.next()).await);
    let ends = clock_at(&here, 10);
    clock.set(clock_at(&here, 9));
    assert!(is_quiet(seen.next()).await, "not before it expires");
    clock.set(ends);
    let last = soon(seen.next()).await.unwrap().unwrap();
    assert_eq!((last.value, last.previous, last.version), (None, Some(json!(1)), 1));
    there.kv("test").set("a", 2).await.unwrap();
    let anew = soon(seen.next()).await.unwrap().unwrap();
    assert_eq!((anew.value, anew.previous, anew.version), (Some(json!(2)), None, 2));
}

fn clock_at(engine: &Engine, seconds: u64) -> stepwell::core::Timestamp {
    engine.now().plus_ms(seconds * 1_000)
}

#[tokio::test]
async fn a_watcher_follows_an_extended_ttl() {
    let (store, clock) = ground().await;
    let engine = on(store, &clock).await;
    let kv = engine.kv("test");
    kv.set_with("a", Set::new(1).ttl(Duration::from_secs(10))).await.unwrap();
    let mut seen = Box::pin(kv.watch("a").unwrap());
    soon(seen.next()).await.unwrap().unwrap();
    kv.set_with("a", Set::new(2).ttl(Duration::from_secs(60))).await.unwrap();
    assert_eq!(soon(seen.next()).await.unwrap().unwrap().value, Some(json!(2)));
    clock.set(clock_at(&engine, 30));
    assert!(is_quiet(seen.next()).await);
    clock.set(clock_at(&engine, 30));
    assert_eq!(soon(seen.next()).await.unwrap().unwrap().value, None);
}

#[tokio::test]
async fn a_watcher_without_notifications_polls() {
    let (store, clock) = ground().await;
    let deaf: Arc<dyn Store> = Arc::new(Deaf(store.clone()));
    let often = |builder: Builder| builder.with(|options| options.poll_ms = 1_000);
    let here = TestEngine::start_on(deaf, clock.clone(), often).await.unwrap();
    let there = on(store, &clock).await;
    let mut seen = Box::pin(slot(&here).watch().unwrap());
    soon(seen.next()).await.unwrap().unwrap();
    for value in 1..4 {
        assert!(is_quiet(seen.next()).await);
        slot(&there).increment(1).await.unwrap();
        assert!(is_quiet(seen.next()).await, "no notification arrives");
        let next = as_time_passes(&clock, seen.next()).await.unwrap().unwrap();
        assert!(matches!(next, SlotEvent::Change { value: Some(now), .. } if now == value), "{next:?}");
    }
    assert!(here.now().ms_since(BEGINS) < 60_000);
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A store that never sends change notifications.
struct Deaf(Arc<dyn Store>);

macro_rules! forward {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)+) => {$(
        fn $name<'a, 'b>(&'a self, $($arg: $kind),*) -> Answer<'b, $answer>
        where
            'a: 'b,
            Self: 'b,
        {
            self.0.$name($($arg),*)
        }
    )+};
}

impl Store for Deaf {
    fn hints(&self) -> Hints {
        HintSender::default().subscribe()
    }

    forward! {
        commit(scope: TenantScope, commit: Commit) -> Result<Committed, CommitError>;
        outcome(scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError>;
        load(scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError>;
        claim(scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError>;
        due(expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError>;
        heartbeat(beat: Heartbeat) -> Result<Membership, StoreError>;
        cells(scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError>;
        runs(scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError>;
        links(scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError>;
        waits(scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError>;
        history(scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError>;
        documents(scope: TenantScope, query: DocumentQuery) -> Result<Page<Document>, StoreError>;
        records(scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError>;
        cleanup(scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError>;
        tenants(after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError>;
        migrate() -> Result<SchemaVersion, StoreError>;
    }
}
