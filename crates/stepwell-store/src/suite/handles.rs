//! Cases about handles: written by compare-and-set on a fence, whole with everything else, found by their hash, in
//! listings and when they are due or over.

use bytes::Bytes;
use serde_json::json;
use stepwell_core::Timestamp;
use stepwell_core::shadow::{MAX_TEXT_BYTES, ShadowValue};
use tokio::task::JoinSet;

use super::Shared;
use super::ask::{
    all_audit, all_handles, all_runs, apply, fence, find, get, handle, lives, load, moved, outcome, recorded,
    refuse, refuse_as, shadows_of, started, undelivered,
};
use super::make::{
    ME, Make, at, attempt, audit, bytes, definition, deliver, due_run, end, flow, hash, increment, key,
    leading, new_run, own, process, rest, rest_on, run, set, shade, step, tenant, to, unshade, use_up,
};
use crate::cell::{CellWrite, Expect};
use crate::commit::{
    Commit, CommitError, CommitId, CommitRef, NewRun, RECORD_OPERATION, Refused, Whereabouts,
};
use crate::handle::{HandleChange, HandleKind, HandleQuery, HandleRow, HandleWrite};
use crate::run::ProcessId;
use crate::shadow::ShadowWrite;
use crate::store::{Beat, Record, RecordQuery, Recorded, RunQuery, StoreError, Sweep, SweepWhat, Swept};

/// No handle.
const NONE: [u8; 0] = [];

/// Everything of it has a value, and none of these is the value of another.
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

/// A row as a commit leaves it.
fn left(row: HandleRow, fence: u64, commit: &Commit) -> HandleRow {
    HandleRow { fence, commit: commit.id, ..row }
}

fn stale(number: u8, expected: Option<u64>, actual: Option<u64>) -> Refused {
    Refused::Handle { handle: hash(number), expected, actual }
}

/// What a write does to the handle of a number, whatever its fence is said to be.
fn changes(number: u8) -> Vec<HandleChange> {
    vec![
        HandleChange::Put(Box::new(full(number)), vec![shade("size", "other")]),
        HandleChange::Own(Some(process(2))),
        HandleChange::Own(None),
        HandleChange::Deliver(Some((at(9), bytes("late")))),
        HandleChange::Deliver(None),
        HandleChange::Take,
    ]
}

fn write(number: u8, expected: Option<u64>, then: HandleChange) -> HandleWrite {
    HandleWrite { handle: hash(number), expected, then }
}

/// Puts a handle that is not there, with shadow columns of its flow.
fn rest_with(row: HandleRow, shadows: Vec<ShadowWrite>) -> HandleWrite {
    HandleWrite { expected: None, ..rest_on(0, row, shadows) }
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

/// The handles a query finds, by their numbers, page by page.
async fn found(store: &Shared, query: HandleQuery) -> Vec<u8> {
    all_handles(&**store, ME, query).await.into_iter().map(|row| row.handle.0[0]).collect()
}

fn all() -> HandleQuery {
    HandleQuery { limit: 2, ..HandleQuery::default() }
}

fn found_by(name: &str, value: impl Into<ShadowValue>) -> HandleQuery {
    HandleQuery { workflow: Some("orders".into()), shadows: vec![(name.into(), value.into())], ..all() }
}

async fn sweep(store: &Shared, limit: u32, seconds: i64) -> Swept {
    let what = SweepWhat::Handles { expired_by: at(seconds) };
    // What is over is over by the time that is named, whatever the engine's is.
    store.sweep(ME, Sweep { now: at(-1_000), limit, what }).await.expect("a sweep is answered")
}

async fn due(store: &Shared, seconds: i64, limit: u32) -> Vec<u8> {
    undelivered(&**store, ME, at(seconds), limit).await.into_iter().map(|row| row.handle.0[0]).collect()
}

/// Sends all of these at once; gives how many were applied, and what the others were refused with.
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
            Err(other) => panic!("whoever is late is refused: {other}"),
        }
    }
    (applied, lost)
}

/// Everything a commit may do beside its handles, as long as the run is at that head.
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
    /// E12: columns of a flow that rests are made what they should be; whoever has it in hand does not notice.
    async fn columns_of_a_resting_flow_are_refilled_and_its_fence_stays(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([write(1, None, HandleChange::Put(Box::new(full(1)), vec![shade("size", "small")]))])).await;
        let (row, run) = (full(1), full(1).run);
        let columns = vec![shade("size", "large"), shade("total", 3)];
        let refilled = make.handle([write(1, Some(1), HandleChange::Shade(columns))]);
        apply(store, refilled).await;
        let held = shadows_of(&**store, ME, run).await;
        let held: Vec<_> = held.into_iter().map(|row| (row.name.to_string(), row.value)).collect();
        assert_eq!(held, [("size".to_owned(), "large".into()), ("total".to_owned(), 3.into())]);
        let stays = handle(store, 1).await.unwrap();
        assert_eq!((stays.fence, &stays.state, stays.owner), (1, &row.state, row.owner));
        let stale = make.handle([write(1, Some(2), HandleChange::Shade(vec![unshade("size")]))]);
        assert!(matches!(refuse(store, stale).await, Refused::Handle { actual: Some(1), .. }));
        let absent = make.handle([write(2, None, HandleChange::Shade(vec![shade("size", "none")]))]);
        assert!(matches!(refuse(store, absent).await, Refused::Handle { actual: None, .. }));
        apply(store, make.handle([write(1, Some(1), HandleChange::Take)])).await;
        assert_eq!(shadows_of(&**store, ME, run).await, []);
    }

    /// What was put is read back, field by field; its hash, fence and commit are the store's to say.
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
        assert_eq!(all_audit(store, ME, 9).await, [], "handles are on record only where somebody says so");
    }

    /// A put replaces every field: what has no value any more has none.
    async fn a_put_replaces_every_field(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([rest(full(1))])).await;
        let other = HandleRow { kind: HandleKind::Link, run: run(9), ..in_workflow(flow(1), "other") };
        let bare = make.handle([rest_on(1, other.clone(), vec![])]);
        apply(store, bare.clone()).await;
        assert_eq!(handle(store, 1).await, Some(left(other, 2, &bare)));
        let again = make.handle([rest_on(2, full(1), vec![])]);
        apply(store, again.clone()).await;
        assert_eq!(handle(store, 1).await, Some(left(full(1), 3, &again)));
        // Whatever listings go by is what it is now.
        assert_eq!(found(store, HandleQuery { run: Some(run(9)), ..all() }).await, NONE);
        assert_eq!(found(store, HandleQuery { workflow: Some("other".into()), ..all() }).await, NONE);
        assert_eq!(found(store, HandleQuery { run: Some(run(1)), ..all() }).await, [1]);
        assert_eq!(due(store, 20, 9).await, [1]);
    }

    /// A write that does not name the fence the handle is under is refused, and says what it is.
    async fn a_write_names_the_fence_it_was_decided_on(store: &Shared) {
        let make = Make::new();
        // None is there.
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
        apply(store, make.handle([rest(flow(1))])).await;
        apply(store, make.handle([own(1, 1, process(1))])).await;
        let before = handle(store, 1).await;
        for then in changes(1) {
            for expected in [None, Some(0), Some(1), Some(3), Some(u64::MAX)] {
                let refused = refuse(store, make.handle([write(1, expected, then.clone())])).await;
                assert_eq!(refused, stale(1, expected, Some(2)), "{then:?}");
            }
        }
        assert_eq!((handle(store, 1).await, columns(store, 1).await), (before, vec![]));
        // Used up, it is not there for anybody who has seen it.
        apply(store, make.handle([use_up(1, 2)])).await;
        assert_eq!(refuse(store, make.handle([use_up(1, 2)])).await, stale(1, Some(2), None));
        assert_eq!(refuse(store, make.handle([own(1, 2, process(1))])).await, stale(1, Some(2), None));
    }

    /// Every write raises the fence by one, whatever it does.
    async fn every_write_raises_the_fence(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([rest(flow(1))])).await;
        let writes = changes(1).into_iter().filter(|then| *then != HandleChange::Take);
        for (expected, then) in (1..).zip(writes) {
            apply(store, make.handle([write(1, Some(expected), then)])).await;
            assert_eq!(fence(store, 1).await, Some(expected + 1));
        }
        // Nothing changes, but whoever has read it before is late.
        apply(store, make.handle([write(1, Some(6), HandleChange::Deliver(None))])).await;
        assert_eq!(refuse(store, make.handle([own(1, 6, process(1))])).await, stale(1, Some(6), Some(7)));
    }

    /// An owner comes and goes; nothing else of the row changes but fence and commit.
    async fn an_owner_comes_and_goes(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([rest(HandleRow { owner: None, ..full(1) })])).await;
        for (expected, owner) in (1..).zip([Some(process(1)), Some(process(2)), None, None]) {
            let commit = make.handle([write(1, Some(expected), HandleChange::Own(owner))]);
            apply(store, Commit { at: at(99), ..commit.clone() }).await;
            let after = HandleRow { owner, ..full(1) };
            assert_eq!(handle(store, 1).await, Some(left(after, expected + 1, &commit)));
        }
    }

    /// What is to be sent out is put there and cleared; nothing else of the row changes but the fence.
    async fn what_is_to_be_sent_out_is_put_and_cleared(store: &Shared) {
        let make = Make::new();
        let put = make.handle([rest(HandleRow { deliver_at: None, delivery: None, ..full(1) })]);
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
            assert_eq!(handle(store, 1).await, Some(left(after, expected + 1, &put)), "the commit is the put's");
        }
    }

    /// What is used up is gone, and may be put anew; its fence begins anew too.
    async fn what_is_used_up_is_gone(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([rest(full(1)), rest(flow(2))])).await;
        apply(store, make.handle([own(1, 1, process(1))])).await;
        apply(store, make.handle([use_up(1, 2)])).await;
        assert_eq!(handle(store, 1).await, None);
        assert_eq!((found(store, all()).await, due(store, 99, 9).await), (vec![2], vec![]));
        assert_eq!(sweep(store, 9, 99).await, Swept { count: 0, more: false });
        let anew = make.handle([rest(flow(1))]);
        apply(store, anew.clone()).await;
        assert_eq!(handle(store, 1).await, Some(left(flow(1), 1, &anew)));
    }

    /// A flow moves on to another handle: the old one goes and the new one comes in one commit.
    async fn a_flow_moves_to_another_handle(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([rest(full(1)), rest(flow(3))])).await;
        let next = HandleRow { handle: hash(2), state: bytes("{\"next\":1}"), updated_at: at(30), ..full(1) };
        for (commit, refused) in [
            (make.handle([use_up(1, 9), rest(next.clone())]), stale(1, Some(9), Some(1))),
            (make.handle([use_up(1, 1), rest(HandleRow { handle: hash(3), ..next.clone() })]), stale(3, None, Some(1))),
            (make.handle([rest(next.clone()), use_up(1, 9)]), stale(1, Some(9), Some(1))),
        ] {
            assert_eq!(refuse(store, commit).await, refused);
            assert_eq!(found(store, all()).await, [1, 3]);
        }
        let commit = Commit { at: at(30), ..make.handle([use_up(1, 1), rest(next.clone())]) };
        apply(store, commit.clone()).await;
        assert_eq!(handle(store, 1).await, None);
        // The flow is as old as it says, not as old as its row.
        assert_eq!(handle(store, 2).await, Some(left(next.clone(), 1, &commit)));
        assert_eq!(found(store, HandleQuery { run: Some(run(1)), ..all() }).await, [2]);
        // The order of the two does not matter.
        let back = make.handle([rest(HandleRow { handle: hash(1), ..next.clone() }), use_up(2, 1)]);
        apply(store, back.clone()).await;
        let expected = left(HandleRow { handle: hash(1), ..next }, 1, &back);
        assert_eq!((handle(store, 1).await, handle(store, 2).await), (Some(expected), None));
    }

    /// Several writes to one handle in one commit build on each other.
    async fn writes_in_one_commit_build_on_each_other(store: &Shared) {
        let make = Make::new();
        let several = make.handle([rest(flow(1)), own(1, 1, process(1)), deliver(1, 2, 5), own(1, 3, process(2))]);
        apply(store, several.clone()).await;
        let (deliver_at, delivery) = (Some(at(5)), Some(bytes("sealed")));
        let row = HandleRow { owner: Some(process(2)), deliver_at, delivery, ..flow(1) };
        assert_eq!(handle(store, 1).await, Some(left(row.clone(), 4, &several)));
        for (writes, refused) in [
            (vec![own(1, 4, process(3)), own(1, 4, process(4))], stale(1, Some(4), Some(5))),
            (vec![use_up(1, 4), own(1, 5, process(3))], stale(1, Some(5), None)),
            (vec![use_up(1, 4), use_up(1, 4)], stale(1, Some(4), None)),
            (vec![use_up(1, 4), rest(flow(1)), use_up(1, 5)], stale(1, Some(5), Some(1))),
            (vec![rest(flow(2)), rest(flow(2))], stale(2, None, Some(1))),
            (vec![rest(flow(2)), use_up(2, 1), own(2, 1, process(1))], stale(2, Some(1), None)),
        ] {
            assert_eq!(refuse(store, make.handle(writes)).await, refused);
            assert_eq!((handle(store, 1).await, handle(store, 2).await), (Some(left(row.clone(), 4, &several)), None));
        }
        apply(store, make.handle([rest(flow(2)), own(2, 1, process(1)), use_up(2, 2)])).await;
        assert_eq!(handle(store, 2).await, None, "it came and went");
        // Gone and put again within one commit, it is a new one.
        let renewed = make.handle([use_up(1, 4), rest(full(1)), write(1, Some(1), HandleChange::Own(None))]);
        apply(store, renewed.clone()).await;
        assert_eq!(handle(store, 1).await, Some(left(HandleRow { owner: None, ..full(1) }, 2, &renewed)));
    }

    /// B2: a handle that is not as it was read refuses everything else, too.
    async fn a_refused_handle_refuses_the_whole_commit(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([rest_with(flow(5), vec![shade("size", "a")]), rest(flow(6))])).await;
        let head = started(store, make.create(new_run(run(1)))).await;
        started(store, make.create(new_run(run(2)))).await;
        let good = vec![rest(flow(7)), rest_on(1, full(5), vec![shade("size", "b")]), use_up(6, 1)];
        for bad in [own(5, 1, process(1)), rest(flow(5)), deliver(6, 2, 1), use_up(9, 1)] {
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

    /// B2: whatever else refuses a commit, its handles stay as they were.
    async fn any_other_refusal_leaves_the_handles(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([rest_with(flow(5), vec![shade("size", "a")]), rest(flow(6))])).await;
        let create = Commit { keys: vec![key("a", 1)], cells: vec![set("k", 1)], ..make.create(new_run(run(1))) };
        let head = started(store, create).await;
        started(store, make.create(new_run(run(2)))).await;
        let conflict = CellWrite { expect: Expect::Absent, ..set("k", 2) };
        let spoils: [fn(&mut Commit, CellWrite); 7] = [
            |commit, _| commit.keys.push(key("a", 1)),
            |commit, _| commit.keys.push(key("a", 9)),
            |commit, _| commit.step.as_mut().unwrap().head.revision += 1,
            |commit, _| commit.step.as_mut().unwrap().fence = Some(9),
            |commit, _| commit.create.push(new_run(run(2))),
            |commit, conflict| commit.cells.push(conflict),
            |commit, _| commit.send.push(to(run(9), "nobody")),
        ];
        for spoil in spoils {
            let handles = vec![rest(flow(7)), rest_on(1, full(5), vec![shade("size", "b")]), use_up(6, 1)];
            let mut commit = busy(&make, &head, handles);
            spoil(&mut commit, conflict.clone());
            let refused = refuse(store, commit).await;
            assert!(!matches!(refused, Refused::Handle { .. }), "{refused:?}");
            assert_eq!((fence(store, 5).await, fence(store, 6).await, fence(store, 7).await), (Some(1), Some(1), None));
            assert_eq!(columns(store, 5).await, are([("size", "a".into())]));
        }
    }

    /// The first thing that cannot be done is the answer: keys, the run, its inbox, new runs, handles, cells.
    async fn a_handle_is_refused_after_runs_and_before_cells(store: &Shared) {
        let make = Make::new();
        let create = Commit { keys: vec![key("a", 1)], cells: vec![set("k", 1)], ..make.create(new_run(run(1))) };
        let head = started(store, create).await;
        let conflict = CellWrite { expect: Expect::Absent, ..set("k", 2) };
        let mut commit = Commit { cells: vec![conflict], ..make.step(step(&head, "next")) };
        assert!(matches!(refuse(store, commit.clone()).await, Refused::Cell { .. }));
        commit.handles = vec![rest(flow(1)), use_up(2, 3), use_up(3, 4)];
        assert_eq!(refuse(store, commit.clone()).await, stale(2, Some(3), None), "the first in their order");
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
        commit.handles.push(rest(in_workflow(flow(4), "a\0b")));
        assert!(matches!(refuse(store, commit).await, Refused::Nul { .. }));
    }

    /// A step uses up the handle that led to it: whoever comes second with it is told so, and moves nothing.
    async fn a_step_uses_up_the_handle_that_led_to_it(store: &Shared) {
        let make = Make::new();
        let start = Commit { handles: vec![rest(leading(1, run(1)))], ..make.create(new_run(run(1))) };
        let head = started(store, start).await;
        let on = |head| Commit { handles: vec![use_up(1, 1)], ..make.step(step(head, "on")) };
        let stale_head = crate::run::Head { revision: head.revision + 5, ..head.clone() };
        assert!(matches!(refuse(store, on(&stale_head)).await, Refused::Moved { .. }));
        assert_eq!(fence(store, 1).await, Some(1));
        let moved = moved(store, on(&head)).await;
        assert_eq!((moved.version, handle(store, 1).await), (1, None));
        assert_eq!(refuse(store, on(&moved)).await, stale(1, Some(1), None));
        assert_eq!(load(store, run(1)).await.head, moved);
    }

    /// E11: a flow's shadow columns are written with its handle, and stay with the flow when it moves to another.
    async fn shadow_columns_go_with_their_flow(store: &Shared) {
        let make = Make::new();
        let first = vec![shade("size", "small"), shade("paid", false), shade("total", 1), shade("total", 2)];
        apply(store, make.handle([rest_with(flow(1), first)])).await;
        let began = are([("paid", false.into()), ("size", "small".into()), ("total", 2.into())]);
        assert_eq!(columns(store, 1).await, began);
        // Nothing but a put writes them.
        apply(store, make.handle([own(1, 1, process(1)), deliver(1, 2, 5)])).await;
        assert_eq!(columns(store, 1).await, began);
        apply(store, make.handle([rest_on(3, flow(1), vec![shade("paid", true), unshade("total"), unshade("never")])])).await;
        let then = are([("paid", true.into()), ("size", "small".into())]);
        assert_eq!(columns(store, 1).await, then);
        // The flow goes on behind another handle.
        let next = |number| HandleRow { handle: hash(number), ..flow(1) };
        apply(store, make.handle([use_up(1, 4), rest(next(2))])).await;
        assert_eq!(columns(store, 1).await, then);
        apply(store, make.handle([rest_with(next(3), vec![shade("total", 7)]), use_up(2, 1)])).await;
        let more = are([("paid", true.into()), ("size", "small".into()), ("total", 7.into())]);
        assert_eq!(columns(store, 1).await, more);
        assert_eq!(found(store, found_by("total", 7)).await, [3]);
        // Gone and put again behind the same handle, it is the same flow.
        apply(store, make.handle([use_up(3, 1), rest(next(3))])).await;
        assert_eq!(columns(store, 1).await, more);
    }

    /// E11: when a flow's handle is taken for good its columns go, and only its own.
    async fn shadow_columns_go_when_their_flow_does(store: &Shared) {
        let make = Make::new();
        let sized = |number| rest_with(flow(number), vec![shade("size", "small")]);
        apply(store, make.handle([sized(1), sized(2), sized(3), sized(4)])).await;
        apply(store, make.handle([use_up(1, 1)])).await;
        assert_eq!((columns(store, 1).await, columns(store, 2).await.len()), (vec![], 1));
        // Beside operations, and with another flow that begins.
        let beside = Commit { cells: vec![set("k", 1)], ..make.handle([use_up(2, 1), sized(5)]) };
        apply(store, beside).await;
        assert_eq!((columns(store, 2).await, columns(store, 5).await.len()), (vec![], 1));
        // It comes and goes in one commit.
        apply(store, make.handle([sized(6), use_up(6, 1)])).await;
        assert_eq!((columns(store, 6).await, found(store, found_by("size", "small")).await), (vec![], vec![3, 4, 5]));
        // It was to go on elsewhere, and goes there too.
        let elsewhere = rest_with(HandleRow { handle: hash(9), ..flow(3) }, vec![shade("size", "large")]);
        apply(store, make.handle([use_up(3, 1), elsewhere, use_up(9, 1)])).await;
        assert_eq!(columns(store, 3).await, []);
        // Another flow takes its place, or a handle that leads to a run does.
        apply(store, make.handle([rest_on(1, HandleRow { handle: hash(4), ..flow(8) }, vec![])])).await;
        assert_eq!((columns(store, 4).await, columns(store, 8).await), (vec![], vec![]));
        apply(store, make.handle([rest_on(1, leading(5, run(5)), vec![])])).await;
        assert_eq!(columns(store, 5).await, []);
        // Under an old id, a flow begins without them.
        apply(store, make.handle([rest(flow(1))])).await;
        assert_eq!(columns(store, 1).await, []);
    }

    /// E11: a flow that goes on as a durable run keeps its columns, and the run is found by them.
    async fn shadow_columns_stay_when_the_flow_becomes_durable(store: &Shared) {
        let make = Make::new();
        let sized = |number| rest_with(flow(number), vec![shade("size", "small"), shade("paid", false)]);
        apply(store, make.handle([sized(1), sized(2)])).await;
        let new = NewRun { version: 3, shadows: vec![shade("paid", true)], ..new_run(run(1)) };
        let durable = Commit { handles: vec![use_up(1, 1)], ..make.create(new) };
        assert_eq!(started(store, durable.clone()).await.version, 3);
        assert_eq!(columns(store, 1).await, are([("paid", true.into()), ("size", "small".into())]));
        assert_eq!(found(store, found_by("size", "small")).await, [2], "it rests behind no handle any more");
        let query = RunQuery {
            workflow: Some("orders".into()),
            shadows: vec![("size".into(), "small".into())],
            limit: 5,
            ..RunQuery::default()
        };
        let runs: Vec<_> = all_runs(&**store, ME, query).await.into_iter().map(|row| row.run).collect();
        assert_eq!(runs, [run(1)], "the other is no run");
        assert!(outcome(store, &durable).await.is_some());
        // A run that begins under another id is another.
        apply(store, Commit { handles: vec![use_up(2, 1)], ..make.create(new_run(run(7))) }).await;
        assert_eq!((columns(store, 2).await, columns(store, 7).await), (vec![], vec![]));
    }

    /// A handle that leads to a run is none of its flow's: the run's columns stay when it goes.
    async fn a_handle_that_leads_to_a_run_leaves_its_columns(store: &Shared) {
        let make = Make::new();
        let new = NewRun { shadows: vec![shade("size", "small")], ..new_run(run(1)) };
        let links = [1, 2, 3].map(|number| rest(until(leading(number, run(1)), 10)));
        let start = Commit { handles: links.to_vec(), ..make.create(new) };
        apply(store, start).await;
        apply(store, make.handle([use_up(1, 1), rest_on(1, leading(2, run(2)), vec![])])).await;
        assert_eq!(sweep(store, 9, 99).await, Swept { count: 1, more: false });
        assert_eq!(columns(store, 1).await, are([("size", "small".into())]));
        assert_eq!(found(store, found_by("size", "small")).await, NONE, "it is no flow that rests there");
        assert_eq!(found(store, all()).await, [2]);
    }

    /// Handles are listed in the order of run and handle, by workflow, run and who began them, page by page.
    async fn handles_are_listed_page_by_page(store: &Shared) {
        let make = Make::new();
        let by = |row, who: &str| HandleRow { created_by: Some(who.to_owned()), ..row };
        // The order of runs is not that of handles, nor that in which they come.
        let rows = [
            by(HandleRow { handle: hash(9), ..flow(1) }, "ann"),
            by(leading(7, run(2)), "bob"),
            by(in_workflow(leading(3, run(2)), "other"), "ann"),
            leading(5, run(2)),
            in_workflow(flow(4), "other"),
            by(HandleRow { handle: hash(1), ..flow(6) }, "ann"),
            HandleRow { updated_by: Some("ann".to_owned()), created_by: Some(String::new()), ..flow(8) },
        ];
        apply(store, make.handle(rows.iter().rev().cloned().map(rest))).await;
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

    /// A cursor is a place, whatever is there; one that no listing gave is refused.
    async fn a_listing_goes_on_from_its_cursor(store: &Shared) {
        let make = Make::new();
        let sized = |row: HandleRow| rest_with(row, vec![shade("size", "small")]);
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
                let crate::store::Record::Handle(row) = item else { panic!("a handle was asked for") };
                numbers.push(row.handle.0[0]);
            }
            numbers
        };
        for query in [&all(), &orders, &by_shadow] {
            assert_eq!(listed(from(2, 2, query)).await, [3, 7, 4], "{query:?}");
            assert_eq!(listed(from(3, 3, query)).await, [7, 4], "{query:?}");
            assert_eq!(listed(from(3, 5, query)).await, [7, 4], "nothing is there: {query:?}");
            assert_eq!(listed(from(2, 250, query)).await, [3, 7, 4], "{query:?}");
            assert_eq!(listed(from(4, 4, query)).await, NONE, "{query:?}");
        }
        for (number, handle, expected) in [(1, 250, vec![3, 7]), (3, 3, vec![7]), (3, 7, vec![]), (4, 0, vec![])] {
            assert_eq!(listed(from(number, handle, &of_run)).await, expected, "{number} {handle}");
        }
        // What was used up between two pages is missing, and nothing else.
        apply(store, make.handle([use_up(2, 1)])).await;
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

    /// E11: flows at rest are found by what their columns hold; the workflow has to be named.
    async fn flows_are_found_by_their_columns(store: &Shared) {
        let make = Make::new();
        for number in 1..=9_u8 {
            let size = if number % 3 == 0 { "small" } else { "large" };
            let shadows = vec![shade("size", size), shade("even", number % 2 == 0), shade("third", i32::from(number / 3))];
            let created_by = Some(if number > 6 { "ann" } else { "bob" }.to_owned());
            apply(store, make.handle([rest_with(HandleRow { created_by, ..flow(number) }, shadows)])).await;
        }
        // Neither another workflow's flow or column nor a handle that leads to such a flow is found.
        let alike = || vec![shade("size", "small"), shade("even", true), shade("third", 2)];
        let strange: Vec<_> = alike().into_iter().map(|column| ShadowWrite { workflow: "other".into(), ..column }).collect();
        let elsewhere = [
            rest_with(in_workflow(flow(20), "other"), strange.clone()),
            rest_with(flow(21), strange),
            rest_with(in_workflow(flow(22), "other"), alike()),
            rest(leading(23, run(6))),
        ];
        apply(store, make.handle(elsewhere)).await;
        for limit in [1, 2, 3, 100] {
            let by = |name: &str, value: ShadowValue| HandleQuery { limit, ..found_by(name, value) };
            assert_eq!(found(store, by("size", "small".into())).await, [3, 6, 9]);
            assert_eq!(found(store, by("even", true.into())).await, [2, 4, 6, 8]);
            assert_eq!(found(store, by("third", 2.into())).await, [6, 7, 8]);
            let mut several = by("even", true.into());
            several.shadows.push(("third".into(), 2.into()));
            assert_eq!(found(store, several.clone()).await, [6, 8]);
            let ann = HandleQuery { created_by: Some("ann".to_owned()), ..several.clone() };
            assert_eq!(found(store, ann).await, [8]);
            assert_eq!(found(store, HandleQuery { run: Some(run(6)), ..several.clone() }).await, [6]);
            assert_eq!(found(store, HandleQuery { run: Some(run(7)), ..several.clone() }).await, NONE);
            several.shadows.push(("size".into(), "small".into()));
            assert_eq!(found(store, several).await, [6]);
        }
        for (name, value) in [("size", "Small"), ("size", ""), ("even", "true"), ("third", "2"), ("none", "small"), ("size", "a\0b")] {
            assert_eq!(found(store, found_by(name, value)).await, NONE, "{name} {value}");
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

    /// What is to be sent out is found when it is due, the earliest first, a bounded number at a time.
    async fn what_is_due_to_be_sent_out_is_found(store: &Shared) {
        let make = Make::new();
        let rows = (1..=6).map(|number| rest(flow(number)));
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
        // One is sent, one later, one is used up, one is put without it; an owner changes nothing.
        let sent = write(6, Some(2), HandleChange::Deliver(None));
        apply(store, make.handle([sent, deliver(2, 2, 25), use_up(5, 2), rest_on(2, flow(3), vec![]), own(1, 2, process(1))])).await;
        assert_eq!(due(store, 99, 9).await, [2, 1]);
        assert_eq!(undelivered(&**store, tenant(2), at(99), 9).await, []);
    }

    /// What is over goes, the oldest first, a bounded number at a time; what has no end stays.
    async fn handles_that_are_over_are_swept(store: &Shared) {
        let make = Make::new();
        let sized = |row: HandleRow| rest_with(row, vec![shade("size", "small")]);
        let ends = [(1, 30), (2, 10), (3, 20), (4, 40), (5, -9)];
        let rows = ends.map(|(number, seconds)| sized(until(flow(number), seconds)));
        let forever = HandleRow { deliver_at: Some(at(0)), delivery: Some(bytes("x")), ..flow(6) };
        apply(store, make.handle(rows.into_iter().chain([sized(forever)]))).await;
        store.commit(tenant(2), make.handle([sized(until(flow(1), 1))])).await.unwrap();
        assert_eq!(sweep(store, 9, -10).await, Swept { count: 0, more: false });
        assert_eq!(sweep(store, 2, 25).await, Swept { count: 2, more: true });
        assert_eq!(found(store, all()).await, [1, 3, 4, 6], "the oldest went first");
        assert_eq!(sweep(store, 2, 19).await, Swept { count: 0, more: false });
        assert_eq!(sweep(store, 2, 20).await, Swept { count: 1, more: false }, "over from that very instant on");
        assert_eq!(sweep(store, 1, 30).await, Swept { count: 1, more: true }, "the limit was reached");
        assert_eq!(sweep(store, 1, 30).await, Swept { count: 0, more: false });
        assert_eq!(found(store, all()).await, [4, 6]);
        for (number, held) in [(1, 0), (2, 0), (3, 0), (4, 1), (5, 0), (6, 1)] {
            assert_eq!(columns(store, number).await.len(), held, "flow {number}");
        }
        assert_eq!(found(store, found_by("size", "small")).await, [4, 6]);
        assert_eq!(refuse(store, make.handle([use_up(3, 1)])).await, stale(3, Some(1), None));
        // Its end may be put off or taken away.
        apply(store, make.handle([rest_on(1, flow(4), vec![])])).await;
        assert_eq!(sweep(store, 9, 1_000_000).await.count, 0);
        let others = all_handles(&**store, tenant(2), all()).await;
        assert_eq!((others.len(), shadows_of(&**store, tenant(2), run(1)).await.len()), (1, 1));
    }

    /// What has ended and is tidied up takes the handles with it that lead there.
    async fn a_run_that_goes_takes_its_handles_with_it(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        started(store, make.create(new_run(run(2)))).await;
        let links = [leading(1, run(1)), until(leading(2, run(1)), 999), leading(3, run(2))];
        let due_link = HandleRow { deliver_at: Some(at(0)), delivery: Some(bytes("x")), ..leading(4, run(1)) };
        let kept = rest_with(flow(5), vec![shade("size", "small")]);
        apply(store, make.handle(links.into_iter().chain([due_link]).map(rest).chain([kept]))).await;
        store.commit(tenant(2), make.handle([rest(leading(1, run(1)))])).await.unwrap();
        moved(store, make.step(end(&head))).await;
        assert_eq!(found(store, all()).await, [1, 2, 4, 3, 5], "as long as the run is there, they lead to it");
        let what = SweepWhat::Runs { ended_before: at(1) };
        assert_eq!(store.sweep(ME, Sweep { now: at(0), limit: 9, what }).await.unwrap().count, 1);
        assert_eq!((found(store, all()).await, due(store, 99, 9).await), (vec![3, 5], vec![]));
        assert_eq!(columns(store, 5).await.len(), 1);
        assert_eq!(all_handles(&**store, tenant(2), all()).await.len(), 1);
        assert_eq!(refuse(store, make.handle([use_up(1, 1)])).await, stale(1, Some(1), None));
    }

    /// D11: the same hash in two tenants is two handles, and neither sees the other's.
    async fn tenants_do_not_see_each_others_handles(store: &Shared) {
        let make = Make::new();
        let (one, two) = (ME, tenant(2));
        assert_eq!(store.tenants(None, 9).await, Ok(vec![]));
        let first = make.handle([rest_with(HandleRow { deliver_at: Some(at(0)), ..full(1) }, vec![shade("size", "one")])]);
        apply(store, first.clone()).await;
        assert_eq!(store.tenants(None, 9).await, Ok(vec![one.tenant()]), "a handle is something");
        assert_eq!(refuse_as(store, two, make.handle([own(1, 1, process(1))])).await, stale(1, Some(1), None));
        assert_eq!(refuse_as(store, two, make.handle([use_up(1, 1)])).await, stale(1, Some(1), None));
        let in_two = async || {
            let query = RecordQuery::Handle(hash(1));
            store.records(two, query).await.unwrap().items
        };
        assert_eq!((in_two().await, all_handles(&**store, two, all()).await), (vec![], vec![]));
        assert_eq!((undelivered(&**store, two, at(99), 9).await, shadows_of(&**store, two, run(1)).await), (vec![], vec![]));
        assert_eq!(store.outcome(two, first.reference()).await, Ok(None));
        store.commit(two, make.handle([rest_with(flow(1), vec![shade("size", "two")])])).await.unwrap();
        assert_eq!(store.tenants(None, 9).await, Ok(vec![one.tenant(), two.tenant()]));
        assert_eq!(handle(store, 1).await, Some(left(HandleRow { deliver_at: Some(at(0)), ..full(1) }, 1, &first)));
        // What one of them uses up or sweeps stays with the other.
        let what = SweepWhat::Handles { expired_by: at(9_999) };
        assert_eq!(store.sweep(two, Sweep { now: at(0), limit: 9, what }).await.unwrap().count, 0);
        store.commit(two, make.handle([own(1, 1, process(1)), use_up(1, 2)])).await.unwrap();
        assert_eq!((in_two().await, fence(store, 1).await), (vec![], Some(1)));
        assert_eq!(columns(store, 1).await, are([("size", "one".into())]));
        assert_eq!(sweep(store, 9, 99).await.count, 1);
        assert_eq!(handle(store, 1).await, None);
    }

    /// C7: a commit that puts a handle or gives it to somebody is found in the handle's row, as long as that is its own.
    async fn the_outcome_is_found_in_the_handles_row(store: &Shared) {
        let make = Make::new();
        let applied = Some(Recorded { results: vec![], answer: None, request: None });
        let put = make.handle([rest(flow(1))]);
        assert_eq!(put.reference().at, Whereabouts::Handle(hash(1)));
        assert_eq!(outcome(store, &put).await, None);
        apply(store, put.clone()).await;
        assert_eq!(outcome(store, &put).await, applied);
        assert_eq!(refuse(store, put.clone()).await, stale(1, None, Some(1)), "sent again, it is not done again");
        apply(store, make.handle([deliver(1, 1, 5)])).await;
        assert_eq!(outcome(store, &put).await, applied, "what is sent out leaves it");
        let (owned, rival) = (make.handle([own(1, 2, process(1))]), make.handle([own(1, 2, process(2))]));
        apply(store, owned.clone()).await;
        refuse(store, rival.clone()).await;
        assert_eq!((outcome(store, &owned).await, outcome(store, &rival).await), (applied.clone(), None));
        assert_eq!(outcome(store, &put).await, None, "the row is another's");
        // The last of several; of a move it is the handle that came.
        let move_on = make.handle([use_up(1, 3), rest(HandleRow { handle: hash(2), ..flow(1) })]);
        assert_eq!(move_on.reference().at, Whereabouts::Handle(hash(2)));
        apply(store, move_on.clone()).await;
        assert_eq!((outcome(store, &move_on).await, outcome(store, &owned).await), (applied.clone(), None));
        // A step that changes only the row, and a message, leave no trace of their own.
        let head = started(store, make.create(new_run(run(5)))).await;
        let tried = Commit { handles: vec![rest(flow(3))], send: vec![to(run(5), "x")], ..make.step(attempt(&head, Some("{}"))) };
        assert_eq!(tried.reference().at, Whereabouts::Handle(hash(3)));
        apply(store, tried.clone()).await;
        assert_eq!(outcome(store, &tried).await, applied);
        // None of these left a record.
        let what = SweepWhat::Keys;
        assert_eq!(store.sweep(ME, Sweep { now: at(1_000_000), limit: 9, what }).await.unwrap().count, 1, "the delivery");
        let nowhere = CommitRef { id: put.id, at: Whereabouts::Handle(hash(77)) };
        assert_eq!(store.outcome(ME, nowhere).await, Ok(None));
    }

    /// C7: a commit whose handles keep no trace of it, or that has results to keep, is recorded.
    async fn the_outcome_of_what_leaves_no_trace_in_a_handle_is_recorded(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle((1..=6).map(|number| rest(flow(number))))).await;
        let commits = [
            make.handle([use_up(1, 1)]),
            make.handle([deliver(2, 1, 5)]),
            make.handle([own(3, 1, process(1)), use_up(4, 1)]),
            Commit { cells: vec![increment("count", 1)], ..make.handle([use_up(5, 1)]) },
            Commit { cells: vec![increment("count", 1)], ..make.handle([own(6, 1, process(1))]) },
            Commit { cells: vec![increment("count", 1)], ..make.handle([rest(flow(7))]) },
        ];
        for commit in &commits {
            let place = Whereabouts::Key { operation: RECORD_OPERATION.to_owned(), key: commit.id.0.to_string() };
            assert_eq!(commit.reference().at, place);
            assert_eq!(outcome(store, commit).await, None);
            let results = apply(store, commit.clone()).await.results;
            assert_eq!(results.len(), commit.cells.len());
            assert_eq!(outcome(store, commit).await, Some(Recorded { results, answer: Some(Bytes::new()), request: None }));
            assert!(matches!(refuse(store, commit.clone()).await, Refused::Done { .. }), "it is done once");
        }
        assert_eq!(get(store, "count").await.unwrap().value, Some(json!(3)));
        // A key or a checkpoint of its own is where it is found, with its results.
        let keyed = Commit { keys: vec![key("a", 1)], ..make.handle([rest(flow(8))]) };
        let new = Commit { handles: vec![rest(leading(9, run(20)))], cells: vec![increment("count", 1)], ..make.create(new_run(run(20))) };
        assert!(matches!(keyed.reference().at, Whereabouts::Key { operation, .. } if operation != RECORD_OPERATION));
        assert!(matches!(new.reference().at, Whereabouts::Checkpoint { .. }));
        for commit in [keyed, new] {
            let results = apply(store, commit.clone()).await.results;
            assert_eq!(outcome(store, &commit).await.unwrap().results, results);
        }
    }

    /// Not every database keeps a NUL character in a text, so none does.
    async fn a_handle_with_a_nul_character_is_refused(store: &Shared) {
        let make = Make::new();
        let nul = "a\0b".to_owned();
        let commits = [
            make.handle([rest(in_workflow(flow(1), &nul))]),
            make.handle([rest(HandleRow { created_by: Some(nul.clone()), ..flow(1) })]),
            make.handle([rest(HandleRow { updated_by: Some(nul.clone()), ..flow(1) })]),
            make.handle([rest_with(flow(1), vec![shade(&nul, 1)])]),
            make.handle([rest_with(flow(1), vec![shade("size", nul.clone())])]),
            make.handle([rest_with(flow(1), vec![ShadowWrite { workflow: nul.as_str().into(), ..shade("size", 1) }])]),
        ];
        for commit in commits {
            let refused = refuse(store, commit.clone()).await;
            assert!(matches!(&refused, Refused::Nul { text, .. } if *text == nul), "{refused} for {commit:?}");
        }
        // Bytes may be any.
        let raw = HandleRow { state: bytes(&nul), delivery: Some(bytes(&nul)), deliver_at: Some(at(0)), ..flow(1) };
        apply(store, make.handle([rest(raw.clone())])).await;
        assert_eq!(handle(store, 1).await.unwrap().state, raw.state);
    }

    /// What a handle holds counts against the size of its commit.
    async fn handles_count_against_the_size_of_a_commit(store: &Shared) {
        let make = Make::new();
        let large = |bytes: usize| Bytes::from(vec![b'x'; bytes]);
        let half = 8 * 1024 * 1024;
        let with_state = |number, bytes| rest(HandleRow { state: large(bytes), ..flow(number) });
        let both = HandleRow { state: large(half), deliver_at: Some(at(0)), delivery: Some(large(half + 1)), ..flow(1) };
        apply(store, make.handle([rest(flow(9))])).await;
        let sent = HandleChange::Deliver(Some((at(0), large(2 * half + 1))));
        let many = (0..20_001).map(|number| shade(&format!("c{number}"), 1)).collect();
        for (commit, limit) in [
            (make.handle([rest(both)]), "commit_bytes"),
            (make.handle([write(9, Some(1), sent)]), "commit_bytes"),
            (make.handle((1..=5).map(|number| with_state(number, half / 2))), "commit_bytes"),
            (make.handle([rest_with(flow(1), many)]), "commit_rows"),
            (make.handle((0..20_001).map(|_| use_up(9, 1))), "commit_rows"),
            (make.handle([rest_with(flow(1), vec![shade("size", "x".repeat(MAX_TEXT_BYTES + 1))])]), "shadow_bytes"),
        ] {
            let refused = refuse(store, commit).await;
            assert!(matches!(&refused, Refused::TooLarge(exceeded) if exceeded.limit == limit), "{limit}: {refused}");
        }
        assert_eq!((found(store, all()).await, fence(store, 9).await), (vec![9], Some(1)));
        apply(store, make.handle((1..=4).map(|number| with_state(number, half / 4)))).await;
        assert_eq!(handle(store, 4).await.unwrap().state.len(), half / 4);
    }

    /// Whoever has reserved a handle is asked for: it lives as long as it beats.
    async fn a_process_lives_as_long_as_it_beats(store: &Shared) {
        let beat = |number, seconds| Beat { process: process(number), now: at(seconds), lease_ms: 10_000 };
        assert!(!lives(store, process(1), 0).await, "nobody has heard of it");
        store.beat(beat(1, 0)).await.unwrap();
        assert!(lives(store, process(1), 0).await && lives(store, process(1), 9).await);
        assert!(!lives(store, process(1), 10).await, "its lease ends at this very instant");
        store.beat(beat(2, 5)).await.unwrap();
        assert!(lives(store, process(1), 9).await && lives(store, process(2), 9).await);
        store.beat(beat(1, 8)).await.unwrap();
        assert!(lives(store, process(1), 17).await && !lives(store, process(2), 17).await);
        assert!(!lives(store, process(3), 9).await);
        // Nor does one live that somebody says owns something.
        let make = Make::new();
        apply(store, make.create(NewRun { owner: Some(process(4)), ..new_run(run(1)) })).await;
        apply(store, make.handle([rest(HandleRow { owner: Some(process(3)), ..flow(1) })])).await;
        store.beat(beat(1, 20)).await.unwrap();
        for dead in [2, 3, 4] {
            assert!(!lives(store, process(dead), 21).await, "process {dead}");
        }
        let query = RecordQuery::Living { process: process(1), now: at(21) };
        assert_eq!(store.records(tenant(7), query).await.unwrap().items.len(), 1, "processes are nobody's own");
        let known = store.records(tenant(7), RecordQuery::Processes { limit: 10 }).await.unwrap();
        let until = |wanted: u128| {
            known.items.iter().find_map(|record| match record {
                Record::Process { process: known, lives_until } if *known == process(wanted) => Some(*lives_until),
                _ => None,
            })
        };
        assert_eq!((until(1), known.next), (Some(at(30)), None), "it has beaten at 20, for 10");
    }

    /// Of any number of writers that have read the same fence, one is applied; the others learn what it is now.
    async fn one_writer_wins_each_fence(store: &Shared) {
        let make = Make::new();
        for round in 0..5_u64 {
            let put = |number: u8| make.handle([rest(HandleRow { state: vec![number].into(), ..flow(1) })]);
            let (applied, lost) = race(store, (0..8).map(put).collect()).await;
            assert_eq!((applied, lost), (1, vec![stale(1, None, Some(1)); 7]), "round {round}");
            for fence in 1..=3 {
                let owners = (0..8).map(|number| make.handle([own(1, fence, process(number))])).collect();
                let (applied, lost) = race(store, owners).await;
                assert_eq!((applied, lost), (1, vec![stale(1, Some(fence), Some(fence + 1)); 7]), "round {round}");
            }
            // Whoever uses it up writes beside it; nobody else does.
            let takers = (0..8_u64).map(|_| Commit { cells: vec![increment("count", 1)], ..make.handle([use_up(1, 4)]) });
            let (applied, lost) = race(store, takers.collect()).await;
            assert_eq!((applied, lost), (1, vec![stale(1, Some(4), None); 7]), "round {round}");
            assert_eq!(get(store, "count").await.unwrap().value, Some(json!(round + 1)));
        }
    }

    /// Whoever reads a handle and writes on what it has read loses nothing, however many do.
    async fn writers_that_read_again_all_get_through(store: &Shared) {
        let make = Make::new();
        apply(store, make.handle([rest(flow(1)), rest(flow(2))])).await;
        let mut tasks = JoinSet::new();
        for number in 0..6 {
            let store = store.clone();
            let ids: Vec<_> = (0..4_000).map(|_| make.commit()).collect();
            tasks.spawn(async move { push(&store, ids, process(number)).await });
        }
        let refused: usize = tasks.join_all().await.into_iter().sum();
        assert_eq!(fence(store, 1).await, Some(1 + 6 * 5), "{refused} were late");
        assert_eq!(fence(store, 2).await, Some(1 + 6 * 5));
    }

    /// Writers of different handles are not in each other's way.
    async fn handles_do_not_meet(store: &Shared) {
        let make = Make::new();
        let put = |number: u8| make.handle([rest_with(flow(number), vec![shade("size", i32::from(number))])]);
        assert_eq!(race(store, (1..=20).map(put).collect()).await, (20, vec![]));
        let step = |number: u8| make.handle([use_up(number, 1), rest(HandleRow { handle: hash(100 + number), ..flow(number) })]);
        assert_eq!(race(store, (1..=20).map(step).collect()).await, (20, vec![]));
        assert_eq!(found(store, all()).await, (101..=120).collect::<Vec<_>>());
        for number in 1..=20_u8 {
            assert_eq!(columns(store, number.into()).await, are([("size", i32::from(number).into())]));
        }
    }
}

/// Writes two handles five times, each time under the fences it has read, in either order; gives how often it was late.
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
            Err(other) => panic!("whoever is late is refused: {other}"),
        }
        if done == 5 {
            return late;
        }
    }
    panic!("{done} of five writes in {late} tries");
}
