//! Cases about maintenance: it is bounded, takes the oldest rows first, and answers do not depend on it.

use serde_json::json;

use super::Shared;
use super::ask::{
    self, all_audit, all_history, all_waits, apply, apply_one, find, get, get_any, load, moved, recorded,
    shown,
};
use super::make::{
    ME, Make, NAMESPACE, at, attempt, audit, cell, delete, edge, end, increment, key, link_id, new_run, put,
    run, set, set_shadow, set_until, step, stored, to, wait, write,
};
use crate::cell::{CellKey, CellOp, CellWrite, OpResult, Precondition, Space};
use crate::commit::{Commit, KeyLifetime, KeyWrite, NewRun, Refused};
use crate::link::LinkWrite;
use crate::run::{Parent, Status};
use crate::store::{CellQuery, Cleanup, CleanupKind, CleanupResult, HistoryQuery, RecordQuery, WaitQuery};

async fn cleanup(store: &Shared, seconds: i64, limit: u32, what: CleanupKind) -> CleanupResult {
    store.cleanup(ME, Cleanup { now: at(seconds), limit, what }).await.expect("the maintenance succeeds")
}

/// Builds a write to a cell that is shared by a root run and all runs below it.
fn slot(owner: u128, key: &str) -> CellWrite {
    let key = CellKey { space: Space::Execution, owner: run(owner).to_string(), key: key.to_owned() };
    CellWrite { key, by: Some(run(owner)), ..set("", 1) }
}

async fn slots(store: &Shared, owner: u128) -> usize {
    let owner = run(owner).to_string();
    let query = CellQuery { space: Space::Execution, owner, include_deleted: true, ..ask::cells(at(0)) };
    ask::all_cells(store, ME, query).await.len()
}

/// Selects tombstones of the usual namespace that were last written before this second.
fn older(seconds: i64) -> CleanupKind {
    CleanupKind::Tombstones { namespace: NAMESPACE.to_owned(), before: at(seconds) }
}

/// Returns the keys of all cells in the usual namespace, including deleted and expired ones.
async fn left(store: &Shared) -> Vec<String> {
    ask::keys(store, CellQuery { include_deleted: true, ..ask::cells(at(0)) }).await
}

cases! { cleanups as __suite_cleanups;
    /// D14: once its tombstone is removed, a key counts as never written, and its revisions restart.
    async fn removing_a_tombstone_restarts_revisions(store: &Shared) {
        let make = Make::new();
        let late = |seconds, write| Commit { cells: vec![write], ..make.commit_at(at(seconds)) };
        apply(store, make.write([set("k", 1), set("k", 2)])).await;
        apply(store, late(10, delete("k"))).await;
        assert_eq!(get_any(store, "k", at(10)).await.unwrap().revision, 3);
        assert_eq!(cleanup(store, 99, 10, older(10)).await, CleanupResult { count: 0, more: false }, "the limit is exclusive");
        let never = |write| CellWrite { expect: Precondition::Exactly(0), ..write };
        let refused = ask::refuse(store, late(11, never(set("k", 3)))).await;
        assert!(matches!(refused, Refused::Cell { .. }), "the revision is remembered: {refused:?}");
        assert_eq!(cleanup(store, 99, 10, older(11)).await, CleanupResult { count: 1, more: false });
        assert_eq!(cleanup(store, 99, 10, older(11)).await, CleanupResult { count: 0, more: false });
        assert_eq!(get_any(store, "k", at(99)).await, None);
        let written = apply_one(store, late(99, never(CellWrite { by: Some(run(2)), ..set("k", 4) }))).await;
        assert_eq!(written, OpResult { revision: 1, created: true, existed: false, value: None });
        let anew = get(store, "k").await.unwrap();
        assert_eq!((anew.revision, anew.created_at, anew.created_by), (1, at(99), Some(run(2))));
    }

    /// D14: only tombstones of the given namespace that are old enough are removed.
    async fn only_old_tombstones_of_the_namespace_are_removed(store: &Shared) {
        let make = Make::new();
        let elsewhere = |key: &str| CellWrite {
            key: CellKey { owner: "elsewhere".to_owned(), ..cell(key) },
            ..set(key, 1)
        };
        let gone = |write: CellWrite| CellWrite { op: CellOp::Delete, ..write };
        let shared = CellWrite { key: slot(1, "old").key, ..slot(1, "old") };
        let mine = [set("live", 1), set_until("expired", 1, 5), set("old", 1), set("young", 1)];
        apply(store, make.write(mine)).await;
        apply(store, make.write([elsewhere("old"), shared.clone(), delete("old")])).await;
        apply(store, make.write([gone(elsewhere("old")), gone(shared)])).await;
        apply(store, Commit { cells: vec![delete("young")], ..make.commit_at(at(50)) }).await;
        assert_eq!(cleanup(store, 60, 10, older(50)).await, CleanupResult { count: 1, more: false });
        assert_eq!(left(store).await, ["expired", "live", "young"], "the expired cell is not a tombstone yet");
        assert_eq!(cleanup(store, 60, 10, CleanupKind::Cells).await.count, 1);
        assert_eq!(cleanup(store, 60, 10, older(50)).await.count, 1, "the last write decides its age");
        assert_eq!(left(store).await, ["live", "young"]);
        assert_eq!(get(store, "live").await.unwrap().revision, 1);
        assert_eq!(get_any(store, "young", at(60)).await.unwrap().revision, 2);
        assert_eq!(slots(store, 1).await, 1, "shared state is not affected");
        let owner = "elsewhere".to_owned();
        let other = CellQuery { owner, include_deleted: true, ..ask::cells(at(0)) };
        assert_eq!(ask::keys(store, other).await, ["old"]);
        let none = CleanupKind::Tombstones { namespace: "n%".to_owned(), before: at(99) };
        assert_eq!(cleanup(store, 99, 10, none).await, CleanupResult { count: 0, more: false });
    }

    /// D14: tombstones are removed in bounded batches, oldest first, and by key if they have the same age.
    async fn tombstones_are_removed_in_bounded_batches(store: &Shared) {
        let make = Make::new();
        apply(store, make.write((0..6).map(|n| set(&format!("k{n}"), n)))).await;
        for (key, seconds) in [("k5", 1), ("k4", 2), ("k0", 3), ("k1", 3), ("k2", 3), ("k3", 9)] {
            apply(store, Commit { cells: vec![delete(key)], ..make.commit_at(at(seconds)) }).await;
        }
        assert_eq!(cleanup(store, 20, 1, older(9)).await, CleanupResult { count: 1, more: true });
        assert_eq!(left(store).await, ["k0", "k1", "k2", "k3", "k4"]);
        assert_eq!(cleanup(store, 20, 2, older(9)).await, CleanupResult { count: 2, more: true });
        assert_eq!(left(store).await, ["k1", "k2", "k3"]);
        assert_eq!(cleanup(store, 20, 3, older(9)).await, CleanupResult { count: 2, more: false });
        assert_eq!(left(store).await, ["k3"]);
    }

    /// D14: expired cells become tombstones that keep key and revision, in bounded batches, oldest first.
    async fn expired_cells_become_tombstones(store: &Shared) {
        let make = Make::new();
        apply(store, make.write((0..5_u32).map(|n| set_until(&format!("k{n}"), n, 14 - i64::from(n))))).await;
        apply(store, make.write([set("stays", 1), set_until("later", 1, 99)])).await;
        assert_eq!(cleanup(store, 9, 10, CleanupKind::Cells).await, CleanupResult { count: 0, more: false });
        assert_eq!(cleanup(store, 20, 2, CleanupKind::Cells).await, CleanupResult { count: 2, more: true });
        assert_eq!(get_any(store, "k4", at(20)).await.unwrap().value, None, "it expired first");
        assert_eq!(get_any(store, "k0", at(20)).await.unwrap().value, Some(json!(0)));
        assert_eq!(cleanup(store, 20, 10, CleanupKind::Cells).await, CleanupResult { count: 3, more: false });
        assert_eq!(cleanup(store, 20, 10, CleanupKind::Cells).await, CleanupResult { count: 0, more: false });
        let tombstone = get_any(store, "k0", at(20)).await.unwrap();
        assert_eq!((tombstone.value, tombstone.revision, tombstone.expires_at), (None, 1, None));
        assert_eq!((tombstone.key, tombstone.created_at), (cell("k0"), at(0)));
        assert!(get(store, "stays").await.is_some() && get(store, "later").await.is_some());
    }

    /// D3, D4: an expired key gives the same answers before and after it is converted.
    async fn maintenance_changes_no_answer(store: &Shared) {
        let make = Make::new();
        apply(store, make.write([set_until("swept", 5, 10), set_until("not", 5, 10)])).await;
        cleanup(store, 10, 1, CleanupKind::Cells).await;
        let values = ["swept", "not"].map(|key| get_any(store, key, at(10)));
        let [cleaned, not] = values;
        assert_ne!(cleaned.await.unwrap().value, not.await.unwrap().value, "one of the two is converted");
        for key in ["swept", "not"] {
            assert_eq!(ask::get_at(store, key, at(10)).await, None);
            let late = |write| Commit { cells: vec![write], ..make.commit_at(at(10)) };
            let checked = late(CellWrite { expect: Precondition::Exactly(1), ..write(key, CellOp::Check) });
            apply(store, checked).await;
            let expected = OpResult { revision: 2, created: true, existed: false, value: Some(json!(1)) };
            assert_eq!(apply_one(store, late(increment(key, 1))).await, expected);
        }
    }

    /// D10: expired idempotency keys are removed in bounded batches. Keys of existing runs stay.
    async fn expired_idempotency_keys_are_removed(store: &Shared) {
        let make = Make::new();
        apply(store, make.create(new_run(run(1)))).await;
        let until = |name: &str, seconds| KeyWrite { lifetime: KeyLifetime::Until(at(seconds)), ..key(name, 1) };
        let with_run = KeyWrite { lifetime: KeyLifetime::WithRun(run(1)), ..key("run", 1) };
        let both = KeyWrite { lifetime: KeyLifetime::UntilWithRun(at(11), run(1)), ..key("b", 1) };
        let keys = vec![until("c", 10), both, until("a", 12), until("later", 99), with_run];
        apply(store, Commit { keys, ..make.commit() }).await;
        assert_eq!(cleanup(store, 12, 2, CleanupKind::Keys).await, CleanupResult { count: 2, more: true });
        assert!(recorded(store, "a", at(0)).await.is_some(), "the oldest is removed first");
        assert_eq!(recorded(store, "c", at(0)).await, None);
        assert_eq!(cleanup(store, 12, 2, CleanupKind::Keys).await, CleanupResult { count: 1, more: false });
        assert_eq!(cleanup(store, 12, 2, CleanupKind::Keys).await, CleanupResult { count: 0, more: false });
        assert!(recorded(store, "later", at(0)).await.is_some());
        assert!(recorded(store, "run", at(0)).await.is_some());
    }

    /// B18: retention removes runs that ended before a time, in bounded batches.
    async fn ended_runs_are_removed_after_their_retention(store: &Shared) {
        let make = Make::new();
        for (number, ended) in [(1, 30), (2, 10), (3, 20), (4, 40)] {
            let head = ask::started(store, make.create(new_run(run(number)))).await;
            let status = if number % 2 == 0 { Status::Completed } else { Status::Cancelled };
            let step = crate::RunUpdate { status, ..end(&head) };
            moved(store, Commit { step: Some(step), ..make.commit_at(at(ended)) }).await;
        }
        for (number, status) in [(5, Status::Failed), (6, Status::Waiting), (7, Status::Suspended)] {
            apply(store, make.create(NewRun { status, ..new_run(run(number)) })).await;
        }
        let runs = CleanupKind::Runs(crate::EndedBefore::all(at(40)));
        assert_eq!(cleanup(store, 999, 2, runs.clone()).await, CleanupResult { count: 2, more: true });
        assert!(find(store, run(1)).await.is_some(), "the runs that ended first are removed first");
        assert_eq!(cleanup(store, 999, 2, runs.clone()).await, CleanupResult { count: 1, more: false });
        assert_eq!(cleanup(store, 999, 2, runs.clone()).await, CleanupResult { count: 0, more: false });
        let left = ask::all_runs(store, ME, crate::RunQuery::default()).await;
        let left: Vec<_> = left.into_iter().map(|row| row.run).collect();
        assert_eq!(left, [7, 6, 5, 4].map(run), "a run that ended at that instant stays");
    }

    /// B18: retention differs by workflow, and runs of workflows without a time stay.
    async fn retention_differs_by_workflow(store: &Shared) {
        let make = Make::new();
        for (number, workflow) in [(1, "kept"), (2, "brief"), (3, "usual"), (4, "brief"), (5, "other")] {
            let new = NewRun { workflow: workflow.into(), ..new_run(run(number)) };
            let head = ask::started(store, make.create(new)).await;
            moved(store, Commit { step: Some(end(&head)), ..make.commit_at(at(10 + i64::from(number as u32))) }).await;
        }
        let times = [("brief".into(), Some(at(30))), ("kept".into(), None)];
        let before = |usual| {
            let workflows = times.iter().cloned().collect();
            CleanupKind::Runs(crate::EndedBefore { usual, workflows })
        };
        let left = async || {
            let left = ask::all_runs(store, ME, crate::RunQuery::default()).await;
            left.into_iter().map(|row| row.run).collect::<Vec<_>>()
        };
        assert_eq!(cleanup(store, 99, 1, before(None)).await, CleanupResult { count: 1, more: true });
        assert_eq!(left().await, [5, 4, 3, 1].map(run), "the oldest first");
        assert_eq!(cleanup(store, 99, 9, before(None)).await, CleanupResult { count: 1, more: false });
        assert_eq!(left().await, [5, 3, 1].map(run));
        assert_eq!(cleanup(store, 99, 9, before(Some(at(14)))).await, CleanupResult { count: 1, more: false });
        assert_eq!(left().await, [5, 1].map(run));
        assert_eq!(cleanup(store, 99, 9, before(Some(at(99)))).await, CleanupResult { count: 1, more: false });
        assert_eq!(left().await, [run(1)]);
    }

    /// B18: the audit trail is cut at a seal, in batches of whole seals. The newest seal stays.
    async fn audit_trail_is_cut_at_a_seal(store: &Shared) {
        let make = Make::new();
        for number in 0..4 {
            apply(store, Commit { audit: vec![audit("one"), audit("two")], ..make.write([set("k", number)]) }).await;
            assert_eq!(cleanup(store, number.into(), 10, CleanupKind::Seal).await.count, 3);
        }
        let seals = async || {
            let page = store.records(ME, RecordQuery::Seals { from: 1, limit: 10 }).await.unwrap();
            let number = |record| match record {
                crate::Record::Seal(seal) => seal.number,
                other => panic!("{other:?}"),
            };
            page.items.into_iter().map(number).collect::<Vec<u64>>()
        };
        let cut = |through| CleanupKind::Audit { through };
        assert_eq!(cleanup(store, 9, 1, cut(3)).await, CleanupResult { count: 3, more: true });
        assert_eq!((seals().await, all_audit(store, ME, 10).await.len()), (vec![2, 3, 4], 9));
        assert_eq!(cleanup(store, 9, 10, cut(3)).await, CleanupResult { count: 6, more: false });
        assert_eq!((seals().await, all_audit(store, ME, 10).await.len()), (vec![3, 4], 3));
        assert_eq!(cleanup(store, 9, 10, cut(3)).await, CleanupResult { count: 0, more: false });
        assert_eq!(cleanup(store, 9, 10, cut(9)).await, CleanupResult { count: 0, more: false });
        assert_eq!((seals().await, all_audit(store, ME, 10).await.len()), (vec![4], 3), "the newest stays");
    }

    /// B11, B18: an ended run with a wake-up time has work left, and retention does not remove it.
    async fn an_ended_run_with_work_left_stays(store: &Shared) {
        let make = Make::new();
        let head = ask::started(store, make.create(new_run(run(1)))).await;
        let busy = crate::RunUpdate { wake: Some(at(5)), ..end(&head) };
        moved(store, make.step(busy)).await;
        let runs = CleanupKind::Runs(crate::EndedBefore::all(at(40)));
        assert_eq!(cleanup(store, 999, 2, runs.clone()).await, CleanupResult { count: 0, more: false });
        let head = ask::claimed(store, ask::claim(super::make::process(1), 6)).await.remove(0).head;
        assert_eq!(head.run, run(1));
        assert_eq!(cleanup(store, 999, 2, runs.clone()).await.count, 0, "it has an owner");
        let owner = crate::Ownership::Release;
        moved(store, make.step(crate::RunUpdate { wake: None, owner, ..attempt(&head, None) })).await;
        assert_eq!(cleanup(store, 999, 2, runs.clone()).await.count, 1);
    }

    /// B18: a single run can be removed, ended or not.
    async fn a_single_run_can_be_removed(store: &Shared) {
        let make = Make::new();
        for number in [1, 2] {
            let open = vec![wait(1)];
            apply(store, make.create(NewRun { status: Status::Waiting, open, ..new_run(run(number)) })).await;
        }
        assert_eq!(cleanup(store, 0, 1, CleanupKind::Run(run(1))).await, CleanupResult { count: 1, more: false });
        assert_eq!(cleanup(store, 0, 1, CleanupKind::Run(run(1))).await, CleanupResult { count: 0, more: false });
        assert_eq!(find(store, run(1)).await, None);
        let waits = all_waits(store, ME, WaitQuery::default()).await;
        assert_eq!(waits.iter().map(|row| row.run).collect::<Vec<_>>(), [run(2)]);
    }

    /// A run that is marked as failed has no owner and is not claimed. Earlier decisions on it are refused.
    async fn a_run_marked_as_failed_is_not_claimed(store: &Shared) {
        let make = Make::new();
        let wake = Some(at(1));
        apply(store, make.create(NewRun { wake, ..new_run(run(1)) })).await;
        let head = ask::claimed(store, ask::claim(super::make::process(1), 2)).await.remove(0).head;
        assert_eq!(cleanup(store, 0, 1, CleanupKind::MarkFailed(run(1))).await.count, 1);
        let failed = load(store, run(1)).await.head;
        assert_eq!((failed.status, failed.owner, failed.wake), (Status::Failed, None, None));
        ask::refuse(store, make.step(end(&head))).await;
        assert_eq!(ask::taken(store, ask::claim(super::make::process(2), 9)).await, []);
        moved(store, make.step(end(&failed))).await;
        assert_eq!(cleanup(store, 0, 1, CleanupKind::MarkFailed(run(1))).await.count, 0, "an ended run is not marked");
    }

    /// All keys are listed in pages, whatever characters they contain.
    async fn all_keys_are_listed(store: &Shared) {
        let make = Make::new();
        let names = [("a", "b:c"), ("a", "ä"), ("a:1", "x"), ("b", "")];
        for (operation, name) in names {
            let written = KeyWrite { operation: operation.to_owned(), key: name.to_owned(), ..key("k", 1) };
            apply(store, Commit { keys: vec![written], ..make.commit() }).await;
        }
        let (mut pages, mut cursor) = (0, None);
        loop {
            let page = store.records(ME, RecordQuery::Keys { limit: 3, cursor }).await.unwrap();
            pages += page.items.len();
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(pages, names.len());
        let odd = Some("7:x".to_owned());
        assert!(store.records(ME, RecordQuery::Keys { limit: 3, cursor: odd }).await.is_err());
    }

    /// B18, D13: a run is removed with everything it owns. The audit trail and data stay.
    async fn a_removed_run_leaves_only_its_audit_trail_and_data(store: &Shared) {
        let make = Make::new();
        let create = Commit {
            cells: vec![
                slot(1, "a"),
                slot(1, "b"),
                slot(2, "a"),
                CellWrite { by: Some(run(1)), ..set("kv", 1) },
            ],
            links: vec![LinkWrite::Upsert {
                edge: edge("a/1", "r", "b/1"),
                id: link_id(1),
                attributes: json!({}),
                by: Some(run(1)),
            }],
            send: vec![to(run(1), "never taken")],
            documents: vec![put(run(1), "k", "first")],
            keys: vec![
                KeyWrite { lifetime: KeyLifetime::WithRun(run(1)), ..key("a", 1) },
                KeyWrite { lifetime: KeyLifetime::UntilWithRun(at(60), run(1)), ..key("b", 1) },
            ],
            definitions: vec![stored("orders")],
            audit: vec![audit("created")],
            ..make.create(NewRun {
                open: vec![wait(1), wait(2)],
                shadows: vec![set_shadow("email", "ann")],
                ..new_run(run(1))
            })
        };
        let head = apply(store, create.clone()).await.created.remove(0);
        let parent = Some(Parent { run: run(1), activation: 1, child: 0 });
        apply(store, make.create(NewRun { parent: parent.clone(), root: run(1), ..new_run(run(2)) })).await;
        let documents = vec![put(run(1), "k", "second")];
        let head = moved(store, Commit { documents, ..make.step(step(&head, "one")) }).await;
        let last = make.step(end(&head));
        apply(store, last.clone()).await;
        assert_eq!(cleanup(store, 0, 10, CleanupKind::Runs(crate::EndedBefore::all(at(1)))).await.count, 1);
        assert_eq!(find(store, run(1)).await, None);
        let history = HistoryQuery { run: run(1), from: 0, with_state: true, limit: 10 };
        assert_eq!(all_history(store, ME, history).await, []);
        assert_eq!(all_waits(store, ME, WaitQuery::default()).await, []);
        assert_eq!(ask::shadows_of(&**store, ME, run(1)).await, []);
        assert_eq!((shown(store, run(1), None).await, shown(store, run(1), Some(0)).await), (vec![], vec![]));
        assert_eq!((recorded(store, "a", at(0)).await, recorded(store, "b", at(0)).await), (None, None));
        assert_eq!((slots(store, 1).await, slots(store, 2).await), (0, 1), "its shared state is removed");
        assert_eq!(ask::outcome(store, &last).await, None);
        assert_eq!(ask::outcome(store, &create).await, None);
        assert_eq!(all_audit(store, ME, 10).await.len(), 6, "one explicit row, four cells, one link");
        let links = ask::all_links(store, ME, ask::links()).await;
        assert_eq!((links.len(), links[0].created_by), (1, Some(run(1))), "a soft reference");
        assert_eq!(get(store, "kv").await.unwrap().created_by, Some(run(1)), "a soft reference");
        assert_eq!(load(store, run(2)).await.parent, parent, "a child's parent is a soft reference too");
        let definition = RecordQuery::Definition(stored("orders").hash);
        assert_eq!(store.records(ME, definition).await.unwrap().items.len(), 1);
        let late = make.step(step(&head, "late"));
        assert_eq!(ask::refuse(store, late).await, Refused::NoRun { run: run(1) });
        let again = apply(store, make.create(new_run(run(1)))).await.created.remove(0);
        let loaded = load(store, run(1)).await;
        assert_eq!((loaded.head, loaded.inbox), (again, vec![]), "nothing of the old run is left");
    }
}
