//! Documents, each visible in a range of versions, and cell operations that an action stages with the state.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, RunId, Spec};
use stepwell::engine::Builder;
use stepwell::store::{
    CellFilter, CellKey, CellOp, CellQuery, CellWrite, Document, DocumentQuery, Initial, Precondition, Space,
    Status, Store, Ttl, ValueType,
};
use stepwell::testing::TestEngine;
use stepwell::{
    ActionError, Actor, Command, Cx, Engine, EngineError, Operator, Permission, Run, Signal, Start,
};

use crate::kit::{
    self, Fate, LEASE_MS, Watched, audit, error_code, ground, other_tenant, settle, start_killable, status,
    version,
};

/// A case file: every `EDIT` creates one version and edits the documents as its payload says.
fn case() -> Definition {
    Spec::new("case")
        .step("open")
        .end("closed")
        .signal("EDIT")
        .signal("CLOSE")
        .transition(Transition::new("edit", "open", "open").on_signal("EDIT").action("edit"))
        .transition(Transition::new("close", "open", "closed").on_signal("CLOSE").action("edit"))
        .build()
        .unwrap()
}

async fn edit(cx: Cx) -> Result<usize, ActionError> {
    for step in cx.payload().as_array().into_iter().flatten() {
        let text = |field: &str| step[field].as_str().map(str::to_owned);
        if let Some(key) = text("put") {
            let kind = text("kind").unwrap_or_else(|| "note".to_owned());
            let tags: Vec<_> =
                step["tags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            cx.put_document(key, kind, &step["body"], &tags)?;
        }
        if let Some(key) = text("remove") {
            cx.remove_document(key)?;
        }
        if step["fail"] == json!(true) {
            return Err(ActionError::new("torn", "the paper was torn"));
        }
    }
    Ok(cx.documents(all(cx.run())).await?.items.len())
}

fn all(run: RunId) -> DocumentQuery {
    DocumentQuery { run, at: None, key: None, kind: None, tag: None, limit: 100, cursor: None }
}

fn cases(builder: Builder) -> Builder {
    builder.workflow(case()).action("edit", edit)
}

async fn opened() -> (TestEngine, Run) {
    let engine = kit::start(cases).await.unwrap();
    let run = engine.start(Start::new("case")).await.unwrap();
    engine.settle().await;
    (engine, run)
}

async fn edited(engine: &TestEngine, run: &Run, steps: Value) {
    run.signal(Signal::new("EDIT").with(&steps)).await.unwrap();
    engine.settle().await;
}

async fn listed(engine: &Engine, query: DocumentQuery) -> Vec<Document> {
    engine.store().documents(engine.scope(), query).await.unwrap().items
}

/// Key and body of the documents visible at a version.
async fn at(engine: &Engine, run: RunId, version: u64) -> Vec<(String, Value)> {
    let found = listed(engine, DocumentQuery { at: Some(version), ..all(run) }).await;
    let mut found: Vec<_> =
        found.into_iter().map(|document| (document.key.clone(), body(&document))).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn body(document: &Document) -> Value {
    serde_json::from_slice(&document.body).unwrap()
}

fn shown(documents: &[(&str, i64)]) -> Vec<(String, Value)> {
    documents.iter().map(|(key, body)| ((*key).to_owned(), json!(body))).collect()
}

#[tokio::test]
async fn document_is_visible_from_the_version_that_wrote_it() {
    let (engine, run) = opened().await;
    edited(
        &engine,
        &run,
        json!([{"put": "letter", "kind": "letter", "body": {"to": "Ada"}, "tags": ["out"]}]),
    )
    .await;
    assert_eq!(at(&engine, run.id(), 0).await, []);
    let documents = listed(&engine, all(run.id())).await;
    let [document] = &documents[..] else { panic!("{documents:?}") };
    assert_eq!((document.run, document.key.as_str(), document.kind.as_str()), (run.id(), "letter", "letter"));
    assert_eq!((document.visible_from, document.visible_to, document.at), (1, None, engine.now()));
    assert_eq!((body(document), &document.tags[..]), (json!({"to": "Ada"}), &["out".to_owned()][..]));
}

#[tokio::test]
async fn every_version_shows_its_own_documents() {
    let (engine, run) = opened().await;
    edited(&engine, &run, json!([{"put": "a", "body": 1}, {"put": "b", "body": 1}])).await;
    edited(&engine, &run, json!([{"put": "a", "body": 2}])).await;
    edited(&engine, &run, json!([])).await;
    edited(&engine, &run, json!([{"remove": "a"}, {"put": "c", "body": 4}])).await;
    edited(&engine, &run, json!([{"put": "a", "body": 5}])).await;
    let expected: [&[(&str, i64)]; 6] = [
        &[],
        &[("a", 1), ("b", 1)],
        &[("a", 2), ("b", 1)],
        &[("a", 2), ("b", 1)],
        &[("b", 1), ("c", 4)],
        &[("a", 5), ("b", 1), ("c", 4)],
    ];
    for (version, expected) in (0..).zip(expected) {
        assert_eq!(at(&engine, run.id(), version).await, shown(expected), "at version {version}");
    }
    assert_eq!(version(&run).await, 5);
}

#[tokio::test]
async fn documents_are_found_by_key_kind_and_tag() {
    let (engine, run) = opened().await;
    let steps = json!([
        {"put": "a", "kind": "letter", "body": 1, "tags": ["in", "paid"]},
        {"put": "b", "kind": "invoice", "body": 2, "tags": ["paid"]},
        {"put": "c", "kind": "letter", "body": 3},
    ]);
    edited(&engine, &run, steps).await;
    // Queries match the current document: a replaced one is no longer found by its old tags.
    edited(&engine, &run, json!([{"put": "c", "kind": "invoice", "body": 4, "tags": ["in"]}])).await;
    let keys = |query: DocumentQuery| {
        let engine = &engine;
        async move { listed(engine, query).await.into_iter().map(|document| document.key).collect::<Vec<_>>() }
    };
    let query = || all(run.id());
    assert_eq!(keys(DocumentQuery { key: Some("b".to_owned()), ..query() }).await, ["b"]);
    assert_eq!(keys(DocumentQuery { kind: Some("letter".into()), ..query() }).await, ["a"]);
    assert_eq!(keys(DocumentQuery { kind: Some("invoice".into()), ..query() }).await, ["b", "c"]);
    assert_eq!(keys(DocumentQuery { tag: Some("paid".to_owned()), ..query() }).await, ["a", "b"]);
    assert_eq!(keys(DocumentQuery { tag: Some("in".to_owned()), ..query() }).await, ["a", "c"]);
    let then = DocumentQuery { at: Some(1), kind: Some("letter".into()), ..query() };
    assert_eq!(keys(then).await, ["a", "c"]);
}

#[tokio::test]
async fn last_write_of_a_key_in_one_action_wins() {
    let (engine, run) = opened().await;
    edited(&engine, &run, json!([{"put": "a", "body": 1}, {"put": "a", "body": 2}, {"put": "b", "body": 1}]))
        .await;
    edited(
        &engine,
        &run,
        json!([{"remove": "a"}, {"put": "a", "body": 3}, {"put": "b", "body": 2}, {"remove": "b"}]),
    )
    .await;
    assert_eq!(at(&engine, run.id(), 1).await, shown(&[("a", 2), ("b", 1)]));
    assert_eq!(at(&engine, run.id(), 2).await, shown(&[("a", 3)]));
}

#[tokio::test]
async fn documents_are_rolled_back_with_a_failed_transition() {
    let (engine, run) = opened().await;
    edited(&engine, &run, json!([{"put": "a", "body": 1}, {"put": "b", "body": 1}])).await;
    edited(
        &engine,
        &run,
        json!([{"put": "a", "body": 2}, {"remove": "b"}, {"put": "c", "body": 2}, {"fail": true}]),
    )
    .await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Failed, 1));
    let documents = listed(&engine, all(run.id())).await;
    assert!(documents.iter().all(|document| document.visible_to.is_none()));
    assert_eq!(at(&engine, run.id(), 1).await, shown(&[("a", 1), ("b", 1)]));
    // A dismissed action leaves nothing behind either.
    engine.operate(run.id(), Command::Dismiss, &Operator::default()).await.unwrap();
    edited(&engine, &run, json!([{"put": "d", "body": 2}])).await;
    assert_eq!(at(&engine, run.id(), 2).await, shown(&[("a", 1), ("b", 1), ("d", 2)]));
}

#[tokio::test]
async fn documents_are_rolled_back_with_a_refused_commit() {
    let (engine, run) = opened().await;
    edited(&engine, &run, json!([{"put": "a", "body": 1}])).await;
    // The store refuses a document with an empty key.
    edited(&engine, &run, json!([{"put": "a", "body": 2}, {"put": "", "body": 2}])).await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Failed, 1));
    let error = run.view().await.unwrap().ledger.stopped.unwrap().error;
    assert!(error.message.contains("the key is empty"), "{error}");
    assert!(error.is_final, "a retry cannot succeed: {error:?}");
    assert_eq!(at(&engine, run.id(), 1).await, shown(&[("a", 1)]));
}

/// The case file with declared document kinds.
fn typed(version: u32) -> Spec {
    let letter = json!({
        "type": "object",
        "properties": {"to": {"type": "string"}, "pages": {"type": "integer", "minimum": 1}},
        "required": ["to"],
    });
    let mut spec =
        case().spec().clone().document("letter", letter).document("note", json!({"type": "integer"}));
    spec.version = version;
    spec
}

#[tokio::test]
async fn document_that_violates_its_schema_is_refused() {
    let build = |builder: Builder| builder.workflow(typed(1).build().unwrap()).action("edit", edit);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("case")).await.unwrap();
    edited(&engine, &run, json!([{"put": "a", "kind": "letter", "body": {"to": "Ada", "pages": 2}}])).await;
    edited(&engine, &run, json!([{"put": "b", "body": 4}])).await;
    assert_eq!(version(&run).await, 2);
    for (kind, body, says) in [
        ("letter", json!({"to": 5}), "to"),
        ("letter", json!({"pages": 1}), "to"),
        ("letter", json!({"to": "Ada", "pages": 0}), "pages"),
        ("note", json!("four"), "integer"),
        ("leter", json!({"to": "Ada"}), "`leter`"),
    ] {
        edited(&engine, &run, json!([{"put": "b", "body": 5}, {"put": "c", "kind": kind, "body": body}]))
            .await;
        let error = run.view().await.unwrap().ledger.stopped.unwrap().error;
        assert_eq!((error.code.as_str(), error.is_final), ("invalidDocument", true));
        assert!(error.message.contains(says), "{error}");
        assert_eq!((status(&run).await, version(&run).await), (Status::Failed, 2));
        engine.operate(run.id(), Command::Dismiss, &Operator::default()).await.unwrap();
    }
    let letter = json!({"to": "Ada", "pages": 2});
    assert_eq!(at(&engine, run.id(), 2).await, [("a".to_owned(), letter), ("b".to_owned(), json!(4))]);
}

#[tokio::test]
async fn document_kinds_are_part_of_the_definition() {
    let mut other = typed(1);
    other = other.document("note", json!({"type": "string"}));
    assert_ne!(typed(1).build().unwrap().hash(), other.build().unwrap().hash());
    let bad = typed(1).document("note", json!({"type": "nothing"}));
    let problems = bad.build().unwrap_err().to_string();
    assert!(problems.contains("note"), "{problems}");
}

#[tokio::test]
async fn action_reads_committed_documents_only() {
    let definition = Spec::new("case")
        .step("a")
        .step("b")
        .end_with("c", json!({"first": {"$expr": "context.first"}, "second": {"$expr": "context.second"}}))
        .transition(Transition::new("ab", "a", "b").action_with(saved("first")))
        .transition(Transition::new("bc", "b", "c").action_with(saved("second")))
        .build()
        .unwrap();
    let action = |cx: Cx| async move {
        cx.put_document("a", "note", &1, &[])?;
        // An action sees the documents of its own run, whatever run the query names.
        let seen = cx.documents(all(RunId::nil())).await?.items;
        Ok::<_, ActionError>(seen.into_iter().map(|document| document.key).collect::<Vec<_>>())
    };
    let build =
        |builder: Builder| builder.workflow(definition).action("first", action).action("second", action);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("case")).await.unwrap();
    engine.settle().await;
    assert_eq!(run.result().await.unwrap(), json!({"first": [], "second": ["a"]}));
}

fn saved(name: &str) -> stepwell::core::spec::ActionSpec {
    stepwell::core::spec::ActionSpec {
        name: name.into(),
        input: Value::Null,
        save_as: Some(name.to_owned()),
        version: None,
    }
}

#[tokio::test]
async fn cancelled_action_writes_no_documents() {
    let (engine, run) = opened().await;
    run.signal(Signal::new("CLOSE").with(&json!([{"put": "a", "body": 1}]))).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(at(&engine, run.id(), 1).await, shown(&[("a", 1)]));

    let put_and_stay = |cx: Cx| async move {
        cx.put_document("a", "note", &1, &[])?;
        std::future::pending::<Result<(), ActionError>>().await
    };
    let build = |builder: Builder| builder.workflow(case()).action("edit", put_and_stay);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("case")).await.unwrap();
    edited(&engine, &run, json!([])).await;
    engine.cancel(run.id()).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, listed(&engine, all(run.id())).await), (Status::Cancelled, vec![]));
}

#[tokio::test]
async fn documents_belong_to_their_runs_tenant() {
    let (engine, ours) = opened().await;
    let theirs = engine.for_tenant(other_tenant());
    let run = theirs.start(Start::new("case")).await.unwrap();
    edited(&engine, &run, json!([{"put": "a", "body": 1}])).await;
    edited(&engine, &ours, json!([{"put": "a", "body": 2}])).await;
    assert_eq!(listed(&engine, all(run.id())).await, []);
    assert_eq!(listed(&theirs, all(ours.id())).await, []);
    let gone = theirs.run(ours.id()).documents(all(ours.id())).await;
    assert_eq!(gone, Err(EngineError::NoRun(ours.id())));
    assert_eq!(at(&theirs, run.id(), 1).await, shown(&[("a", 1)]));
}

#[tokio::test]
async fn documents_need_read_permission() {
    let (engine, run) = opened().await;
    assert_eq!(run.documents(all(run.id())).await.unwrap().items, []);
    edited(&engine, &run, json!([{"put": "a", "body": 1}])).await;
    let reader = engine.acting(Actor::new("ann", [Permission::Read]));
    let shown = reader.run(run.id()).documents(all(RunId::nil())).await.unwrap();
    assert_eq!(shown.items.iter().map(body).collect::<Vec<_>>(), [json!(1)], "its own documents");
    let viewer = engine.acting(Actor::new("bob", [Permission::View]));
    let denied = viewer.run(run.id()).documents(all(run.id())).await;
    assert!(matches!(denied, Err(EngineError::Denied { .. })), "{denied:?}");
    let graph = viewer.run(run.id()).graph().await.unwrap();
    let open = graph.nodes.iter().find(|node| node.id.as_str() == "open").unwrap();
    assert_eq!(open.activations, Some(1), "{graph:?}");
}

#[tokio::test]
async fn many_documents_of_one_action_are_one_version() {
    let (engine, run) = opened().await;
    let steps: Vec<_> =
        (0..500).map(|number| json!({"put": format!("{number:03}"), "body": number})).collect();
    edited(&engine, &run, json!(steps)).await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Waiting, 1));
    let (mut found, mut cursor) = (0, None);
    loop {
        let query = DocumentQuery { cursor, ..all(run.id()) };
        let page = engine.store().documents(engine.scope(), query).await.unwrap();
        found += page.items.iter().filter(|document| document.visible_from == 1).count();
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, 500);
}

/// An increment of a counter in the key-value store.
fn count(by: i64) -> CellWrite {
    CellWrite {
        key: CellKey { space: Space::Kv, owner: "stock".to_owned(), key: "boxes".to_owned() },
        op: CellOp::Increment { by: by.into() },
        expect: Precondition::Anything,
        initial: Some(Initial { value: json!(0), only_before_first_write: false }),
        by: None,
    }
}

async fn counted(engine: &Engine) -> Value {
    let query = CellQuery {
        space: Space::Kv,
        owner: "stock".to_owned(),
        filter: CellFilter::Prefix(String::new()),
        now: engine.now(),
        include_deleted: false,
        limit: 10,
        cursor: None,
    };
    let cells = engine.store().cells(engine.scope(), query).await.unwrap().items;
    cells.into_iter().next().and_then(|cell| cell.value).unwrap_or_default()
}

/// A workflow that takes one box, with retries.
fn taking() -> Definition {
    let retry = Retry { attempts: 5, ..Retry::default() };
    Spec::new("taking")
        .step("todo")
        .end("done")
        .transition(Transition::new("take", "todo", "done").action("take").retry(retry))
        .build()
        .unwrap()
}

#[tokio::test]
async fn increment_applies_once_despite_retries() {
    let take = |cx: Cx| async move {
        cx.write(count(1))?;
        if cx.attempt() < 4 { Err(ActionError::new("busy", "the shelf is blocked")) } else { Ok(()) }
    };
    let build = |builder: Builder| builder.workflow(taking()).action("take", take);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("taking")).await.unwrap();
    engine.settle().await;
    assert_eq!(counted(&engine).await, Value::Null);
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!((status(&run).await, counted(&engine).await), (Status::Completed, json!(1)));
}

#[tokio::test]
async fn increment_applies_once_despite_crashes() {
    let (store, clock) = ground().await;
    let tried = Arc::new(AtomicUsize::new(0));
    let taking_until = |last: usize| {
        let tried = tried.clone();
        let take = move |cx: Cx| {
            let number = tried.fetch_add(1, Ordering::SeqCst);
            async move {
                cx.write(count(1))?;
                if number < last { std::future::pending().await } else { Ok::<_, ActionError>(()) }
            }
        };
        move |builder: Builder| builder.workflow(taking()).action("take", take)
    };
    let mut run = None;
    for life in 1..=3 {
        let (engine, tasks) = start_killable(store.clone(), &clock, taking_until(3)).await;
        if run.is_none() {
            run = Some(engine.start(Start::new("taking")).await.unwrap().id());
        }
        engine.advance(Duration::from_millis(2 * LEASE_MS)).await;
        assert_eq!((tried.load(Ordering::SeqCst), counted(&engine).await), (life, Value::Null));
        tasks.kill().await;
    }
    let (engine, _tasks) = start_killable(store, &clock, taking_until(3)).await;
    engine.advance(Duration::from_millis(2 * LEASE_MS)).await;
    assert_eq!(status(&engine.run(run.unwrap())).await, Status::Completed);
    assert_eq!((tried.load(Ordering::SeqCst), counted(&engine).await), (4, json!(1)));
}

#[tokio::test]
async fn increment_applies_once_if_the_commit_answer_is_lost() {
    for fate in [Fate::AnswerLost, Fate::Hangs] {
        let (store, clock) = ground().await;
        let watched = Watched::new(store.clone() as Arc<dyn Store>);
        let mut first = true;
        watched.rule(move |commit| {
            let hit = !commit.cells.is_empty() && std::mem::take(&mut first);
            if hit { fate } else { Fate::Arrives }
        });
        let take = |cx: Cx| async move { cx.write(count(1)) };
        let build = |builder: Builder| builder.workflow(taking()).action("take", take);
        let (a, tasks) = start_killable(watched, &clock, build).await;
        let run = a.start(Start::new("taking")).await.unwrap().id();
        a.settle().await;
        tasks.kill().await;
        let (b, _tasks) = start_killable(store, &clock, build).await;
        b.advance(Duration::from_millis(2 * LEASE_MS)).await;
        assert_eq!((status(&b.run(run)).await, counted(&b).await), (Status::Completed, json!(1)), "{fate:?}");
    }
}

#[tokio::test]
async fn loop_increments_once_per_iteration() {
    let again = Transition::new("again", "todo", "todo").when("context.left > 0").action("take").priority(1);
    let definition = Spec::new("taking")
        .step("todo")
        .end("done")
        .transition(again)
        .auto("on", "todo", "done")
        .build()
        .unwrap();
    let take = |cx: Cx| async move {
        cx.write(count(2))?;
        cx.update_state(|state: &mut Value| {
            state["left"] = json!(state["left"].as_i64().unwrap_or_default() - 1);
        })
    };
    let build = |builder: Builder| builder.workflow(definition).action("take", take);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("taking").input(&json!({"left": 5}))).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, counted(&engine).await), (Status::Completed, json!(10)));
}

#[tokio::test]
async fn concurrent_increments_on_two_engines_all_count() {
    let (store, clock) = ground().await;
    let take = |cx: Cx| async move {
        tokio::task::yield_now().await;
        cx.write(count(1))
    };
    let build = |builder: Builder| builder.workflow(taking()).action("take", take);
    let a = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
    let b = TestEngine::start_on(store, clock, build).await.unwrap();
    let started = (0..100).map(|number| if number % 2 == 0 { &a } else { &b }.start(Start::new("taking")));
    assert!(join_all(started).await.iter().all(Result::is_ok));
    settle(&[&a, &b]).await;
    assert_eq!(counted(&a).await, json!(100));
}

#[tokio::test]
async fn conflict_on_an_expected_revision_writes_nothing() {
    let take = |cx: Cx| async move {
        cx.write(count(1))?;
        cx.put_document("a", "note", &1, &[])?;
        let op = CellOp::Set { value: json!(9), value_type: ValueType::Json, ttl: Ttl::Forever };
        let key = CellKey { space: Space::Kv, owner: "other".to_owned(), key: "x".to_owned() };
        cx.write(CellWrite { key, op, expect: Precondition::Live(4), initial: None, by: None })
    };
    let build = |builder: Builder| builder.workflow(taking()).action("take", take);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("taking")).await.unwrap();
    engine.advance(Duration::from_secs(300)).await;
    assert_eq!(error_code(&run).await.as_deref(), Some("conflict"));
    let failures = run.view().await.unwrap().ledger.failures;
    assert_eq!((failures.len(), version(&run).await), (1, 0), "it is not retried automatically");
    assert_eq!((counted(&engine).await, listed(&engine, all(run.id())).await), (Value::Null, vec![]));
    assert_eq!(audit(&engine).await, []);
}

#[tokio::test]
async fn cell_records_its_first_writer_and_outlives_the_run() {
    let take = |cx: Cx| async move {
        assert_eq!(cx.read(&count(1).key).await?, None);
        cx.write(count(3))
    };
    let build = |builder: Builder| builder.workflow(taking()).action("take", take);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("taking")).await.unwrap();
    engine.settle().await;
    let query = CellQuery {
        space: Space::Kv,
        owner: "stock".to_owned(),
        filter: CellFilter::Key("boxes".to_owned()),
        now: engine.now(),
        include_deleted: false,
        limit: 1,
        cursor: None,
    };
    let cells = engine.store().cells(engine.scope(), query).await.unwrap().items;
    assert_eq!(cells[0].created_by, Some(run.id()));
    engine.advance(Duration::from_secs(40 * 86_400)).await;
    assert!(run.view().await.is_err(), "the run is gone");
    assert_eq!(counted(&engine).await, json!(3));
}
