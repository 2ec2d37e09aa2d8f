//! Cases about handles: compare-and-set on the fence, atomicity with the rest of the commit, lookup by hash, listings,
//! deliveries and expiry.

use bytes::Bytes;
use serde_json::json;
use std::ops::Bound::{Excluded, Included, Unbounded};

use stepwell_core::Timestamp;
use stepwell_core::shadow::{MAX_TEXT_BYTES, ShadowValue};
use tokio::task::JoinSet;

use super::Shared;
use super::ask::{
    all_audit, all_handles, all_runs, apply, fence, find, get, handle, is_alive, load, moved, outcome,
    recorded, refuse, refuse_as, shadows_of, started, undelivered,
};
use super::make::{
    ME, Make, answer_link, at, attempt, audit, bytes, definition, delete_handle, deliver, due_run, end, flow,
    hash, increment, key, new_run, own, process, put_handle, put_handle_on, run, set, set_shadow, step,
    tenant, to, unset_shadow,
};
use crate::cell::{CellWrite, Precondition};
use crate::commit::{
    Commit, CommitError, CommitId, CommitRef, CommitTrace, NewRun, RECORD_OPERATION, Refused,
};
use crate::handle::{HandleChange, HandleKind, HandleQuery, HandleRow, HandleWrite};
use crate::run::ProcessId;
use crate::run_query::{RunFilter, RunQuery};
use crate::shadow::{ShadowFilter, ShadowWrite};
use crate::store::{
    Cleanup, CleanupKind, CleanupResult, Heartbeat, Record, RecordQuery, Recorded, StoreError,
};

/// An empty list of handle numbers.
const NONE: [u8; 0] = [];

/// Builds a row in which every field has a value, each different from the others.
fn full(number: u8) -> HandleRow {
    HandleRow {
        definition: definition("other"),
        state: bytes("{\"at\":\"wähle\"}"),
        expires_at: Some(at(40)),
        owner: Some(process(3)),
        deliver_at: Some(at(20)),
        delivery: Some(bytes("sealed")),
        created_at: at(-5),
        created_by: Some("ann".to_owned()),
        updated_at: at(7),
        updated_by: Some("bob".to_owned()),
        ..flow(number)
    }
}

/// Returns the row as stored by a commit.
fn left(row: HandleRow, fence: u64, commit: &Commit) -> HandleRow {
    HandleRow { fence, commit: commit.id, ..row }
}

fn stale(number: u8, expected: Option<u64>, actual: Option<u64>) -> Refused {
    Refused::Handle { handle: hash(number), expected, actual }
}

/// Returns one change of each kind for the handle with this number.
fn changes(number: u8) -> Vec<HandleChange> {
    vec![
        HandleChange::Put(Box::new(full(number)), vec![set_shadow("size", "other")]),
        HandleChange::SetOwner(Some(process(2))),
        HandleChange::SetOwner(None),
        HandleChange::Deliver(Some((at(9), bytes("late")))),
        HandleChange::Deliver(None),
        HandleChange::Take,
    ]
}

fn write(number: u8, expected: Option<u64>, then: HandleChange) -> HandleWrite {
    HandleWrite { handle: hash(number), expected, then }
}

/// Puts a handle that does not exist yet, with shadow columns of its flow.
fn put_handle_with(row: HandleRow, shadows: Vec<ShadowWrite>) -> HandleWrite {
    HandleWrite { expected: None, ..put_handle_on(0, row, shadows) }
}

fn in_workflow(row: HandleRow, workflow: &str) -> HandleRow {
    HandleRow { workflow: workflow.into(), ..row }
}

fn until(row: HandleRow, seconds: i64) -> HandleRow {
    HandleRow { expires_at: Some(at(seconds)), ..row }
}

async fn columns(store: &Shared, number: u128) -> Vec<(String, ShadowValue)> {
    let rows = shadows_of(&**store, ME, run(number)).await;
    rows.into_iter().map(|row| (row.name.to_string(), row.value)).collect()
}

fn are<const N: usize>(columns: [(&str, ShadowValue); N]) -> Vec<(String, ShadowValue)> {
    columns.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// Returns the numbers of the handles that a query finds, from all pages.
async fn found(store: &Shared, query: HandleQuery) -> Vec<u8> {
    all_handles(&**store, ME, query).await.into_iter().map(|row| row.handle.0[0]).collect()
}

fn all() -> HandleQuery {
    HandleQuery { limit: 2, ..HandleQuery::default() }
}

fn found_by(name: &str, value: impl Into<ShadowValue>) -> HandleQuery {
    HandleQuery { workflow: Some("orders".into()), shadows: vec![ShadowFilter::equals(name, value)], ..all() }
}

async fn cleanup(store: &Shared, limit: u32, seconds: i64) -> CleanupResult {
    let what = CleanupKind::Handles { expired_by: at(seconds) };
    // `expired_by` decides, not the engine's clock.
    store.cleanup(ME, Cleanup { now: at(-1_000), limit, what }).await.expect("the maintenance succeeds")
}

async fn due(store: &Shared, seconds: i64, limit: u32) -> Vec<u8> {
    undelivered(&**store, ME, at(seconds), limit).await.into_iter().map(|row| row.handle.0[0]).collect()
}

/// Sends all commits at once. Returns the number of applied ones, and the refusals of the others.
async fn race(store: &Shared, commits: Vec<Commit>) -> (usize, Vec<Refused>) {
    let mut tasks = JoinSet::new();
    for commit in commits {
        let store = store.clone();
        tasks.spawn(async move { store.commit(ME, commit).await });
    }
    let (mut applied, mut lost) = (0, Vec::new());
    for answer in tasks.join_all().await {
        match answer {
            Ok(_) => applied += 1,
            Err(CommitError::Refused(refused)) => lost.push(refused),
            Err(other) => panic!("a stale write must be refused, got {other}"),
        }
    }
    (applied, lost)
}

/// Builds a commit that writes something of every kind besides the handles. It applies while the run is at that head.
fn busy(make: &Make, head: &crate::run::Head, handles: Vec<HandleWrite>) -> Commit {
    Commit {
        create: vec![due_run(run(4), 0)],
        send: vec![to(run(2), "hello")],
        cells: vec![set("new", 1)],
        keys: vec![key("b", 2)],
        audit: vec![audit("busy")],
        handles,
        ..make.step(step(head, "next"))
    }
}

cases! { handles as __suite_handles;
    /// E12: shadow columns of a flow in a handle can be corrected. The fence stays the same, so the flow's user does
    /// not notice.
    async fn shadow_columns_of_a_handle_are_corrected_under_its_fence(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([write(1, None, HandleChange::Put(Box::new(full(1)), vec![set_shadow("size", "small")]))])).await;
        let (row, run) = (full(1), full(1).run);
        let columns = vec![set_shadow("size", "large"), set_shadow("total", 3)];
        let refilled = make.handle([write(1, Some(1), HandleChange::WriteShadows(columns))]);
        apply(store, refilled).await;
        let held = shadows_of(&**store, ME, run).await;
        let held: Vec<_> = held.into_iter().map(|row| (row.name.to_string(), row.value)).collect();
        assert_eq!(held, [("size".to_owned(), "large".into()), ("total".to_owned(), 3.into())]);
        let stays = handle(store, 1).await.unwrap();
        assert_eq!((stays.fence, &stays.state, stays.owner), (1, &row.state, row.owner));
        let stale = make.handle([write(1, Some(2), HandleChange::WriteShadows(vec![unset_shadow("size")]))]);
        assert!(matches!(refuse(store, stale).await, Refused::Handle { actual: Some(1), .. }));
        let absent = make.handle([write(2, None, HandleChange::WriteShadows(vec![set_shadow("size", "none")]))]);
        assert!(matches!(refuse(store, absent).await, Refused::Handle { actual: None, .. }));
        apply(store, make.handle([write(1, Some(1), HandleChange::Take)])).await;
        assert_eq!(shadows_of(&**store, ME, run).await, []);
    }

    /// Every field reads back as it was put. The store sets hash, fence and commit.
    async fn every_field_reads_back(store: &Shared) {
        let make = Make::new();
        let raw = Bytes::from_static(b"\0\xFF\xFE{'\"\\");
        let rows = [
            flow(1),
            full(2),
            HandleRow { kind: HandleKind::Link, ..full(3) },
            HandleRow { state: raw.clone(), delivery: Some(raw), ..full(4) },
            HandleRow { state: Bytes::new(), delivery: Some(Bytes::new()), deliver_at: None, ..flow(5) },
            HandleRow { created_by: Some(String::new()), updated_by: Some("注文 'x'".to_owned()), ..flow(6) },
            in_workflow(HandleRow { expires_at: Some(Timestamp::from_micros(-1)), ..flow(7) }, "übung 🚀"),
            HandleRow { state: Bytes::from(vec![b'x'; 1_000_000]), created_at: at(-4_000_000_000), ..flow(8) },
        ];
        for (number, row) in (1..).zip(rows) {
            assert_eq!(handle(store, number).await, None);
            let strange = HandleRow { handle: hash(99), fence: 77, commit: CommitId(uuid::Uuid::max()), ..row.clone() };
            let put = HandleChange::Put(Box::new(strange), Vec::new());
            let commit = make.handle([write(number, None, put)]);
            apply(store, commit.clone()).await;
            assert_eq!(handle(store, number).await, Some(left(row, 1, &commit)));
        }
        assert_eq!(handle(store, 99).await, None);
        assert_eq!(found(store, all()).await, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(all_audit(store, ME, 9).await, [], "handle writes have no audit rows by themselves");
    }

    /// A put replaces every field, also with an absent value.
    async fn a_put_replaces_every_field(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([put_handle(full(1))])).await;
        let other = HandleRow { kind: HandleKind::Link, run: run(9), ..in_workflow(flow(1), "other") };
        let bare = make.handle([put_handle_on(1, other.clone(), vec![])]);
        apply(store, bare.clone()).await;
        assert_eq!(handle(store, 1).await, Some(left(other, 2, &bare)));
        let again = make.handle([put_handle_on(2, full(1), vec![])]);
        apply(store, again.clone()).await;
        assert_eq!(handle(store, 1).await, Some(left(full(1), 3, &again)));
        // Listings use the new values.
        assert_eq!(found(store, HandleQuery { run: Some(run(9)), ..all() }).await, NONE);
        assert_eq!(found(store, HandleQuery { workflow: Some("other".into()), ..all() }).await, NONE);
        assert_eq!(found(store, HandleQuery { run: Some(run(1)), ..all() }).await, [1]);
        assert_eq!(due(store, 20, 9).await, [1]);
    }

    /// A write with a stale fence is refused, and the refusal contains the current fence.
    async fn a_write_with_a_stale_fence_is_refused(store: &Shared) {
        let make = Make::new();
        // The handle does not exist yet.
        for then in changes(1) {
            let is_put = matches!(then, HandleChange::Put(..));
            for expected in [None, Some(0), Some(1), Some(u64::MAX)] {
                if expected.is_some() || !is_put {
                    let refused = refuse(store, make.handle([write(1, expected, then.clone())])).await;
                    assert_eq!(refused, stale(1, expected, None), "{then:?}");
                }
            }
        }
        assert_eq!((handle(store, 1).await, columns(store, 1).await), (None, vec![]));
        apply(store, make.handle([put_handle(flow(1))])).await;
        apply(store, make.handle([own(1, 1, process(1))])).await;
        let before = handle(store, 1).await;
        for then in changes(1) {
            for expected in [None, Some(0), Some(1), Some(3), Some(u64::MAX)] {
                let refused = refuse(store, make.handle([write(1, expected, then.clone())])).await;
                assert_eq!(refused, stale(1, expected, Some(2)), "{then:?}");
            }
        }
        assert_eq!((handle(store, 1).await, columns(store, 1).await), (before, vec![]));
        // A used-up handle does not exist for a writer that read it earlier.
        apply(store, make.handle([delete_handle(1, 2)])).await;
        assert_eq!(refuse(store, make.handle([delete_handle(1, 2)])).await, stale(1, Some(2), None));
        assert_eq!(refuse(store, make.handle([own(1, 2, process(1))])).await, stale(1, Some(2), None));
    }

    /// Every write raises the fence by one.
    async fn every_write_raises_the_fence(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([put_handle(flow(1))])).await;
        let writes = changes(1).into_iter().filter(|then| *then != HandleChange::Take);
        for (expected, then) in (1..).zip(writes) {
            apply(store, make.handle([write(1, Some(expected), then)])).await;
            assert_eq!(fence(store, 1).await, Some(expected + 1));
        }
        // Nothing changes, but the fence that was read earlier is stale.
        apply(store, make.handle([write(1, Some(6), HandleChange::Deliver(None))])).await;
        assert_eq!(refuse(store, make.handle([own(1, 6, process(1))])).await, stale(1, Some(6), Some(7)));
    }

    /// A handle is reserved and released. Besides the owner only fence and commit change.
    async fn a_handle_is_reserved_and_released(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([put_handle(HandleRow { owner: None, ..full(1) })])).await;
        for (expected, owner) in (1..).zip([Some(process(1)), Some(process(2)), None, None]) {
            let commit = make.handle([write(1, Some(expected), HandleChange::SetOwner(owner))]);
            apply(store, Commit { at: at(99), ..commit.clone() }).await;
            let after = HandleRow { owner, ..full(1) };
            assert_eq!(handle(store, 1).await, Some(left(after, expected + 1, &commit)));
        }
    }

    /// A delivery is scheduled and cleared. Besides it only the fence changes.
    async fn a_delivery_is_scheduled_and_cleared(store: &Shared) {
        let make = Make::new();
        let put = make.handle([put_handle(HandleRow { deliver_at: None, delivery: None, ..full(1) })]);
        apply(store, put.clone()).await;
        let deliveries = [
            Some((at(5), bytes("one"))),
            Some((at(4), bytes("two"))),
            None,
            None,
            Some((Timestamp::from_micros(-9), Bytes::new())),
        ];
        for (expected, delivery) in (1..).zip(deliveries) {
            let commit = make.handle([write(1, Some(expected), HandleChange::Deliver(delivery.clone()))]);
            apply(store, Commit { at: at(99), ..commit }).await;
            let (deliver_at, delivery) = delivery.unzip();
            let after = HandleRow { deliver_at, delivery, ..full(1) };
            assert_eq!(handle(store, 1).await, Some(left(after, expected + 1, &put)), "the row keeps the commit of the put");
        }
    }

    /// A used-up handle is deleted and can be put again. Its fence starts again at 1.
    async fn a_used_up_handle_is_deleted(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([put_handle(full(1)), put_handle(flow(2))])).await;
        apply(store, make.handle([own(1, 1, process(1))])).await;
        apply(store, make.handle([delete_handle(1, 2)])).await;
        assert_eq!(handle(store, 1).await, None);
        assert_eq!((found(store, all()).await, due(store, 99, 9).await), (vec![2], vec![]));
        assert_eq!(cleanup(store, 9, 99).await, CleanupResult { count: 0, more: false });
        let anew = make.handle([put_handle(flow(1))]);
        apply(store, anew.clone()).await;
        assert_eq!(handle(store, 1).await, Some(left(flow(1), 1, &anew)));
    }

    /// A flow moves to another handle: one commit deletes the old handle and creates the new one.
    async fn a_flow_moves_to_another_handle(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([put_handle(full(1)), put_handle(flow(3))])).await;
        let next = HandleRow { handle: hash(2), state: bytes("{\"next\":1}"), updated_at: at(30), ..full(1) };
        for (commit, refused) in [
            (make.handle([delete_handle(1, 9), put_handle(next.clone())]), stale(1, Some(9), Some(1))),
            (make.handle([delete_handle(1, 1), put_handle(HandleRow { handle: hash(3), ..next.clone() })]), stale(3, None, Some(1))),
            (make.handle([put_handle(next.clone()), delete_handle(1, 9)]), stale(1, Some(9), Some(1))),
        ] {
            assert_eq!(refuse(store, commit).await, refused);
            assert_eq!(found(store, all()).await, [1, 3]);
        }
        let commit = Commit { at: at(30), ..make.handle([delete_handle(1, 1), put_handle(next.clone())]) };
        apply(store, commit.clone()).await;
        assert_eq!(handle(store, 1).await, None);
        // The creation time is the flow's, not that of the new row.
        assert_eq!(handle(store, 2).await, Some(left(next.clone(), 1, &commit)));
        assert_eq!(found(store, HandleQuery { run: Some(run(1)), ..all() }).await, [2]);
        // The order of the two writes does not matter.
        let back = make.handle([put_handle(HandleRow { handle: hash(1), ..next.clone() }), delete_handle(2, 1)]);
        apply(store, back.clone()).await;
        let expected = left(HandleRow { handle: hash(1), ..next }, 1, &back);
        assert_eq!((handle(store, 1).await, handle(store, 2).await), (Some(expected), None));
    }

    /// Several writes to one handle in one commit build on each other.
    async fn writes_in_one_commit_build_on_each_other(store: &Shared) {
        let make = Make::new();
        let several = make.handle([put_handle(flow(1)), own(1, 1, process(1)), deliver(1, 2, 5), own(1, 3, process(2))]);
        apply(store, several.clone()).await;
        let (deliver_at, delivery) = (Some(at(5)), Some(bytes("sealed")));
        let row = HandleRow { owner: Some(process(2)), deliver_at, delivery, ..flow(1) };
        assert_eq!(handle(store, 1).await, Some(left(row.clone(), 4, &several)));
        for (writes, refused) in [
            (vec![own(1, 4, process(3)), own(1, 4, process(4))], stale(1, Some(4), Some(5))),
            (vec![delete_handle(1, 4), own(1, 5, process(3))], stale(1, Some(5), None)),
            (vec![delete_handle(1, 4), delete_handle(1, 4)], stale(1, Some(4), None)),
            (vec![delete_handle(1, 4), put_handle(flow(1)), delete_handle(1, 5)], stale(1, Some(5), Some(1))),
            (vec![put_handle(flow(2)), put_handle(flow(2))], stale(2, None, Some(1))),
            (vec![put_handle(flow(2)), delete_handle(2, 1), own(2, 1, process(1))], stale(2, Some(1), None)),
        ] {
            assert_eq!(refuse(store, make.handle(writes)).await, refused);
            assert_eq!((handle(store, 1).await, handle(store, 2).await), (Some(left(row.clone(), 4, &several)), None));
        }
        apply(store, make.handle([put_handle(flow(2)), own(2, 1, process(1)), delete_handle(2, 2)])).await;
        assert_eq!(handle(store, 2).await, None, "it was created and used up");
        // Deleted and put again within one commit, it is a new handle.
        let renewed = make.handle([delete_handle(1, 4), put_handle(full(1)), write(1, Some(1), HandleChange::SetOwner(None))]);
        apply(store, renewed.clone()).await;
        assert_eq!(handle(store, 1).await, Some(left(HandleRow { owner: None, ..full(1) }, 2, &renewed)));
    }

    /// B2: a stale handle refuses the whole commit.
    async fn a_refused_handle_refuses_the_whole_commit(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([put_handle_with(flow(5), vec![set_shadow("size", "a")]), put_handle(flow(6))])).await;
        let head = started(store, make.create(new_run(run(1)))).await;
        started(store, make.create(new_run(run(2)))).await;
        let good = vec![put_handle(flow(7)), put_handle_on(1, full(5), vec![set_shadow("size", "b")]), delete_handle(6, 1)];
        for bad in [own(5, 1, process(1)), put_handle(flow(5)), deliver(6, 2, 1), delete_handle(9, 1)] {
            for handles in [[vec![bad.clone()], good.clone()].concat(), [good.clone(), vec![bad]].concat()] {
                let commit = busy(&make, &head, handles);
                let refused = refuse(store, commit.clone()).await;
                assert!(matches!(refused, Refused::Handle { .. }), "{refused:?}");
                assert_eq!(outcome(store, &commit).await, None);
                assert_eq!((load(store, run(1)).await.head, find(store, run(4)).await), (head.clone(), None));
                assert_eq!((load(store, run(2)).await.inbox.len(), get(store, "new").await), (0, None));
                assert_eq!((recorded(store, "b", at(0)).await, all_audit(store, ME, 9).await), (None, vec![]));
                assert_eq!((fence(store, 5).await, fence(store, 6).await, fence(store, 7).await), (Some(1), Some(1), None));
                assert_eq!(columns(store, 5).await, are([("size", "a".into())]));
            }
        }
        let committed = apply(store, busy(&make, &head, good)).await;
        assert_eq!((committed.head.unwrap().version, committed.created.len(), committed.results.len()), (1, 1, 1));
        assert_eq!((fence(store, 5).await, fence(store, 6).await, fence(store, 7).await), (Some(2), None, Some(1)));
        assert_eq!(columns(store, 5).await, are([("size", "b".into())]));
    }

    /// B2: if anything else refuses a commit, its handles stay unchanged.
    async fn any_other_refusal_leaves_the_handles_unchanged(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([put_handle_with(flow(5), vec![set_shadow("size", "a")]), put_handle(flow(6))])).await;
        let create = Commit { keys: vec![key("a", 1)], cells: vec![set("k", 1)], ..make.create(new_run(run(1))) };
        let head = started(store, create).await;
        started(store, make.create(new_run(run(2)))).await;
        let conflict = CellWrite { expect: Precondition::Absent, ..set("k", 2) };
        let spoils: [fn(&mut Commit, CellWrite); 7] = [
            |commit, _| commit.keys.push(key("a", 1)),
            |commit, _| commit.keys.push(key("a", 9)),
            |commit, _| commit.step.as_mut().unwrap().head.revision += 1,
            |commit, _| commit.step.as_mut().unwrap().fence = Some(9),
            |commit, _| commit.create.push(new_run(run(2))),
            |commit, conflict| commit.cells.push(conflict),
            |commit, _| commit.send.push(to(run(9), "no target")),
        ];
        for spoil in spoils {
            let handles = vec![put_handle(flow(7)), put_handle_on(1, full(5), vec![set_shadow("size", "b")]), delete_handle(6, 1)];
            let mut commit = busy(&make, &head, handles);
            spoil(&mut commit, conflict.clone());
            let refused = refuse(store, commit).await;
            assert!(!matches!(refused, Refused::Handle { .. }), "{refused:?}");
            assert_eq!((fence(store, 5).await, fence(store, 6).await, fence(store, 7).await), (Some(1), Some(1), None));
            assert_eq!(columns(store, 5).await, are([("size", "a".into())]));
        }
    }

    /// The first failed check decides: keys, the run, its inbox, new runs, handles, cells.
    async fn a_handle_is_refused_after_runs_and_before_cells(store: &Shared) {
        let make = Make::new();
        let create = Commit { keys: vec![key("a", 1)], cells: vec![set("k", 1)], ..make.create(new_run(run(1))) };
        let head = started(store, create).await;
        let conflict = CellWrite { expect: Precondition::Absent, ..set("k", 2) };
        let mut commit = Commit { cells: vec![conflict], ..make.step(step(&head, "next")) };
        assert!(matches!(refuse(store, commit.clone()).await, Refused::Cell { .. }));
        commit.handles = vec![put_handle(flow(1)), delete_handle(2, 3), delete_handle(3, 4)];
        assert_eq!(refuse(store, commit.clone()).await, stale(2, Some(3), None), "the first failed write decides");
        commit.create = vec![new_run(run(1))];
        assert!(matches!(refuse(store, commit.clone()).await, Refused::RunExists { .. }));
        commit.step.as_mut().unwrap().take = vec![9];
        assert!(matches!(refuse(store, commit.clone()).await, Refused::NoMessage { .. }));
        commit.step.as_mut().unwrap().head.revision = 9;
        assert!(matches!(refuse(store, commit.clone()).await, Refused::Moved { .. }));
        commit.keys = vec![key("a", 1)];
        assert!(matches!(refuse(store, commit.clone()).await, Refused::Done { .. }));
        commit.audit = vec![audit("too many"); 20_000];
        assert!(matches!(refuse(store, commit.clone()).await, Refused::TooLarge(_)));
        commit.handles.push(put_handle(in_workflow(flow(4), "a\0b")));
        assert!(matches!(refuse(store, commit).await, Refused::Nul { .. }));
    }

    /// A step uses up the handle that triggered it. The second use is refused and changes nothing.
    async fn a_step_uses_up_its_handle(store: &Shared) {
        let make = Make::new();
        let start = Commit { handles: vec![put_handle(answer_link(1, run(1)))], ..make.create(new_run(run(1))) };
        let head = started(store, start).await;
        let on = |head| Commit { handles: vec![delete_handle(1, 1)], ..make.step(step(head, "on")) };
        let stale_head = crate::run::Head { revision: head.revision + 5, ..head.clone() };
        assert!(matches!(refuse(store, on(&stale_head)).await, Refused::Moved { .. }));
        assert_eq!(fence(store, 1).await, Some(1));
        let moved = moved(store, on(&head)).await;
        assert_eq!((moved.version, handle(store, 1).await), (1, None));
        assert_eq!(refuse(store, on(&moved)).await, stale(1, Some(1), None));
        assert_eq!(load(store, run(1)).await.head, moved);
    }

    /// E11: a flow's shadow columns are written with its handle, and stay when the flow moves to another handle.
    async fn shadow_columns_move_with_their_flow(store: &Shared) {
        let make = Make::new();
        let first = vec![set_shadow("size", "small"), set_shadow("paid", false), set_shadow("total", 1), set_shadow("total", 2)];
        apply(store, make.handle([put_handle_with(flow(1), first)])).await;
        let began = are([("paid", false.into()), ("size", "small".into()), ("total", 2.into())]);
        assert_eq!(columns(store, 1).await, began);
        // Reserving a handle and scheduling a delivery do not write them.
        apply(store, make.handle([own(1, 1, process(1)), deliver(1, 2, 5)])).await;
        assert_eq!(columns(store, 1).await, began);
        apply(store, make.handle([put_handle_on(3, flow(1), vec![set_shadow("paid", true), unset_shadow("total"), unset_shadow("never")])])).await;
        let then = are([("paid", true.into()), ("size", "small".into())]);
        assert_eq!(columns(store, 1).await, then);
        // The flow moves to another handle.
        let next = |number| HandleRow { handle: hash(number), ..flow(1) };
        apply(store, make.handle([delete_handle(1, 4), put_handle(next(2))])).await;
        assert_eq!(columns(store, 1).await, then);
        apply(store, make.handle([put_handle_with(next(3), vec![set_shadow("total", 7)]), delete_handle(2, 1)])).await;
        let more = are([("paid", true.into()), ("size", "small".into()), ("total", 7.into())]);
        assert_eq!(columns(store, 1).await, more);
        assert_eq!(found(store, found_by("total", 7)).await, [3]);
        // Used up and put again under the same hash, it is the same flow.
        apply(store, make.handle([delete_handle(3, 1), put_handle(next(3))])).await;
        assert_eq!(columns(store, 1).await, more);
    }

    /// E11: when a flow's handle is used up for good, its columns are deleted, and no others.
    async fn shadow_columns_are_deleted_with_their_flow(store: &Shared) {
        let make = Make::new();
        let sized = |number| put_handle_with(flow(number), vec![set_shadow("size", "small")]);
        apply(store, make.handle([sized(1), sized(2), sized(3), sized(4)])).await;
        apply(store, make.handle([delete_handle(1, 1)])).await;
        assert_eq!((columns(store, 1).await, columns(store, 2).await.len()), (vec![], 1));
        // Together with operations on cells and another flow that starts.
        let together = Commit { cells: vec![set("k", 1)], ..make.handle([delete_handle(2, 1), sized(5)]) };
        apply(store, together).await;
        assert_eq!((columns(store, 2).await, columns(store, 5).await.len()), (vec![], 1));
        // The handle is created and used up in one commit.
        apply(store, make.handle([sized(6), delete_handle(6, 1)])).await;
        assert_eq!((columns(store, 6).await, found(store, found_by("size", "small")).await), (vec![], vec![3, 4, 5]));
        // The flow moves to another handle that is used up in the same commit.
        let elsewhere = put_handle_with(HandleRow { handle: hash(9), ..flow(3) }, vec![set_shadow("size", "large")]);
        apply(store, make.handle([delete_handle(3, 1), elsewhere, delete_handle(9, 1)])).await;
        assert_eq!(columns(store, 3).await, []);
        // Another flow or an answer link replaces it.
        apply(store, make.handle([put_handle_on(1, HandleRow { handle: hash(4), ..flow(8) }, vec![])])).await;
        assert_eq!((columns(store, 4).await, columns(store, 8).await), (vec![], vec![]));
        apply(store, make.handle([put_handle_on(1, answer_link(5, run(5)), vec![])])).await;
        assert_eq!(columns(store, 5).await, []);
        // A new flow with an old id starts without columns.
        apply(store, make.handle([put_handle(flow(1))])).await;
        assert_eq!(columns(store, 1).await, []);
    }

    /// E11: a flow that becomes a durable run keeps its columns, and the run is found by them.
    async fn shadow_columns_stay_when_the_flow_becomes_durable(store: &Shared) {
        let make = Make::new();
        let sized = |number| put_handle_with(flow(number), vec![set_shadow("size", "small"), set_shadow("paid", false)]);
        apply(store, make.handle([sized(1), sized(2)])).await;
        let new = NewRun { version: 3, shadows: vec![set_shadow("paid", true)], ..new_run(run(1)) };
        let durable = Commit { handles: vec![delete_handle(1, 1)], ..make.create(new) };
        assert_eq!(started(store, durable.clone()).await.version, 3);
        assert_eq!(columns(store, 1).await, are([("paid", true.into()), ("size", "small".into())]));
        assert_eq!(found(store, found_by("size", "small")).await, [2], "the flow is in no handle any more");
        let query = RunQuery { filter: RunFilter { workflow: Some("orders".into()), shadows: vec![ShadowFilter::equals("size", "small")], ..RunFilter::default() }, limit: 5, ..RunQuery::default() };
        let runs: Vec<_> = all_runs(&**store, ME, query).await.into_iter().map(|row| row.run).collect();
        assert_eq!(runs, [run(1)], "the other flow is not a run");
        assert!(outcome(store, &durable).await.is_some());
        // A run with another id is not the same flow.
        apply(store, Commit { handles: vec![delete_handle(2, 1)], ..make.create(new_run(run(7))) }).await;
        assert_eq!((columns(store, 2).await, columns(store, 7).await), (vec![], vec![]));
    }

    /// An answer link is not the flow itself: the run's columns stay when the link is deleted.
    async fn an_answer_link_does_not_own_the_runs_columns(store: &Shared) {
        let make = Make::new();
        let new = NewRun { shadows: vec![set_shadow("size", "small")], ..new_run(run(1)) };
        let links = [1, 2, 3].map(|number| put_handle(until(answer_link(number, run(1)), 10)));
        let start = Commit { handles: links.to_vec(), ..make.create(new) };
        apply(store, start).await;
        apply(store, make.handle([delete_handle(1, 1), put_handle_on(1, answer_link(2, run(2)), vec![])])).await;
        assert_eq!(cleanup(store, 9, 99).await, CleanupResult { count: 1, more: false });
        assert_eq!(columns(store, 1).await, are([("size", "small".into())]));
        assert_eq!(found(store, found_by("size", "small")).await, NONE, "an answer link holds no flow");
        assert_eq!(found(store, all()).await, [2]);
    }

    /// Handles are listed in the order of run and handle, filtered by workflow, run and creator, in pages.
    async fn handles_are_listed_page_by_page(store: &Shared) {
        let make = Make::new();
        let by = |row, who: &str| HandleRow { created_by: Some(who.to_owned()), ..row };
        // The order of runs, the order of handles and the order of insertion all differ.
        let rows = [
            by(HandleRow { handle: hash(9), ..flow(1) }, "ann"),
            by(answer_link(7, run(2)), "bob"),
            by(in_workflow(answer_link(3, run(2)), "other"), "ann"),
            answer_link(5, run(2)),
            in_workflow(flow(4), "other"),
            by(HandleRow { handle: hash(1), ..flow(6) }, "ann"),
            HandleRow { updated_by: Some("ann".to_owned()), created_by: Some(String::new()), ..flow(8) },
        ];
        apply(store, make.handle(rows.iter().rev().cloned().map(put_handle))).await;
        let [orders, other, none] = ["orders", "other", "none"].map(|name| HandleQuery { workflow: Some(name.into()), ..all() });
        let of = |number| HandleQuery { run: Some(run(number)), ..all() };
        let who = |who: &str, query: HandleQuery| HandleQuery { created_by: Some(who.to_owned()), ..query };
        for limit in [0, 1, 2, 3, 7, 100, u32::MAX] {
            for (query, expected) in [
                (all(), vec![9, 3, 5, 7, 4, 1, 8]),
                (orders.clone(), vec![9, 5, 7, 1, 8]),
                (other.clone(), vec![3, 4]),
                (none.clone(), vec![]),
                (of(2), vec![3, 5, 7]),
                (of(1), vec![9]),
                (of(3), vec![]),
                (who("ann", all()), vec![9, 3, 1]),
                (who("ann", orders.clone()), vec![9, 1]),
                (who("ann", of(2)), vec![3]),
                (who("", all()), vec![8]),
                (who("a\0b", all()), vec![]),
                (HandleQuery { workflow: Some("orders".into()), ..of(2) }, vec![5, 7]),
                (who("bob", HandleQuery { workflow: Some("orders".into()), ..of(2) }), vec![7]),
                (who("bob", HandleQuery { workflow: Some("other".into()), ..of(2) }), vec![]),
            ] {
                assert_eq!(found(store, HandleQuery { limit, ..query.clone() }).await, expected, "{limit} {query:?}");
            }
        }
        let page = store.records(ME, RecordQuery::Handles(all())).await.unwrap();
        assert_eq!((page.items.len(), page.next.is_some()), (2, true));
        let page = store.records(ME, RecordQuery::Handles(HandleQuery { limit: 7, ..all() })).await.unwrap();
        assert_eq!((page.items.len(), page.next), (7, None), "a full page may be the last");
    }

    /// A cursor is a position, whether or not a row is there. A cursor that no listing returned is refused.
    async fn a_listing_of_handles_continues_at_its_cursor(store: &Shared) {
        let make = Make::new();
        let sized = |row: HandleRow| put_handle_with(row, vec![set_shadow("size", "small")]);
        let rows = [flow(1), flow(2), flow(3), HandleRow { handle: hash(7), ..flow(3) }, flow(4)];
        apply(store, make.handle(rows.into_iter().map(sized))).await;
        let orders = HandleQuery { workflow: Some("orders".into()), ..all() };
        let of_run = HandleQuery { run: Some(run(3)), ..all() };
        let by_shadow = found_by("size", "small");
        let from = |number, handle, query: &HandleQuery| {
            let cursor = format!("{}:{}", run(number), hash(handle));
            HandleQuery { cursor: Some(cursor), limit: 9, ..query.clone() }
        };
        let listed = async |query| {
            let page = store.records(ME, RecordQuery::Handles(query)).await.unwrap();
            let mut numbers = Vec::new();
            for item in page.items {
                let crate::store::Record::Handle(row) = item else { panic!("expected a handle") };
                numbers.push(row.handle.0[0]);
            }
            numbers
        };
        for query in [&all(), &orders, &by_shadow] {
            assert_eq!(listed(from(2, 2, query)).await, [3, 7, 4], "{query:?}");
            assert_eq!(listed(from(3, 3, query)).await, [7, 4], "{query:?}");
            assert_eq!(listed(from(3, 5, query)).await, [7, 4], "no handle is at the cursor: {query:?}");
            assert_eq!(listed(from(2, 250, query)).await, [3, 7, 4], "{query:?}");
            assert_eq!(listed(from(4, 4, query)).await, NONE, "{query:?}");
        }
        for (number, handle, expected) in [(1, 250, vec![3, 7]), (3, 3, vec![7]), (3, 7, vec![]), (4, 0, vec![])] {
            assert_eq!(listed(from(number, handle, &of_run)).await, expected, "{number} {handle}");
        }
        // Only the handle that was used up between two pages is missing.
        apply(store, make.handle([delete_handle(2, 1)])).await;
        assert_eq!(listed(from(2, 2, &all())).await, [3, 7, 4]);
        let (run, digits) = (run(1), hash(0xab).to_string());
        let short = &digits[1..];
        for cursor in [
            String::new(),
            "x".to_owned(),
            ":".to_owned(),
            run.to_string(),
            format!("{run}:"),
            format!(":{digits}"),
            format!("x:{digits}"),
            format!("{run}:{short}"),
            format!("{run}:{digits}a"),
            format!("{run}:g{short}"),
            format!("{run}:+{short}"),
            format!("{run}: {short}"),
            format!("{run}:\0{short}"),
            format!("{run}:ü{}", &digits[2..]),
            format!("{run}:{digits}:"),
        ] {
            for query in [&all(), &orders, &of_run, &by_shadow] {
                let query = HandleQuery { cursor: Some(cursor.clone()), ..query.clone() };
                let answer = store.records(ME, RecordQuery::Handles(query)).await;
                assert!(matches!(answer, Err(StoreError::Invalid(_))), "{cursor:?}: {answer:?}");
            }
        }
    }

    /// E11: flows in handles are found by their shadow columns. The query must name the workflow.
    async fn flows_are_found_by_their_columns(store: &Shared) {
        let make = Make::new();
        for number in 1..=9_u8 {
            let size = if number % 3 == 0 { "small" } else { "large" };
            let shadows = vec![set_shadow("size", size), set_shadow("even", number % 2 == 0), set_shadow("third", i32::from(number / 3))];
            let created_by = Some(if number > 6 { "ann" } else { "bob" }.to_owned());
            apply(store, make.handle([put_handle_with(HandleRow { created_by, ..flow(number) }, shadows)])).await;
        }
        // Flows and columns of another workflow are not found, and neither is an answer link to such a flow.
        let alike = || vec![set_shadow("size", "small"), set_shadow("even", true), set_shadow("third", 2)];
        let strange: Vec<_> = alike().into_iter().map(|column| ShadowWrite { workflow: "other".into(), ..column }).collect();
        let elsewhere = [
            put_handle_with(in_workflow(flow(20), "other"), strange.clone()),
            put_handle_with(flow(21), strange),
            put_handle_with(in_workflow(flow(22), "other"), alike()),
            put_handle(answer_link(23, run(6))),
        ];
        apply(store, make.handle(elsewhere)).await;
        for limit in [1, 2, 3, 100] {
            let by = |name: &str, value: ShadowValue| HandleQuery { limit, ..found_by(name, value) };
            assert_eq!(found(store, by("size", "small".into())).await, [3, 6, 9]);
            assert_eq!(found(store, by("even", true.into())).await, [2, 4, 6, 8]);
            assert_eq!(found(store, by("third", 2.into())).await, [6, 7, 8]);
            let mut several = by("even", true.into());
            several.shadows.push(ShadowFilter::equals("third", 2));
            assert_eq!(found(store, several.clone()).await, [6, 8]);
            let ann = HandleQuery { created_by: Some("ann".to_owned()), ..several.clone() };
            assert_eq!(found(store, ann).await, [8]);
            assert_eq!(found(store, HandleQuery { run: Some(run(6)), ..several.clone() }).await, [6]);
            assert_eq!(found(store, HandleQuery { run: Some(run(7)), ..several.clone() }).await, NONE);
            several.shadows.push(ShadowFilter::equals("size", "small"));
            assert_eq!(found(store, several).await, [6]);
        }
        for (name, value) in [("size", "Small"), ("size", ""), ("even", "true"), ("third", "2"), ("none", "small"), ("size", "a\0b")] {
            assert_eq!(found(store, found_by(name, value)).await, NONE, "{name} {value}");
        }
        for limit in [1, 2, 100] {
            let by = |filters: Vec<ShadowFilter>| HandleQuery { limit, shadows: filters, ..found_by("size", "") };
            let third = |from, to| ShadowFilter::numbers("third", from, to);
            assert_eq!(found(store, by(vec![third(Included(1.0), Excluded(3.0))])).await, [3, 4, 5, 6, 7, 8]);
            let small = ShadowFilter::prefix("size", "sm");
            assert_eq!(found(store, by(vec![small.clone()])).await, [3, 6, 9]);
            assert_eq!(found(store, by(vec![ShadowFilter::prefix("size", ""), third(Excluded(1.0), Unbounded)])).await, [7, 8, 6, 9]);
            let ann = HandleQuery { created_by: Some("ann".to_owned()), ..by(vec![small.clone()]) };
            assert_eq!(found(store, ann).await, [9]);
            assert_eq!(found(store, HandleQuery { run: Some(run(6)), ..by(vec![small]) }).await, [6]);
        }
        let other = HandleQuery { workflow: Some("other".into()), ..found_by("size", "small") };
        assert_eq!(found(store, other).await, [20]);
        let strangers = all_handles(&**store, tenant(2), found_by("size", "small")).await;
        assert_eq!(strangers, []);
        for cursor in [None, Some("x".to_owned())] {
            let nameless = HandleQuery { workflow: None, cursor, ..found_by("size", "small") };
            let error = store.records(ME, RecordQuery::Handles(nameless)).await.unwrap_err();
            assert!(matches!(&error, StoreError::Invalid(why) if why.contains("workflow")), "{error}");
        }
    }

    /// Due deliveries are found, earliest first, up to a limit.
    async fn due_deliveries_are_found(store: &Shared) {
        let make = Make::new();
        let rows = (1..=6).map(|number| put_handle(flow(number)));
        apply(store, make.handle(rows)).await;
        assert_eq!(due(store, 1_000, 9).await, NONE);
        let times = [(1, 30), (2, 10), (3, 20), (5, 10), (6, -50)];
        apply(store, make.handle(times.map(|(number, seconds)| deliver(number, 1, seconds)))).await;
        assert_eq!(due(store, -51, 9).await, NONE);
        assert_eq!(due(store, 9, 9).await, [6]);
        assert_eq!(due(store, 10, 9).await, [6, 2, 5], "due from that very instant on");
        assert_eq!(due(store, 99, 9).await, [6, 2, 5, 3, 1]);
        assert_eq!(due(store, 99, 2).await, [6, 2]);
        assert_eq!((due(store, 99, 0).await, due(store, 99, u32::MAX).await.len()), (vec![6], 5));
        let first = undelivered(&**store, ME, at(10), 1).await.remove(0);
        assert_eq!((first.deliver_at, first.delivery, first.fence), (Some(at(-50)), Some(bytes("sealed")), 2));
        // One is sent, one postponed, one used up, one put without a delivery, and one reserved, which changes nothing.
        let sent = write(6, Some(2), HandleChange::Deliver(None));
        apply(store, make.handle([sent, deliver(2, 2, 25), delete_handle(5, 2), put_handle_on(2, flow(3), vec![]), own(1, 2, process(1))])).await;
        assert_eq!(due(store, 99, 9).await, [2, 1]);
        assert_eq!(undelivered(&**store, tenant(2), at(99), 9).await, []);
    }

    /// Expired handles are removed, oldest first, up to a limit. A handle without an expiry stays.
    async fn expired_handles_are_removed(store: &Shared) {
        let make = Make::new();
        let sized = |row: HandleRow| put_handle_with(row, vec![set_shadow("size", "small")]);
        let ends = [(1, 30), (2, 10), (3, 20), (4, 40), (5, -9)];
        let rows = ends.map(|(number, seconds)| sized(until(flow(number), seconds)));
        let forever = HandleRow { deliver_at: Some(at(0)), delivery: Some(bytes("x")), ..flow(6) };
        apply(store, make.handle(rows.into_iter().chain([sized(forever)]))).await;
        store.commit(tenant(2), make.handle([sized(until(flow(1), 1))])).await.unwrap();
        assert_eq!(cleanup(store, 9, -10).await, CleanupResult { count: 0, more: false });
        assert_eq!(cleanup(store, 2, 25).await, CleanupResult { count: 2, more: true });
        assert_eq!(found(store, all()).await, [1, 3, 4, 6], "the oldest are removed first");
        assert_eq!(cleanup(store, 2, 19).await, CleanupResult { count: 0, more: false });
        assert_eq!(cleanup(store, 2, 20).await, CleanupResult { count: 1, more: false }, "expired from that very instant on");
        assert_eq!(cleanup(store, 1, 30).await, CleanupResult { count: 1, more: true }, "the limit was reached");
        assert_eq!(cleanup(store, 1, 30).await, CleanupResult { count: 0, more: false });
        assert_eq!(found(store, all()).await, [4, 6]);
        for (number, held) in [(1, 0), (2, 0), (3, 0), (4, 1), (5, 0), (6, 1)] {
            assert_eq!(columns(store, number).await.len(), held, "flow {number}");
        }
        assert_eq!(found(store, found_by("size", "small")).await, [4, 6]);
        assert_eq!(refuse(store, make.handle([delete_handle(3, 1)])).await, stale(3, Some(1), None));
        // The expiry can be postponed or removed.
        apply(store, make.handle([put_handle_on(1, flow(4), vec![])])).await;
        assert_eq!(cleanup(store, 9, 1_000_000).await.count, 0);
        let others = all_handles(&**store, tenant(2), all()).await;
        assert_eq!((others.len(), shadows_of(&**store, tenant(2), run(1)).await.len()), (1, 1));
    }

    /// Removing an ended run removes the answer links to it.
    async fn removing_a_run_removes_its_answer_links(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        started(store, make.create(new_run(run(2)))).await;
        let links = [answer_link(1, run(1)), until(answer_link(2, run(1)), 999), answer_link(3, run(2))];
        let due_link = HandleRow { deliver_at: Some(at(0)), delivery: Some(bytes("x")), ..answer_link(4, run(1)) };
        let kept = put_handle_with(flow(5), vec![set_shadow("size", "small")]);
        apply(store, make.handle(links.into_iter().chain([due_link]).map(put_handle).chain([kept]))).await;
        store.commit(tenant(2), make.handle([put_handle(answer_link(1, run(1)))])).await.unwrap();
        moved(store, make.step(end(&head))).await;
        assert_eq!(found(store, all()).await, [1, 2, 4, 3, 5], "the links stay while the run exists");
        let what = CleanupKind::Runs(crate::EndedBefore::all(at(1)));
        assert_eq!(store.cleanup(ME, Cleanup { now: at(0), limit: 9, what }).await.unwrap().count, 1);
        assert_eq!((found(store, all()).await, due(store, 99, 9).await), (vec![3, 5], vec![]));
        assert_eq!(columns(store, 5).await.len(), 1);
        assert_eq!(all_handles(&**store, tenant(2), all()).await.len(), 1);
        assert_eq!(refuse(store, make.handle([delete_handle(1, 1)])).await, stale(1, Some(1), None));
    }

    /// D11: the same hash in two tenants is two handles, and neither tenant sees the other's.
    async fn tenants_do_not_see_each_others_handles(store: &Shared) {
        let make = Make::new();
        let (one, two) = (ME, tenant(2));
        assert_eq!(store.tenants(None, 9).await, Ok(vec![]));
        let first = make.handle([put_handle_with(HandleRow { deliver_at: Some(at(0)), ..full(1) }, vec![set_shadow("size", "one")])]);
        apply(store, first.clone()).await;
        assert_eq!(store.tenants(None, 9).await, Ok(vec![one.tenant()]), "a handle counts as data");
        assert_eq!(refuse_as(store, two, make.handle([own(1, 1, process(1))])).await, stale(1, Some(1), None));
        assert_eq!(refuse_as(store, two, make.handle([delete_handle(1, 1)])).await, stale(1, Some(1), None));
        let in_two = async || {
            let query = RecordQuery::Handle(hash(1));
            store.records(two, query).await.unwrap().items
        };
        assert_eq!((in_two().await, all_handles(&**store, two, all()).await), (vec![], vec![]));
        assert_eq!((undelivered(&**store, two, at(99), 9).await, shadows_of(&**store, two, run(1)).await), (vec![], vec![]));
        assert_eq!(store.outcome(two, first.reference()).await, Ok(None));
        store.commit(two, make.handle([put_handle_with(flow(1), vec![set_shadow("size", "two")])])).await.unwrap();
        assert_eq!(store.tenants(None, 9).await, Ok(vec![one.tenant(), two.tenant()]));
        assert_eq!(handle(store, 1).await, Some(left(HandleRow { deliver_at: Some(at(0)), ..full(1) }, 1, &first)));
        // Using up or removing a handle in one tenant does not affect the other.
        let what = CleanupKind::Handles { expired_by: at(9_999) };
        assert_eq!(store.cleanup(two, Cleanup { now: at(0), limit: 9, what }).await.unwrap().count, 0);
        store.commit(two, make.handle([own(1, 1, process(1)), delete_handle(1, 2)])).await.unwrap();
        assert_eq!((in_two().await, fence(store, 1).await), (vec![], Some(1)));
        assert_eq!(columns(store, 1).await, are([("size", "one".into())]));
        assert_eq!(cleanup(store, 9, 99).await.count, 1);
        assert_eq!(handle(store, 1).await, None);
    }

    /// C7: a commit that puts or reserves a handle is found in the handle's row, until another commit does so.
    async fn the_outcome_is_found_in_the_handles_row(store: &Shared) {
        let make = Make::new();
        let applied = Some(Recorded { results: vec![], answer: None, request: None });
        let put = make.handle([put_handle(flow(1))]);
        assert_eq!(put.reference().at, CommitTrace::Handle(hash(1)));
        assert_eq!(outcome(store, &put).await, None);
        apply(store, put.clone()).await;
        assert_eq!(outcome(store, &put).await, applied);
        assert_eq!(refuse(store, put.clone()).await, stale(1, None, Some(1)), "a repeated commit is refused");
        apply(store, make.handle([deliver(1, 1, 5)])).await;
        assert_eq!(outcome(store, &put).await, applied, "a delivery keeps the trace");
        let (owned, rival) = (make.handle([own(1, 2, process(1))]), make.handle([own(1, 2, process(2))]));
        apply(store, owned.clone()).await;
        refuse(store, rival.clone()).await;
        assert_eq!((outcome(store, &owned).await, outcome(store, &rival).await), (applied.clone(), None));
        assert_eq!(outcome(store, &put).await, None, "the row belongs to another commit");
        // The last of several writes counts; for a move it is the new handle.
        let move_on = make.handle([delete_handle(1, 3), put_handle(HandleRow { handle: hash(2), ..flow(1) })]);
        assert_eq!(move_on.reference().at, CommitTrace::Handle(hash(2)));
        apply(store, move_on.clone()).await;
        assert_eq!((outcome(store, &move_on).await, outcome(store, &owned).await), (applied.clone(), None));
        // A step that changes only the row and a message leave no trace, so the handle's row is used.
        let head = started(store, make.create(new_run(run(5)))).await;
        let tried = Commit { handles: vec![put_handle(flow(3))], send: vec![to(run(5), "x")], ..make.step(attempt(&head, Some("{}"))) };
        assert_eq!(tried.reference().at, CommitTrace::Handle(hash(3)));
        apply(store, tried.clone()).await;
        assert_eq!(outcome(store, &tried).await, applied);
        // Only the delivery left a record.
        let what = CleanupKind::Keys;
        assert_eq!(store.cleanup(ME, Cleanup { now: at(1_000_000), limit: 9, what }).await.unwrap().count, 1, "the delivery");
        let nowhere = CommitRef { id: put.id, at: CommitTrace::Handle(hash(77)) };
        assert_eq!(store.outcome(ME, nowhere).await, Ok(None));
    }

    /// C7: a commit is recorded under a key if its handles keep no trace of it, or if it has results.
    async fn the_outcome_of_handle_writes_without_a_trace_is_recorded(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle((1..=6).map(|number| put_handle(flow(number))))).await;
        let commits = [
            make.handle([delete_handle(1, 1)]),
            make.handle([deliver(2, 1, 5)]),
            make.handle([own(3, 1, process(1)), delete_handle(4, 1)]),
            Commit { cells: vec![increment("count", 1)], ..make.handle([delete_handle(5, 1)]) },
            Commit { cells: vec![increment("count", 1)], ..make.handle([own(6, 1, process(1))]) },
            Commit { cells: vec![increment("count", 1)], ..make.handle([put_handle(flow(7))]) },
        ];
        for commit in &commits {
            let place = CommitTrace::Key { operation: RECORD_OPERATION.to_owned(), key: commit.id.0.to_string() };
            assert_eq!(commit.reference().at, place);
            assert_eq!(outcome(store, commit).await, None);
            let results = apply(store, commit.clone()).await.results;
            assert_eq!(results.len(), commit.cells.len());
            assert_eq!(outcome(store, commit).await, Some(Recorded { results, answer: Some(Bytes::new()), request: None }));
            assert!(matches!(refuse(store, commit.clone()).await, Refused::Done { .. }), "it is applied once");
        }
        assert_eq!(get(store, "count").await.unwrap().value, Some(json!(3)));
        // With a key or a checkpoint it is found there, with its results.
        let keyed = Commit { keys: vec![key("a", 1)], ..make.handle([put_handle(flow(8))]) };
        let new = Commit { handles: vec![put_handle(answer_link(9, run(20)))], cells: vec![increment("count", 1)], ..make.create(new_run(run(20))) };
        assert!(matches!(keyed.reference().at, CommitTrace::Key { operation, .. } if operation != RECORD_OPERATION));
        assert!(matches!(new.reference().at, CommitTrace::Checkpoint { .. }));
        for commit in [keyed, new] {
            let results = apply(store, commit.clone()).await.results;
            assert_eq!(outcome(store, &commit).await.unwrap().results, results);
        }
    }

    /// Some databases cannot store a NUL character in text, so no store accepts one.
    async fn a_handle_with_a_nul_character_is_refused(store: &Shared) {
        let make = Make::new();
        let nul = "a\0b".to_owned();
        let commits = [
            make.handle([put_handle(in_workflow(flow(1), &nul))]),
            make.handle([put_handle(HandleRow { created_by: Some(nul.clone()), ..flow(1) })]),
            make.handle([put_handle(HandleRow { updated_by: Some(nul.clone()), ..flow(1) })]),
            make.handle([put_handle_with(flow(1), vec![set_shadow(&nul, 1)])]),
            make.handle([put_handle_with(flow(1), vec![set_shadow("size", nul.clone())])]),
            make.handle([put_handle_with(flow(1), vec![ShadowWrite { workflow: nul.as_str().into(), ..set_shadow("size", 1) }])]),
        ];
        for commit in commits {
            let refused = refuse(store, commit.clone()).await;
            assert!(matches!(&refused, Refused::Nul { text, .. } if *text == nul), "{refused} for {commit:?}");
        }
        // Byte fields may contain any byte.
        let raw = HandleRow { state: bytes(&nul), delivery: Some(bytes(&nul)), deliver_at: Some(at(0)), ..flow(1) };
        apply(store, make.handle([put_handle(raw.clone())])).await;
        assert_eq!(handle(store, 1).await.unwrap().state, raw.state);
    }

    /// The content of handles counts against the size of the commit.
    async fn handles_count_against_the_size_of_a_commit(store: &Shared) {
        let make = Make::new();
        let large = |bytes: usize| Bytes::from(vec![b'x'; bytes]);
        let half = 8 * 1024 * 1024;
        let with_state = |number, bytes| put_handle(HandleRow { state: large(bytes), ..flow(number) });
        let both = HandleRow { state: large(half), deliver_at: Some(at(0)), delivery: Some(large(half + 1)), ..flow(1) };
        apply(store, make.handle([put_handle(flow(9))])).await;
        let sent = HandleChange::Deliver(Some((at(0), large(2 * half + 1))));
        let many = (0..20_001).map(|number| set_shadow(&format!("c{number}"), 1)).collect();
        for (commit, limit) in [
            (make.handle([put_handle(both)]), "commit_bytes"),
            (make.handle([write(9, Some(1), sent)]), "commit_bytes"),
            (make.handle((1..=5).map(|number| with_state(number, half / 2))), "commit_bytes"),
            (make.handle([put_handle_with(flow(1), many)]), "commit_rows"),
            (make.handle((0..20_001).map(|_| delete_handle(9, 1))), "commit_rows"),
            (make.handle([put_handle_with(flow(1), vec![set_shadow("size", "x".repeat(MAX_TEXT_BYTES + 1))])]), "shadow_bytes"),
        ] {
            let refused = refuse(store, commit).await;
            assert!(matches!(&refused, Refused::TooLarge(exceeded) if exceeded.limit == limit), "{limit}: {refused}");
        }
        assert_eq!((found(store, all()).await, fence(store, 9).await), (vec![9], Some(1)));
        apply(store, make.handle((1..=4).map(|number| with_state(number, half / 4)))).await;
        assert_eq!(handle(store, 4).await.unwrap().state.len(), half / 4);
    }

    /// The process that reserved a handle can be looked up. It is alive while its lease is valid.
    async fn a_process_is_alive_while_its_lease_is_valid(store: &Shared) {
        let beat = |number, seconds| Heartbeat { process: process(number), now: at(seconds), lease_ms: 10_000 };
        assert!(!is_alive(store, process(1), 0).await, "it has sent no heartbeat");
        store.heartbeat(beat(1, 0)).await.unwrap();
        assert!(is_alive(store, process(1), 0).await && is_alive(store, process(1), 9).await);
        assert!(!is_alive(store, process(1), 10).await, "its lease ends at this very instant");
        store.heartbeat(beat(2, 5)).await.unwrap();
        assert!(is_alive(store, process(1), 9).await && is_alive(store, process(2), 9).await);
        store.heartbeat(beat(1, 8)).await.unwrap();
        assert!(is_alive(store, process(1), 17).await && !is_alive(store, process(2), 17).await);
        assert!(!is_alive(store, process(3), 9).await);
        // A process that owns something but sent no heartbeat is not alive.
        let make = Make::new();
        apply(store, make.create(NewRun { owner: Some(process(4)), ..new_run(run(1)) })).await;
        apply(store, make.handle([put_handle(HandleRow { owner: Some(process(3)), ..flow(1) })])).await;
        store.heartbeat(beat(1, 20)).await.unwrap();
        for expired in [2, 3, 4] {
            assert!(!is_alive(store, process(expired), 21).await, "process {expired}");
        }
        let query = RecordQuery::AliveProcess { process: process(1), now: at(21) };
        assert_eq!(store.records(tenant(7), query).await.unwrap().items.len(), 1, "processes belong to no tenant");
        let known = store.records(tenant(7), RecordQuery::Processes { limit: 10 }).await.unwrap();
        let until = |wanted: u128| {
            known.items.iter().find_map(|record| match record {
                Record::Process { process: known, lease_until } if *known == process(wanted) => Some(*lease_until),
                _ => None,
            })
        };
        assert_eq!((until(1), known.next), (Some(at(30)), None), "its heartbeat at 20 has a lease of 10 seconds");
    }

    /// Of many writers that read the same fence one is applied. The others are refused with the current fence.
    async fn one_writer_wins_each_fence(store: &Shared) {
        let make = Make::new();
        for round in 0..5_u64 {
            let put = |number: u8| make.handle([put_handle(HandleRow { state: vec![number].into(), ..flow(1) })]);
            let (applied, lost) = race(store, (0..8).map(put).collect()).await;
            assert_eq!((applied, lost), (1, vec![stale(1, None, Some(1)); 7]), "round {round}");
            for fence in 1..=3 {
                let owners = (0..8).map(|number| make.handle([own(1, fence, process(number))])).collect();
                let (applied, lost) = race(store, owners).await;
                assert_eq!((applied, lost), (1, vec![stale(1, Some(fence), Some(fence + 1)); 7]), "round {round}");
            }
            // Only the writer that uses it up writes its other changes.
            let takers = (0..8_u64).map(|_| Commit { cells: vec![increment("count", 1)], ..make.handle([delete_handle(1, 4)]) });
            let (applied, lost) = race(store, takers.collect()).await;
            assert_eq!((applied, lost), (1, vec![stale(1, Some(4), None); 7]), "round {round}");
            assert_eq!(get(store, "count").await.unwrap().value, Some(json!(round + 1)));
        }
    }

    /// Writers that read again after a refusal lose no update.
    async fn writers_that_read_again_all_succeed(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([put_handle(flow(1)), put_handle(flow(2))])).await;
        let mut tasks = JoinSet::new();
        for number in 0..6 {
            let store = store.clone();
            let ids: Vec<_> = (0..4_000).map(|_| make.commit()).collect();
            tasks.spawn(async move { push(&store, ids, process(number)).await });
        }
        let refused: usize = tasks.join_all().await.into_iter().sum();
        assert_eq!(fence(store, 1).await, Some(1 + 6 * 5), "{refused} refusals");
        assert_eq!(fence(store, 2).await, Some(1 + 6 * 5));
    }

    /// Writers of different handles do not conflict.
    async fn writers_of_different_handles_do_not_conflict(store: &Shared) {
        let make = Make::new();
        let put = |number: u8| make.handle([put_handle_with(flow(number), vec![set_shadow("size", i32::from(number))])]);
        assert_eq!(race(store, (1..=20).map(put).collect()).await, (20, vec![]));
        let step = |number: u8| make.handle([delete_handle(number, 1), put_handle(HandleRow { handle: hash(100 + number), ..flow(number) })]);
        assert_eq!(race(store, (1..=20).map(step).collect()).await, (20, vec![]));
        assert_eq!(found(store, all()).await, (101..=120).collect::<Vec<_>>());
        for number in 1..=20_u8 {
            assert_eq!(columns(store, number.into()).await, are([("size", i32::from(number).into())]));
        }
    }
}

/// Writes two handles five times under the fences that it read, in either order. Returns the number of refusals.
async fn push(store: &Shared, commits: Vec<Commit>, by: ProcessId) -> usize {
    let (mut done, mut late) = (0, 0);
    for commit in commits {
        let [one, two] = [1, 2].map(|number| fence(store, number));
        let mut handles = vec![own(1, one.await.unwrap(), by), own(2, two.await.unwrap(), by)];
        if late % 2 == 1 {
            handles.reverse();
        }
        match store.commit(ME, Commit { handles, ..commit }).await {
            Ok(_) => done += 1,
            Err(CommitError::Refused(Refused::Handle { .. })) => late += 1,
            Err(other) => panic!("a stale write must be refused, got {other}"),
        }
        if done == 5 {
            return late;
        }
    }
    panic!("{done} of five writes after {late} refusals");
}
