//! Cases about unusual input: arbitrary bytes and names, limits, and numbers and cursors that no store returned.

use bytes::Bytes;
use serde_json::json;

use super::Shared;
use super::ask::{
    all_audit, all_documents, all_links, all_runs, apply, apply_one, documents, find, get, links_of, load,
    moved, outcome, recorded, refuse, started,
};
use super::make::{
    ME, Make, at, attempt, audit, bytes, key, message, new_run, next, put, run, set, step, stored, thing, to,
    unlink, upsert, wait, write,
};
use crate::cell::{CellKey, CellOp, CellWrite, Space};
use crate::commit::{
    Commit, KeyWrite, NewMessage, NewRun, NextState, Refused, ResultBinding, ResultPart, RunUpdate,
    SendMessage, StoredDefinition,
};
use crate::document::{DocumentOp, DocumentQuery, DocumentWrite};
use crate::link::{Direction, Entity, LinkEdge, LinkFilter, LinkQuery};
use crate::run::StoredWait;
use crate::run_query::{RunFilter, RunQuery};
use crate::store::{CellQuery, HistoryQuery, Record, RecordQuery, StoreError, WaitFilter, WaitQuery};

/// Bytes that are not valid text in any encoding.
const RAW: &[u8] = b"\0\x01\xFF\xFE\xC3(\0\x80'\"\\\n\r\x1A";
/// Names in various scripts and with special characters.
const NAMES: [&str; 7] =
    ["übung", "注文", "🚀 go", "a'b\"c", "{\"not\":\"json\"}", "tab\tand\nline", "back\\slash"];

fn shows(run: stepwell_core::RunId, key: &str, kind: &str, body: &Bytes, tag: &str) -> DocumentWrite {
    let tags = vec!["first".to_owned(), tag.to_owned()];
    DocumentWrite {
        run,
        key: key.to_owned(),
        op: DocumentOp::Put { kind: kind.into(), body: body.clone(), tags },
    }
}

/// Builds an edge whose parts are all this text.
fn named(text: &str) -> LinkEdge {
    LinkEdge::new(text, Entity::new(text, text), Entity::new(text, text), text)
}

/// Calls the listings of links and unsealed commits with this cursor.
async fn listed_from(store: &Shared, cursor: &str) -> Vec<(&'static str, Result<usize, StoreError>)> {
    let cursor = Some(cursor.to_owned());
    let of = LinkQuery { cursor: cursor.clone(), ..links_of("a/1", Direction::Either) };
    let all = LinkQuery { cursor: cursor.clone(), ..super::ask::links() };
    let unsealed = RecordQuery::Unsealed { limit: 5, cursor };
    vec![
        ("links of an entity", store.links(ME, of).await.map(|page| page.items.len())),
        ("links", store.links(ME, all).await.map(|page| page.items.len())),
        ("unsealed", store.records(ME, unsealed).await.map(|page| page.items.len())),
    ]
}

fn too_large(refused: &Refused, limit: &str) -> bool {
    matches!(refused, Refused::TooLarge(exceeded) if exceeded.limit == limit)
}

fn state_of(bytes: usize) -> NextState {
    NextState { state: Bytes::from(vec![b'x'; bytes]), ..next("large") }
}

cases! { odd as __suite_odd;
    /// Some databases cannot store a NUL character in text, so no store accepts one.
    async fn a_text_with_a_nul_character_is_refused(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let nul = "a\0b".to_owned();
        let in_place = NextState { places: vec![nul.as_str().into()], ..next("on") };
        let in_wait = StoredWait { place: nul.as_str().into(), ..wait(1) };
        let own = CellKey { space: Space::Kv, owner: nul.clone(), key: "k".to_owned() };
        let commits = [
            make.step(RunUpdate { next: vec![in_place.clone()], ..step(&head, "") }),
            make.step(RunUpdate { open: vec![in_wait.clone()], ..step(&head, "on") }),
            make.create(NewRun { workflow: nul.as_str().into(), ..new_run(run(2)) }),
            make.create(NewRun { first: in_place, ..new_run(run(2)) }),
            make.create(NewRun { open: vec![in_wait], ..new_run(run(2)) }),
            Commit { send: vec![to(run(1), &nul)], ..make.commit_at(at(1)) },
            make.write([set(&nul, 1)]),
            make.write([CellWrite { key: own, ..set("k", 1) }]),
            Commit { documents: vec![put(run(1), &nul, "x")], ..make.step(step(&head, "on")) },
            Commit {
                documents: vec![shows(run(1), "k", &nul, &bytes("{}"), "tag")],
                ..make.step(step(&head, "on"))
            },
            Commit {
                documents: vec![shows(run(1), "k", "note", &bytes("{}"), &nul)],
                ..make.step(step(&head, "on"))
            },
            Commit { keys: vec![key(&nul, 1)], ..make.commit_at(at(1)) },
            Commit {
                keys: vec![KeyWrite { operation: nul.clone(), ..key("k", 1) }],
                ..make.commit_at(at(1))
            },
            Commit { definitions: vec![stored(&nul)], ..make.commit_at(at(1)) },
            Commit { audit: vec![audit(&nul)], ..make.commit_at(at(1)) },
            Commit { actor: Some(nul.clone()), ..make.write([set("k", 1)]) },
            make.link([upsert(1, LinkEdge::new(&nul, thing("a/1"), thing("b/1"), "r"))]),
            make.link([upsert(1, LinkEdge::new("ns", Entity::new(&nul, "1"), thing("b/1"), "r"))]),
            make.link([upsert(1, LinkEdge::new("ns", Entity::new("a", &nul), thing("b/1"), "r"))]),
            make.link([upsert(1, LinkEdge::new("ns", thing("a/1"), Entity::new(&nul, "1"), "r"))]),
            make.link([upsert(1, LinkEdge::new("ns", thing("a/1"), Entity::new("b", &nul), "r"))]),
            make.link([upsert(1, LinkEdge::new("ns", thing("a/1"), thing("b/1"), &nul))]),
            make.link([unlink(Some("a/1"), Some(&nul), None)]),
            make.link([unlink(None, None, Some("a/a\0b"))]),
        ];
        for commit in commits {
            let refused = refuse(store, commit.clone()).await;
            assert!(matches!(&refused, Refused::Nul { text, .. } if *text == nul), "{refused} for {commit:?}");
        }
        assert_eq!(load(store, run(1)).await.head, head);
    }

    /// Byte fields read back unchanged, whether they contain text or not.
    async fn raw_bytes_read_back_unchanged(store: &Shared) {
        let make = Make::new();
        for (number, raw) in (1..).zip([RAW, b"", b"\0"]) {
            let raw = Bytes::copy_from_slice(raw);
            let name = format!("k{number}");
            let definition = StoredDefinition { body: raw.clone(), ..stored(&name) };
            let open = vec![StoredWait { detail: raw.clone(), ..wait(1) }];
            let new = NewRun { ledger: Some(raw.clone()), open: open.clone(), ..new_run(run(number)) };
            let body = NewMessage { body: raw.clone(), ..message("raw") };
            let create = Commit {
                send: vec![SendMessage { message: body, ..to(run(number), "") }],
                keys: vec![KeyWrite { answer: raw.clone(), ..key(&name, 1) }],
                definitions: vec![definition.clone()],
                documents: vec![shows(run(number), "raw", "raw", &raw, "raw")],
                ..make.create(new)
            };
            let head = started(store, create).await;
            let loaded = load(store, run(number)).await;
            assert_eq!(loaded.ledger, Some(raw.clone()));
            assert_eq!(loaded.inbox[0].body, raw);
            assert_eq!(all_documents(store, ME, documents(run(number))).await[0].body, raw);
            assert_eq!(recorded(store, &name, at(0)).await.unwrap().answer, Some(raw.clone()));
            let again = Commit { keys: vec![key(&name, 1)], ..make.commit() };
            assert!(matches!(refuse(store, again).await, Refused::Done { answer, .. } if answer == raw));
            let found = store.records(ME, RecordQuery::Definition(definition.hash)).await.unwrap().items;
            assert_eq!(found, [Record::Definition(definition)]);
            let query = WaitQuery { of: WaitFilter::Run(run(number)), ..WaitQuery::default() };
            assert_eq!(store.waits(ME, query).await.unwrap().items[0].wait, open[0]);
            let change = RunUpdate { ledger: Some(raw.clone()), ..step(&head, "on") };
            moved(store, make.step(change)).await;
            assert_eq!(load(store, run(number)).await.ledger, Some(raw));
        }
    }

    /// An empty ledger differs from an absent one.
    async fn empty_and_absent_attempts_differ(store: &Shared) {
        let make = Make::new();
        let head =
            started(store, make.create(NewRun { ledger: Some(Bytes::new()), ..new_run(run(1)) })).await;
        assert_eq!(load(store, run(1)).await.ledger, Some(Bytes::new()));
        let head = moved(store, make.step(attempt(&head, None))).await;
        assert_eq!(load(store, run(1)).await.ledger, None);
        moved(store, make.step(attempt(&head, Some("")))).await;
        assert_eq!(load(store, run(1)).await.ledger, Some(Bytes::new()));
    }

    /// States are bytes too. They may be empty, and a run may be in no place.
    async fn an_empty_state_reads_back(store: &Shared) {
        let make = Make::new();
        let empty = NextState { state: Bytes::new(), entry: Bytes::new(), places: vec![] };
        let head = started(store, make.create(NewRun { first: empty.clone(), ..new_run(run(1)) })).await;
        assert_eq!(load(store, run(1)).await.head.state, Bytes::new());
        let head = moved(store, make.step(RunUpdate { next: vec![empty], ..step(&head, "") })).await;
        assert_eq!((head.version, load(store, run(1)).await.head), (1, head.clone()));
        let raw = NextState { state: Bytes::from_static(RAW), ..next("raw") };
        moved(store, make.step(RunUpdate { next: vec![raw], ..step(&head, "") })).await;
        assert_eq!(load(store, run(1)).await.head.state, RAW);
        let query = HistoryQuery { run: run(1), from: 0, with_state: true, limit: 9 };
        let rows = store.history(ME, query).await.unwrap().items;
        assert_eq!((&rows[1].state, &rows[1].entry), (&Some(Bytes::new()), &Bytes::new()));
    }

    /// Names may contain text of any script.
    async fn names_of_any_script_read_back(store: &Shared) {
        let make = Make::new();
        for (number, name) in (1..).zip(NAMES) {
            let places = vec![name.into(), "second".into()];
            let first = NextState { places: places.clone(), ..next("x") };
            let new = NewRun { workflow: name.into(), first, ..new_run(run(number)) };
            let owner = CellWrite {
                key: CellKey { space: Space::Workflow, owner: name.to_owned(), key: name.to_owned() },
                ..set("", name)
            };
            let actor = Some(name.to_owned());
            let commit = Commit {
                send: vec![to(run(number), name)],
                documents: vec![shows(run(number), name, name, &bytes(name), name), put(run(number), "other", "")],
                cells: vec![owner],
                links: vec![upsert(1, named(name))],
                actor: actor.clone(),
                keys: vec![KeyWrite { operation: name.to_owned(), ..key(name, 1) }],
                audit: vec![crate::AuditRow {
                    operation: name.to_owned(),
                    actor: actor.clone(),
                    ..audit(name)
                }],
                ..make.create(new)
            };
            apply(store, commit).await;
            let loaded = load(store, run(number)).await;
            assert_eq!((&loaded.workflow[..], &loaded.inbox[0].topic[..]), (name, name));
            let query = RunQuery { filter: RunFilter::of(name), ..RunQuery::default() };
            let listed = all_runs(store, ME, query).await;
            assert_eq!((listed.len(), &listed[0].places), (1, &places));
            let text = Some(name.to_owned());
            let query = DocumentQuery { tag: text.clone(), kind: Some(name.into()), ..documents(run(number)) };
            let found = all_documents(store, ME, query.clone()).await;
            assert_eq!((found.len(), &found[0].key[..], &found[0].tags[1][..]), (1, name, name));
            let query = DocumentQuery { key: text, at: Some(0), ..query };
            assert_eq!(all_documents(store, ME, query).await, found);
            let owner = name.to_owned();
            let query = CellQuery { space: Space::Workflow, owner, ..super::ask::cells(at(0)) };
            assert_eq!(store.cells(ME, query).await.unwrap().items[0].value, Some(json!(name)));
            let mut trail = all_audit(store, ME, 100).await;
            let Record::Audit { row, ordinal: 2, .. } = trail.pop().unwrap() else { panic!() };
            assert_eq!((&row.operation[..], row.actor), ("links.upsert", actor.clone()));
            let Record::Audit { row, ordinal: 1, .. } = trail.pop().unwrap() else { panic!() };
            assert_eq!((&row.operation[..], row.actor), ("state.set", actor.clone()));
            let Record::Audit { row, ordinal: 0, .. } = trail.pop().unwrap() else { panic!() };
            assert_eq!((&row.operation[..], &row.subject[..], row.actor), (name, name, actor));
            let end = Entity::new(name, name);
            let which = LinkFilter::Of { end, direction: Direction::Either, far: Some(name.to_owned()) };
            let query = LinkQuery { namespace: name.to_owned(), which, ..super::ask::links() };
            assert_eq!(all_links(store, ME, query).await[0].edge, named(name));
            let query = RecordQuery::Key { operation: name.to_owned(), key: name.to_owned(), now: at(0) };
            assert_eq!(store.records(ME, query).await.unwrap().items.len(), 1);
        }
    }

    /// D2: every JSON value reads back, also those that some databases cannot store as JSON.
    async fn odd_json_values_read_back(store: &Shared) {
        let make = Make::new();
        let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
        let values = [
            json!("\0 and \u{7F} and \u{2028}"),
            json!({"": 0, "\0": 1, " ": {"a.b": 1, "$ref": "#"}}),
            json!("\u{FFFF}\u{10FFFF}"),
            json!({"b": 1, "a": 2}),
            deep,
        ];
        for (number, value) in values.into_iter().enumerate() {
            let name = format!("k{number}");
            apply(store, make.write([set(&name, value.clone())])).await;
            assert_eq!(get(store, &name).await.unwrap().value, Some(value.clone()));
            apply(
                store,
                make.write([write(
                    &name,
                    CellOp::Set {
                        value: json!([value]),
                        value_type: crate::ValueType::Json,
                        ttl: crate::Ttl::Keep,
                    },
                )]),
            )
            .await;
            let taken = apply_one(store, make.write([write(&name, CellOp::RemoveFirst)])).await;
            assert_eq!(taken.value, Some(value));
        }
    }

    /// A commit that exceeds a limit is refused before any other check.
    async fn a_commit_over_its_limits_is_refused(store: &Shared) {
        let make = Make::new();
        let many = Commit { audit: vec![audit("x"); 20_001], ..make.commit() };
        assert!(too_large(&refuse(store, many).await, "commit_rows"));
        let detail = Bytes::from(vec![b' '; 3 * 1024 * 1024 + 1]);
        let row = crate::AuditRow { detail, ..audit("x") };
        let heavy = Commit { audit: vec![row; 6], ..make.create(new_run(run(1))) };
        assert!(too_large(&refuse(store, heavy).await, "commit_bytes"));
        let notes = |text: &str, count| vec![put(run(1), "k", text); count];
        let many = Commit { documents: notes("", 10_000), ..make.create(new_run(run(1))) };
        assert!(too_large(&refuse(store, many).await, "commit_rows"));
        let heavy = Commit { documents: notes(&"x".repeat(3 * 1024 * 1024), 6), ..make.create(new_run(run(1))) };
        assert!(too_large(&refuse(store, heavy).await, "commit_bytes"));
        let max = 4 * 1024 * 1024;
        let large = NewRun { first: state_of(max + 1), ..new_run(run(1)) };
        assert!(too_large(&refuse(store, make.create(large)).await, "snapshot_bytes"));
        assert_eq!(find(store, run(1)).await, None);
        let head = started(store, make.create(NewRun { first: state_of(max), ..new_run(run(1)) })).await;
        let large = RunUpdate { next: vec![state_of(max + 1)], ..step(&head, "") };
        assert!(too_large(&refuse(store, make.step(large)).await, "snapshot_bytes"));
        assert_eq!(load(store, run(1)).await.head.state.len(), max);
    }

    /// A state that exceeds the limit only because of a result binding is refused too.
    async fn a_result_that_makes_the_state_too_large_is_refused(store: &Shared) {
        let make = Make::new();
        apply(store, make.write([set("list", json!(["y".repeat(1_000)]))])).await;
        let head = started(store, make.create(new_run(run(1)))).await;
        let padding = "x".repeat(4 * 1024 * 1024 - 100);
        let state = json!({ "padding": padding }).to_string().into();
        let bindings = vec![ResultBinding { operation: 0, part: ResultPart::Value, pointer: "/item".to_owned() }];
        let commit = Commit {
            cells: vec![write("list", CellOp::RemoveFirst)],
            bindings,
            ..make.step(RunUpdate { next: vec![NextState { state, ..next("x") }], ..step(&head, "") })
        };
        assert!(too_large(&refuse(store, commit.clone()).await, "snapshot_bytes"));
        assert_eq!(outcome(store, &commit).await, None);
        assert_eq!(get(store, "list").await.unwrap().revision, 1);
    }

    /// A number too large for a database's integers is handled like any other unknown number.
    async fn numbers_that_no_store_returned_are_handled(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let huge = u64::MAX;
        let taken = make.step(RunUpdate { take: vec![huge], ..step(&head, "x") });
        assert_eq!(refuse(store, taken).await, Refused::NoMessage { run: run(1), seq: huge });
        let stale = RunUpdate { head: crate::Head { revision: huge, ..head.clone() }, ..step(&head, "x") };
        assert!(matches!(refuse(store, make.step(stale)).await, Refused::Moved { expected: u64::MAX, .. }));
        let fenced = RunUpdate { fence: Some(huge), ..step(&head, "x") };
        assert!(matches!(refuse(store, make.step(fenced)).await, Refused::Fenced { expected: u64::MAX, .. }));
        let cursor = Some(format!("{}:{huge}", run(1)));
        let page = store.waits(ME, WaitQuery { of: WaitFilter::All, limit: 5, cursor }).await.unwrap();
        assert_eq!(page.items, []);
        let seals = store.records(ME, RecordQuery::Seals { from: huge, limit: 5 }).await.unwrap();
        assert_eq!(seals.items, []);
        let query = DocumentQuery { at: Some(huge), cursor: Some(format!("{huge}:{huge}")), ..documents(run(1)) };
        assert_eq!(store.documents(ME, query).await.unwrap().items, []);
    }

    /// A cursor that no page returned is the caller's error.
    async fn a_bad_cursor_is_the_callers_error(store: &Shared) {
        let make = Make::new();
        apply(store, Commit { audit: vec![audit("x")], ..make.create(new_run(run(1))) }).await;
        for cursor in ["", "nonsense", "1", ":", "a:b", "'; --", "00000000-0000-0000-0000-000000000000:x"] {
            let text = cursor;
            let cursor = Some(cursor.to_owned());
            let runs = store.runs(ME, RunQuery { cursor: cursor.clone(), ..RunQuery::default() }).await;
            assert!(matches!(runs, Err(StoreError::Invalid(_))), "{cursor:?}: {runs:?}");
            let waits = store.waits(ME, WaitQuery { cursor: cursor.clone(), ..WaitQuery::default() }).await;
            assert!(matches!(waits, Err(StoreError::Invalid(_))), "{cursor:?}: {waits:?}");
            let trail = store.records(ME, RecordQuery::Audit { limit: 5, cursor: cursor.clone() }).await;
            assert!(matches!(trail, Err(StoreError::Invalid(_))), "{cursor:?}: {trail:?}");
            let query = RecordQuery::Definitions { workflow: None, limit: 5, cursor: cursor.clone() };
            let listed = store.records(ME, query).await;
            assert!(matches!(listed, Err(StoreError::Invalid(_))), "{cursor:?}: {listed:?}");
            let shown = store.documents(ME, DocumentQuery { cursor: cursor.clone(), ..documents(run(1)) }).await;
            assert!(matches!(shown, Err(StoreError::Invalid(_))), "{cursor:?}: {shown:?}");
            for (what, listed) in listed_from(store, text).await {
                assert!(matches!(listed, Err(StoreError::Invalid(_))), "{what}: {listed:?}");
            }
        }
        let misshapen = ["1:a1:b", "1:a1:b1:c1:x", "1:a1:b1:c2:f", "-1:a", "9:a", "1:ä1:b1:c1:f"];
        for cursor in misshapen.into_iter().chain(["1:a1:b1:c1:d1:e1:f"]) {
            for (what, listed) in listed_from(store, cursor).await {
                assert!(matches!(listed, Err(StoreError::Invalid(_))), "{what} {cursor}: {listed:?}");
            }
        }
    }

    /// A commit that changes nothing is applied like any other.
    async fn an_empty_commit_is_applied(store: &Shared) {
        let commit = Make::new().commit();
        let committed = apply(store, commit.clone()).await;
        assert_eq!((committed.head, committed.created, committed.results), (None, vec![], vec![]));
        assert!(outcome(store, &commit).await.is_some());
        assert_eq!(bytes(""), outcome(store, &commit).await.unwrap().answer.unwrap());
    }

    /// Migrating a current schema changes nothing.
    async fn migrating_again_changes_nothing(store: &Shared) {
        let first = store.migrate().await.expect("a store can be migrated");
        let head = started(store, Make::new().create(new_run(run(1)))).await;
        assert_eq!(store.migrate().await, Ok(first));
        assert_eq!(load(store, run(1)).await.head, head);
    }
}
