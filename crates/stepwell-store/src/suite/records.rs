//! Cases about rows besides runs: definitions, the audit trail and open waits.

use serde_json::json;
use stepwell_core::Timestamp;

use super::Shared;
use super::ask::{all_audit, all_definitions, all_waits, apply, moved, started};
use super::make::{
    ME, Make, at, attempt, audit, bytes, definition, delete, end, increment, new_run, run, set, step, stored,
    wait, write,
};
use crate::cell::{CellKey, CellOp, CellWrite, Space};
use crate::commit::{AuditRow, Commit, CommitId, NewRun, RunUpdate, StoredDefinition};
use crate::run::StoredWait;
use crate::store::{Record, RecordQuery, WaitFilter, WaitQuery, WaitRow};

async fn waits(store: &Shared, number: Option<u128>) -> Vec<WaitRow> {
    let of = number.map_or(WaitFilter::All, |number| WaitFilter::Run(run(number)));
    all_waits(store, ME, WaitQuery { of, limit: 2, cursor: None }).await
}

fn row(number: u128, wait: StoredWait) -> WaitRow {
    WaitRow { run: run(number), wait }
}

fn subjects(trail: &[Record]) -> Vec<&str> {
    trail
        .iter()
        .map(|record| match record {
            Record::Audit { row, .. } => &row.subject[..],
            other => panic!("not a row of the audit trail: {other:?}"),
        })
        .collect()
}

cases! { records as __suite_records;
    /// B16: a definition is stored once, under its hash, and never changes.
    async fn a_definition_is_written_once(store: &Shared) {
        let make = Make::new();
        let read = async |hash| store.records(ME, RecordQuery::Definition(hash)).await.unwrap().items;
        assert_eq!(read(definition("orders")).await, []);
        let publisher = Some(r#"{"id":"ann"}"#.to_owned());
        let first = StoredDefinition { version: 3, publisher, ..stored("orders") };
        apply(store, Commit { definitions: vec![first.clone(), stored("other")], ..make.commit() }).await;
        let again = StoredDefinition { version: 4, body: bytes("changed"), ..first.clone() };
        apply(store, Commit { definitions: vec![again.clone(), again], ..make.commit() }).await;
        assert_eq!(read(definition("orders")).await, [Record::Definition(first)]);
        assert_eq!(read(definition("other")).await, [Record::Definition(stored("other"))]);
        assert_eq!(read(definition("none")).await, []);
    }

    /// F5: definitions are listed by workflow, version and hash, in pages, for one workflow or all.
    async fn definitions_are_listed_in_order(store: &Shared) {
        let make = Make::new();
        let names = ["b:1", "b", "ä", "a", ""];
        let mut all = Vec::new();
        for (number, name) in (0..).zip(names) {
            for version in [10, 9, 2, 9] {
                let text = format!("{name} {version} {}", all.len());
                all.push(StoredDefinition { workflow: name.into(), version: version + number, ..stored(&text) });
            }
        }
        assert_eq!(all_definitions(store, ME, None, 3).await, []);
        apply(store, Commit { definitions: all.clone(), ..make.commit() }).await;
        apply(store, Commit { definitions: all.clone(), ..make.commit() }).await;
        all.sort_by_key(|definition| (definition.workflow.clone(), definition.version, definition.hash));
        let of = |name: Option<&str>| {
            let wanted = all.iter().filter(move |one| name.is_none_or(|name| &one.workflow[..] == name));
            wanted.cloned().map(Record::Definition).collect::<Vec<_>>()
        };
        for limit in [1, 3, 4, 20, 1_000] {
            assert_eq!(all_definitions(store, ME, None, limit).await, of(None), "pages of {limit}");
            for name in names {
                let found = all_definitions(store, ME, Some(name.into()), limit).await;
                assert_eq!(found, of(Some(name)), "of `{name}`, pages of {limit}");
            }
        }
        assert_eq!(all_definitions(store, ME, Some("none".into()), 3).await, []);
        let page = async |workflow: Option<&str>, cursor| {
            let query = RecordQuery::Definitions { workflow: workflow.map(Into::into), limit: 9, cursor };
            store.records(ME, query).await.unwrap()
        };
        let middle = page(None, None).await.next;
        assert_eq!(page(Some("a"), middle.clone()).await.items, [], "its definitions come before the cursor");
        assert_eq!(page(Some("b"), middle.clone()).await.items, of(Some("b"))[1..], "the cursor is within its definitions");
        assert_eq!(page(Some("b:1"), middle).await.items, of(Some("b:1")), "its definitions come after the cursor");
    }

    /// D12: audit rows are written with their commit and read back unchanged.
    async fn audit_rows_are_part_of_their_commit(store: &Shared) {
        let make = Make::new();
        let full = AuditRow { run: Some(run(1)), ..audit("full") };
        let bare = AuditRow { actor: None, detail: bytes(r#"{"a":[1,"ü"]}"#), ..audit("bare") };
        let commit = Commit { audit: vec![full.clone(), bare.clone()], ..make.write([set("k", 1)]) };
        let commit = Commit { at: at(5), ..commit };
        apply(store, commit.clone()).await;
        let set = AuditRow {
            operation: "store.set".to_owned(),
            subject: "store:ns:k".to_owned(),
            actor: None,
            run: None,
            detail: bytes(r#"{"revision":1}"#),
        };
        let record = |(ordinal, row)| Record::Audit { commit: commit.id, ordinal, at: at(5), row };
        let expected: Vec<_> = (0..).zip([full, bare, set]).map(record).collect();
        assert_eq!(all_audit(store, ME, 100).await, expected);
    }

    /// D12: each cell write that changes something has its own audit row with the actor.
    async fn each_cell_write_is_audited(store: &Shared) {
        let make = Make::new();
        let by = |write| CellWrite { by: Some(run(1)), ..write };
        let shared = CellKey { space: Space::Workflow, owner: "a b".to_owned(), key: "k:1".to_owned() };
        let cells = vec![
            set("k", json!({"secret": 1})),
            by(write("k", CellOp::Check)),
            by(delete("k")),
            delete("k"),
            CellWrite { key: shared, ..by(increment("", 2)) },
            write("list", CellOp::Append { item: json!(1) }),
        ];
        let commit = Commit { actor: Some("ann".to_owned()), cells, ..make.commit_at(at(7)) };
        apply(store, commit.clone()).await;
        let row = |(ordinal, (operation, subject, run, revision)): (_, (&str, &str, _, _))| Record::Audit {
            commit: commit.id,
            ordinal,
            at: at(7),
            row: AuditRow {
                operation: operation.to_owned(),
                subject: subject.to_owned(),
                actor: Some("ann".to_owned()),
                run,
                detail: bytes(&format!("{{\"revision\":{revision}}}")),
            },
        };
        let rows = [
            ("store.set", "store:ns:k", None, 1),
            ("store.delete", "store:ns:k", Some(run(1)), 2),
            ("state.increment", "state:workflow-scope:default:a%20b:k%3A1", Some(run(1)), 1),
            ("store.append", "store:ns:list", None, 1),
        ];
        let rows: Vec<_> = (0..).zip(rows).map(row).collect();
        assert_eq!(all_audit(store, ME, 100).await, rows, "only changes, and no values");
        let refused = make.write([set("k", 1), increment("list", 1)]);
        super::ask::refuse(store, refused).await;
        assert_eq!(all_audit(store, ME, 100).await.len(), 4, "no rows of a refused commit");
    }

    /// B18: the audit trail is ordered by commit, and within a commit by the order of its rows.
    async fn the_audit_trail_is_listed_in_order(store: &Shared) {
        let make = Make::new();
        for number in [3_u128, 1, 2] {
            let rows = (0..12).map(|row| audit(&format!("{number}.{row:02}"))).collect();
            let id = CommitId(uuid::Uuid::from_u128(number));
            apply(store, Commit { id, audit: rows, ..make.commit() }).await;
        }
        let expected: Vec<_> =
            (1..=3).flat_map(|n| (0..12).map(move |row| format!("{n}.{row:02}"))).collect();
        for limit in [1, 5, 36, 100] {
            assert_eq!(subjects(&all_audit(store, ME, limit).await), expected, "pages of {limit}");
        }
    }

    /// A10: waits open and close with their step.
    async fn waits_open_and_close_with_their_step(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(NewRun { open: vec![wait(1)], ..new_run(run(1)) })).await;
        assert_eq!(waits(store, None).await, [row(1, wait(1))]);
        let endless = StoredWait { until: None, place: "wähle".into(), detail: bytes("{}"), ..wait(7) };
        let forked = RunUpdate { open: vec![endless.clone(), wait(3)], close: vec![1], ..step(&head, "forked") };
        let head = moved(store, make.step(forked)).await;
        assert_eq!(waits(store, Some(1)).await, [row(1, wait(3)), row(1, endless.clone())]);
        let closed = RunUpdate { close: vec![3, 99, u64::MAX], ..attempt(&head, None) };
        let head = moved(store, make.step(closed)).await;
        assert_eq!(waits(store, Some(1)).await, [row(1, endless)], "closing an absent wait does nothing");
        moved(store, make.step(RunUpdate { close: vec![7], ..end(&head) })).await;
        assert_eq!(waits(store, None).await, []);
    }

    /// A wait that is opened again replaces the previous one, also if the same step closes it.
    async fn a_wait_opened_again_is_replaced(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(NewRun { open: vec![wait(1)], ..new_run(run(1)) })).await;
        let longer = StoredWait { until: Some(at(999)), detail: bytes("{\"again\":1}"), ..wait(1) };
        let head =
            moved(store, make.step(RunUpdate { open: vec![longer.clone()], ..step(&head, "longer") })).await;
        assert_eq!(waits(store, None).await, [row(1, longer)]);
        let other = StoredWait { place: "elsewhere".into(), ..wait(1) };
        let swapped = RunUpdate { open: vec![other.clone()], close: vec![1], ..step(&head, "swapped") };
        moved(store, make.step(swapped)).await;
        assert_eq!(waits(store, None).await, [row(1, other)]);
    }

    /// A10: open waits of all runs are listed by run and activation, in pages.
    async fn waits_are_listed_over_all_runs(store: &Shared) {
        let make = Make::new();
        for number in [2, 3, 1] {
            let open = [10, 9, 100].map(wait).to_vec();
            started(store, make.create(NewRun { open, ..new_run(run(number)) })).await;
        }
        let all = waits(store, None).await;
        let found: Vec<_> = all.iter().map(|row| (row.run, row.wait.activation)).collect();
        let expected: Vec<_> =
            (1..=3).flat_map(|n| [9, 10, 100].map(|activation| (run(n), activation))).collect();
        assert_eq!(found, expected);
        assert_eq!(waits(store, Some(2)).await, [9, 10, 100].map(|activation| row(2, wait(activation))));
        assert_eq!(waits(store, Some(9)).await, []);
        let page = store.waits(ME, WaitQuery { limit: 9, ..WaitQuery::default() }).await.unwrap();
        assert_eq!((page.items.len(), page.next), (9, None));
        let middle = Some(format!("{}:9", run(2)));
        for (number, left) in [(1, 0), (2, 2), (3, 3)] {
            let query = WaitQuery { of: WaitFilter::Run(run(number)), limit: 9, cursor: middle.clone() };
            assert_eq!(store.waits(ME, query).await.unwrap().items.len(), left, "of run {number}");
        }
    }

    /// Waits with a due time are listed by it, in pages. The others are not in that listing.
    async fn waits_are_listed_by_due_time(store: &Shared) {
        let make = Make::new();
        let on = |activation, due| StoredWait { due: Some(due), ..wait(activation) };
        let (soon, later) = (at(5), at(90));
        let open = vec![on(1, later), on(2, soon), wait(3), on(4, Timestamp::MAX)];
        started(store, make.create(NewRun { open, ..new_run(run(2)) })).await;
        let head = started(store, make.create(NewRun { open: vec![on(7, soon)], ..new_run(run(1)) })).await;
        let by_due = |limit| WaitQuery { of: WaitFilter::Due, limit, cursor: None };
        let order = async |limit| {
            let found = all_waits(store, ME, by_due(limit)).await;
            found.iter().map(|row| (row.run, row.wait.activation)).collect::<Vec<_>>()
        };
        for limit in [1, 2, 9] {
            assert_eq!(order(limit).await, [(run(1), 7), (run(2), 2), (run(2), 1), (run(2), 4)], "{limit}");
        }
        let moved_up = RunUpdate { open: vec![on(7, at(60))], ..step(&head, "extended") };
        let head = moved(store, make.step(moved_up)).await;
        assert_eq!(order(9).await, [(run(2), 2), (run(1), 7), (run(2), 1), (run(2), 4)]);
        moved(store, make.step(RunUpdate { close: vec![7], ..end(&head) })).await;
        assert_eq!(order(9).await, [(run(2), 2), (run(2), 1), (run(2), 4)]);
        assert_eq!(all_waits(store, super::make::tenant(2), by_due(9)).await, []);
        let query = WaitQuery { cursor: Some("5:x:1".to_owned()), ..by_due(9) };
        assert!(store.waits(ME, query).await.is_err());
    }

    /// The audit rows that name a run are listed in pages, without those of other runs.
    async fn audit_rows_are_found_by_their_run(store: &Shared) {
        let make = Make::new();
        let mut expected = Vec::new();
        for commit in 1..=4 {
            let rows = (0..3_u128).map(|row| AuditRow {
                run: (row > 0).then(|| run(row)),
                ..audit(&format!("{commit}.{row}"))
            });
            apply(store, Commit { audit: rows.collect(), ..make.commit() }).await;
            expected.push(format!("{commit}.2"));
        }
        for limit in [1, 3, 9] {
            let (mut found, mut cursor) = (Vec::new(), None);
            loop {
                let query = RecordQuery::AuditOfRun { run: run(2), limit, cursor };
                let page = store.records(ME, query).await.unwrap();
                found.extend(page.items.into_iter().map(|record| match record {
                    Record::Audit { row, .. } => row.subject,
                    other => format!("{other:?}"),
                }));
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(found, expected, "pages of {limit}");
        }
    }

    /// Waits are found by topic, in pages. Topics are ordered by their bytes.
    async fn waits_are_found_by_their_topic(store: &Shared) {
        let make = Make::new();
        let on = |activation, topic: &str| StoredWait { topic: Some(topic.to_owned()), ..wait(activation) };
        for number in [2, 3, 1] {
            let open = vec![on(1, "paid\u{1f}a"), on(3, "paid\u{1f}b"), on(2, "paid\u{1f}a"), wait(4)];
            started(store, make.create(NewRun { open, ..new_run(run(number)) })).await;
        }
        let mut head = started(store, make.create(NewRun { open: vec![on(1, "Ä")], ..new_run(run(4)) })).await;
        let of = |topic: &str| WaitQuery { of: WaitFilter::Topic(topic.to_owned()), limit: 2, cursor: None };
        let found = all_waits(store, ME, of("paid\u{1f}a")).await;
        let found: Vec<_> = found.iter().map(|row| (row.run, row.wait.activation)).collect();
        assert_eq!(found, [(run(1), 1), (run(1), 2), (run(2), 1), (run(2), 2), (run(3), 1), (run(3), 2)]);
        assert_eq!(all_waits(store, ME, of("paid")).await, []);
        assert_eq!(all_waits(store, super::make::tenant(2), of("paid\u{1f}a")).await, []);
        assert_eq!(all_waits(store, ME, of("Ä")).await, [row(4, on(1, "Ä"))]);
        let first = async |from: &str, before: &str| {
            let of = WaitFilter::FirstTopic { from: from.to_owned(), before: before.to_owned() };
            store.waits(ME, WaitQuery { of, limit: 5, cursor: None }).await.unwrap()
        };
        let page = first("paid\u{1f}", "paid ").await;
        assert_eq!((page.items, page.next), (vec![row(1, on(1, "paid\u{1f}a"))], None));
        assert_eq!(first("paid\u{1f}a ", "paid ").await.items, [row(1, on(3, "paid\u{1f}b"))]);
        assert_eq!(first("paid\u{1f}c", "paid ").await.items, []);
        assert_eq!(first("Z", "\u{7f}").await.items, [row(1, on(1, "paid\u{1f}a"))], "in the order of bytes");
        let range = async |from: &str, before: &str, limit| {
            let of = WaitFilter::Topics { from: from.to_owned(), before: before.to_owned() };
            let page = store.waits(ME, WaitQuery { of, limit, cursor: None }).await.unwrap();
            page.items.into_iter().map(|row| (row.run, row.wait.activation)).collect::<Vec<_>>()
        };
        assert_eq!(range("paid\u{1f}", "paid ", 4).await, [(run(1), 1), (run(1), 2), (run(2), 1), (run(2), 2)]);
        assert_eq!(range("paid\u{1f}b", "paid ", 9).await, [(run(1), 3), (run(2), 3), (run(3), 3)]);
        assert_eq!(range("paid\u{1f}b ", "paid ", 9).await, []);
        let other = RunUpdate { open: vec![on(1, "other")], ..step(&head, "other") };
        head = moved(store, make.step(other)).await;
        assert_eq!(all_waits(store, ME, of("Ä")).await, [], "the reopened wait has another topic");
        assert_eq!(all_waits(store, ME, of("other")).await, [row(4, on(1, "other"))]);
        moved(store, make.step(RunUpdate { close: vec![1], ..end(&head) })).await;
        assert_eq!(all_waits(store, ME, of("other")).await, []);
    }
}
