//! Cases about atomicity: a refused commit leaves nothing behind.

use serde_json::json;

use super::Shared;
use super::ask::{apply, load, outcome, refuse, started};
use super::dump::{Dump, Names, Shown, dump};
use super::make::{
    ME, Make, answer_link, at, attempt, audit, bytes, delete, delete_handle, deliver, due_run, edge, end,
    flow, increment, key, message, new_run, own, process, put, put_handle, put_handle_on, remove, run, set,
    set_shadow, step, stored, to, unlink, unset_shadow, upsert, wait, write,
};
use crate::cell::{CellError, CellOp, CellWrite, Precondition};
use crate::commit::{
    Commit, NewRun, OnMissingRun, Ownership, Refused, ResultBinding, ResultPart, RunUpdate, SendMessage,
};
use crate::run::Head;

/// A change that makes a commit fail, with its name and a check of the refusal.
type Spoilt = (&'static str, fn(&mut Commit), fn(&Refused) -> bool);

async fn seen(store: &Shared) -> Dump {
    dump(store, ME, &Names::default(), at(0)).await
}

/// Fills a store with rows of every kind. Returns the head of run 1.
async fn populated(store: &Shared, make: &Make) -> Head {
    let first = NewRun { shadows: vec![set_shadow("email", "ann")], ..new_run(run(1)) };
    let create = vec![first, new_run(run(2)), new_run(run(3))];
    let cells = vec![set("text", "a"), set("number", 1), set("gone", 1)];
    let first = Commit {
        create,
        cells,
        links: vec![upsert(1, edge("a/1", "r", "b/1")), upsert(2, edge("a/1", "s", "b/1"))],
        documents: vec![put(run(1), "kept", "a"), put(run(1), "replaced", "a"), put(run(1), "gone", "a")],
        send: vec![to(run(1), "hello")],
        handles: vec![
            put_handle(answer_link(1, run(1))),
            put_handle(flow(7)),
            put_handle(flow(8)),
            own(8, 1, process(1)),
        ],
        keys: vec![key("a", 1)],
        definitions: vec![stored("orders")],
        audit: vec![audit("first")],
        ..make.commit()
    };
    let created = apply(store, first).await.created;
    let ended = Commit { step: Some(end(&created[2])), cells: vec![delete("gone")], ..make.commit() };
    apply(store, ended).await;
    load(store, run(1)).await.head
}

/// Builds a commit that writes something of every kind.
fn everything(make: &Make, head: &Head) -> Commit {
    Commit {
        step: Some(RunUpdate {
            owner: Ownership::Take(process(1)),
            take: vec![1],
            open: vec![wait(1)],
            close: vec![2],
            shadows: vec![set_shadow("total", 2), unset_shadow("email")],
            ..step(head, "next")
        }),
        create: vec![due_run(run(4), 0)],
        send: vec![to(run(2), "hello"), to(run(4), "welcome"), to(run(1), "note to self")],
        handles: vec![
            delete_handle(1, 1),
            put_handle(answer_link(2, run(1))),
            deliver(8, 2, 0),
            put_handle_on(1, flow(7), vec![set_shadow("total", 7)]),
        ],
        cells: vec![set("new", 1), increment("number", 1), delete("text")],
        links: vec![upsert(3, edge("a/1", "r", "b/2")), unlink(Some("a/1"), Some("s"), None)],
        actor: Some("ann".to_owned()),
        bindings: vec![ResultBinding {
            operation: 1,
            part: ResultPart::Value,
            pointer: "/vars/n".to_owned(),
        }],
        documents: vec![put(run(1), "replaced", "b"), remove(run(1), "gone"), put(run(4), "new", "a")],
        keys: vec![key("b", 2)],
        definitions: vec![stored("other")],
        audit: vec![audit("second"), audit("third")],
        ..make.commit()
    }
}

fn step_of(commit: &mut Commit) -> &mut RunUpdate {
    commit.step.as_mut().expect("the commit has a step")
}

fn cell_conflict(refused: &Refused) -> bool {
    matches!(refused, Refused::Cell { operation: 3, error: CellError::Conflict { .. }, .. })
}

fn wrong_kind(refused: &Refused) -> bool {
    matches!(refused, Refused::Cell { operation: 3, error: CellError::WrongKind { .. }, .. })
}

fn no_checkpoint(refused: &Refused) -> bool {
    matches!(refused, Refused::NoCheckpoint { .. })
}

fn spoilt_run() -> Vec<Spoilt> {
    vec![
        ("key done", |c| c.keys.push(key("a", 1)), |r| matches!(r, Refused::Done { .. })),
        ("key twice", |c| c.keys.push(key("b", 2)), |r| matches!(r, Refused::KeyReused { .. })),
        ("key reused", |c| c.keys.push(key("a", 9)), |r| matches!(r, Refused::KeyReused { .. })),
        ("no run", |c| step_of(c).head.run = run(9), |r| matches!(r, Refused::NoRun { .. })),
        ("moved", |c| step_of(c).head.revision += 1, |r| matches!(r, Refused::Moved { .. })),
        ("fenced", |c| step_of(c).fence = Some(9), |r| matches!(r, Refused::Fenced { .. })),
        ("no message", |c| step_of(c).take.push(2), |r| matches!(r, Refused::NoMessage { seq: 2, .. })),
        ("taken twice", |c| step_of(c).take.push(1), |r| matches!(r, Refused::NoMessage { seq: 1, .. })),
        ("child exists", |c| c.create.push(new_run(run(2))), |r| matches!(r, Refused::RunExists { .. })),
        ("child twice", |c| c.create.push(new_run(run(4))), |r| matches!(r, Refused::RunExists { .. })),
        ("child is parent", |c| c.create.push(new_run(run(1))), |r| matches!(r, Refused::RunExists { .. })),
    ]
}

fn spoilt_data() -> Vec<Spoilt> {
    vec![
        ("handle used up", |c| c.handles.push(delete_handle(1, 1)), |r| matches!(r, Refused::Handle { .. })),
        ("handle there", |c| c.handles.push(put_handle(flow(2))), |r| matches!(r, Refused::Handle { .. })),
        (
            "handle reserved",
            |c| c.handles.insert(0, own(8, 1, process(2))),
            |r| matches!(r, Refused::Handle { .. }),
        ),
        ("cell conflict", |c| c.cells.push(expect("number", Precondition::Absent)), cell_conflict),
        ("stale after delete", |c| c.cells.push(expect("gone", Precondition::Live(1))), cell_conflict),
        ("stale within the commit", |c| c.cells.push(expect("new", Precondition::Live(2))), cell_conflict),
        ("wrong kind", |c| c.cells.push(append("number")), wrong_kind),
        ("empty key", |c| c.cells.push(set("", 1)), |r| matches!(r, Refused::Cell { .. })),
        (
            "no end",
            |c| c.links.push(unlink(None, None, None)),
            |r| matches!(r, Refused::Link { operation: 5, .. }),
        ),
        (
            "empty relation",
            |c| c.links.push(upsert(4, edge("a/1", "", "b/1"))),
            |r| matches!(r, Refused::Link { .. }),
        ),
        (
            "no place",
            |c| c.bindings[0].pointer = "/nowhere/n".to_owned(),
            |r| matches!(r, Refused::ResultBinding { .. }),
        ),
        ("no operation", |c| c.bindings[0].operation = 5, |r| matches!(r, Refused::ResultBinding { .. })),
        (
            "no pointer",
            |c| c.bindings[0].pointer = "n".to_owned(),
            |r| matches!(r, Refused::ResultBinding { .. }),
        ),
        ("no next state", |c| step_of(c).next.clear(), |r| matches!(r, Refused::ResultBinding { .. })),
        ("no version", |c| c.documents.push(put(run(2), "k", "")), no_checkpoint),
        ("no version to end at", |c| c.documents.push(remove(run(9), "k")), no_checkpoint),
        (
            "empty document key",
            |c| c.documents.push(remove(run(1), "")),
            |r| matches!(r, Refused::Document { .. }),
        ),
        ("no target", |c| c.send.push(to(run(9), "x")), |r| matches!(r, Refused::NoTarget { .. })),
        ("ended target", |c| c.send.push(to(run(3), "x")), |r| matches!(r, Refused::NoTarget { .. })),
        ("full inbox", flood, |r| matches!(r, Refused::InboxFull { max: 1_000, .. })),
    ]
}

fn expect(key: &str, expect: Precondition) -> CellWrite {
    CellWrite { expect, ..set(key, 1) }
}

fn append(key: &str) -> CellWrite {
    write(key, CellOp::Append { item: json!(1) })
}

fn flood(commit: &mut Commit) {
    commit.send.extend((0..1_000).map(|_| to(run(2), "more")));
}

async fn leaves_no_trace(store: &Shared, spoils: Vec<Spoilt>) {
    let make = Make::new();
    let head = populated(store, &make).await;
    let before = seen(store).await;
    for (name, spoil, expected) in spoils {
        let mut commit = everything(&make, &head);
        spoil(&mut commit);
        let refused = refuse(store, commit.clone()).await;
        assert!(expected(&refused), "{name}: {refused:?}");
        assert_eq!(seen(store).await, before, "{name}");
        assert_eq!(outcome(store, &commit).await, None, "{name}");
    }
    apply(store, everything(&make, &head)).await;
    let after = seen(store).await;
    assert_eq!(
        (after.runs.len(), after.waits.len(), after.audit.len()),
        (4, 1, 14),
        "3 explicit rows, 7 cells, 4 links"
    );
    assert_eq!((after.links.len(), after.unsealed.len()), (2, 3));
    let shaded: Vec<_> = after.shadows.iter().map(|row| (row.run, row.name.as_str())).collect();
    assert_eq!(shaded, [(run(1), "total"), (run(7), "total")]);
    let fences: Vec<_> = after.handles.iter().map(|row| (row.handle.0[0], row.fence)).collect();
    assert_eq!(fences, [(2, 1), (7, 2), (8, 3)]);
    assert_eq!(after.undelivered, after.handles[2..]);
}

cases! { whole as __suite_whole;
    /// B2: a commit refused by a key, the run, its inbox or a new run leaves nothing behind.
    async fn a_commit_refused_by_its_runs_leaves_no_trace(store: &Shared) {
        leaves_no_trace(store, spoilt_run()).await;
    }

    /// B2: a commit refused by a handle, a cell, a result binding, a document or a message leaves nothing behind.
    async fn a_commit_refused_by_its_data_leaves_no_trace(store: &Shared) {
        leaves_no_trace(store, spoilt_data()).await;
    }

    /// D9: several writes are one transaction, so a conflict of the last one undoes the first.
    async fn data_without_a_run_is_written_atomically(store: &Shared) {
        let make = Make::new();
        apply(store, make.write([set("text", "a")])).await;
        let before = seen(store).await;
        let writes = [set("b", 1), increment("b", 1), increment("text", 1)];
        let commit = Commit { audit: vec![audit("b")], ..make.write(writes) };
        let refused = refuse(store, commit.clone()).await;
        assert!(matches!(refused, Refused::Cell { operation: 2, .. }), "{refused:?}");
        assert_eq!(seen(store).await, before);
        assert_eq!(outcome(store, &commit).await, None);
    }

    /// B2: all changes of a commit become visible together.
    async fn all_changes_of_a_commit_become_visible_together(store: &Shared) {
        let make = Make::new();
        let head = populated(store, &make).await;
        let commit = everything(&make, &head);
        let committed = apply(store, commit.clone()).await;
        let after = load(store, run(1)).await;
        assert_eq!(
            Some(&after.head),
            committed.head.as_ref().map(|head| Head { inbox_seen: 2, ..head.clone() }).as_ref()
        );
        assert_eq!(after.head.state, bytes(r#"{"at":"next","vars":{"n":2}}"#));
        let topics: Vec<_> = after.inbox.iter().map(|message| &message.topic[..]).collect();
        assert_eq!(topics, ["note to self"], "the first was taken");
        assert_eq!(load(store, run(4)).await.inbox[0].topic, "welcome");
        assert_eq!(load(store, run(2)).await.inbox[0].topic, "hello");
        let seen = seen(store).await;
        let live: Vec<_> =
            seen.cells.iter().filter(|cell| cell.value.is_some()).map(|c| &c.key.key[..]).collect();
        assert_eq!(live, ["new", "number"]);
        let edges: Vec<_> = seen.links.iter().map(|link| link.edge.clone()).collect();
        assert_eq!(edges, [edge("a/1", "r", "b/1"), edge("a/1", "r", "b/2")]);
        assert_eq!(seen.definitions[1].items.len(), 1);
        let keys = |versions: &[Shown]| {
            let now = versions.last().into_iter().flat_map(|shown| &shown.documents);
            now.map(|document| document.key.clone()).collect::<Vec<_>>()
        };
        let shown: Vec<_> = seen.documents.iter().map(|(run, versions)| (*run, keys(versions))).collect();
        assert_eq!(shown[0], (run(4), vec!["new".to_owned()]));
        assert_eq!(shown[3], (run(1), vec!["kept".to_owned(), "replaced".to_owned()]));
        assert_eq!(outcome(store, &commit).await.unwrap().results, committed.results);
    }

    /// The first failed check decides: keys, the run, its inbox, new runs, handles, cells, links, result bindings,
    /// documents, messages.
    async fn refusals_follow_the_order_of_the_checks(store: &Shared) {
        let make = Make::new();
        let head = populated(store, &make).await;
        let mut commit = everything(&make, &head);
        commit.send.push(SendMessage { to: run(9), message: message("x"), missing: OnMissingRun::Refuse });
        assert!(matches!(refuse(store, commit.clone()).await, Refused::NoTarget { .. }));
        commit.documents.push(put(run(2), "k", ""));
        assert!(matches!(refuse(store, commit.clone()).await, Refused::NoCheckpoint { .. }));
        commit.bindings[0].operation = 9;
        assert!(matches!(refuse(store, commit.clone()).await, Refused::ResultBinding { .. }));
        commit.links.push(unlink(None, None, None));
        assert!(matches!(refuse(store, commit.clone()).await, Refused::Link { operation: 5, .. }));
        commit.cells.push(append("number"));
        assert!(matches!(refuse(store, commit.clone()).await, Refused::Cell { .. }));
        commit.handles.push(delete_handle(1, 1));
        assert!(matches!(refuse(store, commit.clone()).await, Refused::Handle { .. }));
        commit.create.push(new_run(run(2)));
        assert!(matches!(refuse(store, commit.clone()).await, Refused::RunExists { .. }));
        step_of(&mut commit).take.push(9);
        assert!(matches!(refuse(store, commit.clone()).await, Refused::NoMessage { .. }));
        step_of(&mut commit).head.revision = 9;
        assert!(matches!(refuse(store, commit.clone()).await, Refused::Moved { .. }));
        step_of(&mut commit).fence = Some(9);
        assert!(matches!(refuse(store, commit.clone()).await, Refused::Fenced { .. }));
        commit.keys.push(key("a", 9));
        assert!(matches!(refuse(store, commit.clone()).await, Refused::KeyReused { .. }));
        commit.audit = vec![audit("too many"); 20_000];
        assert!(matches!(refuse(store, commit).await, Refused::TooLarge { .. }));
    }

    /// A ledger is atomic too: it is not written if a message of its commit has no target.
    async fn an_attempt_record_is_written_atomically(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let before = seen(store).await;
        let step = RunUpdate { wake: Some(at(1)), ..attempt(&head, Some("{}")) };
        let commit = Commit { send: vec![to(run(9), "x")], ..make.step(step) };
        assert_eq!(refuse(store, commit.clone()).await, Refused::NoTarget { run: run(9) });
        assert_eq!(seen(store).await, before);
        assert_eq!(outcome(store, &commit).await, None);
    }
}
