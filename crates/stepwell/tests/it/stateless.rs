//! Stateless execution: the same definition without a database, to its end or to the first wait or timer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::core::spec::{ActionSpec, ChildRule, Completion, Place, Quorum, Transition, Wait};
use stepwell::core::{Definition, Input, Instance, Name, RunId, Snapshot, Spec};
use stepwell::engine::Builder;
use stepwell::store::{CellKey, CellOp, CellWrite, Precondition, RunQuery, Space, Status, Ttl, ValueType};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Start};

use crate::kit::{self, Watched, ground, runs, soon};

/// A letter is written, then reviewed by a person if its data asks for that.
fn letter() -> Definition {
    let write = ActionSpec {
        name: "write".into(),
        input: json!({"to": {"$expr": "context.to"}}),
        save_as: Some("text".to_owned()),
        version: None,
    };
    Spec::new("letter")
        .step("blank")
        .step("written")
        .wait("on_desk", "READ")
        .end_with("sent", json!({"text": {"$expr": "context.text"}}))
        .signal("READ")
        .transition(Transition::new("write", "blank", "written").action_with(write))
        .transition(Transition::new("lay", "written", "on_desk").when("context.careful"))
        .transition(Transition::new("send", "written", "sent").when("$not(context.careful)"))
        .auto("post", "on_desk", "sent")
        .build()
        .unwrap()
}

async fn write(cx: Cx, input: Value) -> Result<String, ActionError> {
    cx.put_document("draft", "letter", &input, &["new"])?;
    cx.session::<String>("pen").set(&"blue".to_owned())?;
    Ok(format!("Dear {}", input["to"].as_str().unwrap_or_default()))
}

fn office(builder: Builder) -> Builder {
    builder.workflow(letter()).action("write", write)
}

fn to_ada(careful: bool) -> Start {
    Start::new("letter").input(&json!({"to": "Ada", "careful": careful}))
}

#[tokio::test]
async fn stateless_run_returns_result_and_documents() {
    let engine = kit::start(office).await.unwrap();
    let pass = soon(engine.run_stateless(to_ada(false))).await.unwrap();
    assert_eq!(
        (pass.status, pass.result, pass.error),
        (Status::Completed, Some(json!({"text": "Dear Ada"})), None)
    );
    assert!(pass.snapshot.is_terminal());
    assert_eq!(pass.snapshot.session()["pen"], json!("blue"));
    let [document] = &pass.documents[..] else { panic!("{:?}", pass.documents) };
    assert_eq!((document.key.as_str(), document.visible_from), ("draft", 1));
    let words: Vec<_> = pass.history.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(words, ["__start", "__auto:write", "__auto:send"]);
}

#[tokio::test]
async fn stateless_run_stores_nothing() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let engine = TestEngine::start_on(watched.clone(), clock, office).await.unwrap();
    for careful in [true, false] {
        soon(engine.run_stateless(to_ada(careful).id(RunId::nil()))).await.unwrap();
    }
    engine.settle().await;
    assert_eq!((watched.commits(), watched.loads()), (vec![], 0));
    assert_eq!(runs(&engine, RunQuery::default()).await, []);
}

#[tokio::test]
async fn stateless_run_returns_its_snapshot_at_the_first_wait() {
    let engine = kit::start(office).await.unwrap();
    let pass = soon(engine.run_stateless(to_ada(true).id(RunId::nil()))).await.unwrap();
    assert_eq!((pass.status, pass.result, pass.error), (Status::Waiting, None, None));
    assert_eq!(pass.snapshot.current_places(), [Name::from("on_desk")]);
    assert_eq!((pass.snapshot.instance_id(), pass.snapshot.version()), (RunId::nil(), 2));
    // The caller stores the snapshot and continues from it.
    let saved = pass.snapshot.encode(&stepwell::core::Limits::default()).unwrap();
    let mut kept = Instance::restore(&letter(), &saved).unwrap();
    kept.signal("READ", Value::Null, engine.now()).unwrap();
    kept.dispatch(&Input::advance(), engine.now()).unwrap();
    assert!(kept.snapshot().is_terminal());
    assert!(Snapshot::restore(&letter(), &saved).is_ok());
}

#[tokio::test]
async fn stateless_run_ends_at_the_first_timer() {
    let nap = Spec::new("nap")
        .step("awake")
        .step("asleep")
        .end("rested")
        .auto("lie_down", "awake", "asleep")
        .transition(Transition::new("wake", "asleep", "rested").after_ms(60_000))
        .build()
        .unwrap();
    let engine = kit::start(|builder| builder.workflow(nap)).await.unwrap();
    let pass = soon(engine.run_stateless(Start::new("nap"))).await.unwrap();
    assert_eq!((pass.status, pass.snapshot.version()), (Status::Waiting, 1));
    assert_eq!(pass.snapshot.next_due(engine.now()), Some(engine.now().plus_ms(60_000)));
}

#[tokio::test]
async fn stateless_run_ends_when_all_branches_wait() {
    let pair = Spec::new("pair")
        .completion(Completion::AllBranches)
        .fork("open", ["left", "right"])
        .step("left")
        .wait("right", "GO")
        .step("left_too")
        .join("both", Quorum::All, ["left_too", "right"])
        .end("done")
        .signal("GO")
        .transition(Transition::new("a", "left", "left_too").action("write"))
        .auto("b", "left_too", "both")
        .auto("c", "right", "both")
        .auto("d", "both", "done")
        .build()
        .unwrap();
    let engine = kit::start(|builder| office(builder).workflow(pair)).await.unwrap();
    let pass = soon(engine.run_stateless(Start::new("pair"))).await.unwrap();
    assert_eq!(pass.status, Status::Waiting);
    assert_eq!(pass.snapshot.current_places(), ["both", "right"].map(Name::from));
}

#[tokio::test]
async fn stateless_run_refuses_children_and_the_data_store() {
    let tried = Arc::new(AtomicUsize::new(0));
    let count = tried.clone();
    let noted = move |_: Cx| {
        count.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok::<_, ActionError>(()))
    };
    let family = Spec::new("family")
        .step("todo")
        .place("below", Place::Wait(Wait { children: Some(ChildRule::All), ..Wait::default() }))
        .end("done")
        .transition(Transition::new("begin", "todo", "below").action("noted"))
        .auto("on", "below", "done");
    let stored = Spec::new("stored")
        .step("todo")
        .step("then")
        .end("done")
        .transition(Transition::new("first", "todo", "then").action("noted"))
        .transition(Transition::new("keep", "then", "done").action("store.set"));
    let build = |builder: Builder| {
        let builder = builder.workflow(family.build().unwrap()).workflow(stored.build().unwrap());
        builder.action("noted", noted.clone()).action("store.set", noted)
    };
    let engine = kit::start(build).await.unwrap();
    for (name, says) in
        [("family", "children at place `below`"), ("stored", "the data store at transition `keep`")]
    {
        let error = soon(engine.run_stateless(Start::new(name))).await.unwrap_err().to_string();
        assert!(error.contains(says) && error.contains(name), "{error}");
    }
    assert_eq!(tried.load(Ordering::SeqCst), 0);
    assert!(soon(engine.run_stateless(Start::new("nothing"))).await.is_err());
}

/// The definition does not show that the action needs a store, so the run fails when the action stages such a change.
#[tokio::test]
async fn stateless_action_that_needs_a_store_fails() {
    let spec = |name: &str| {
        let begin = Transition::new("begin", "todo", "done").action("reach");
        Spec::new(name).step("todo").end("done").transition(begin).build().unwrap()
    };
    let reach = |cx: Cx| async move {
        match cx.workflow().as_str() {
            "child" => cx.start_child(Start::new("letter")),
            "run" => cx.start(Start::new("letter")).map(drop),
            "signal" => cx.signal(RunId::nil(), "READ", &Value::Null),
            _ => cx.write(CellWrite {
                key: CellKey { space: Space::Kv, owner: "stock".to_owned(), key: "x".to_owned() },
                op: CellOp::Set { value: json!(1), value_type: ValueType::Json, ttl: Ttl::Forever },
                expect: Precondition::Anything,
                initial: None,
                by: None,
            }),
        }
    };
    let names = ["child", "run", "signal", "kv"];
    let build = |builder: Builder| {
        names.iter().fold(office(builder), |b, name| b.workflow(spec(name))).action("reach", reach)
    };
    let engine = kit::start(build).await.unwrap();
    for name in names {
        let pass = soon(engine.run_stateless(Start::new(name))).await.unwrap();
        assert_eq!(pass.status, Status::Failed, "{name}");
    }
}

fn working(retry: Retry) -> Definition {
    let work = Transition::new("work", "todo", "done").action("work").retry(retry);
    Spec::new("job").step("todo").end("done").transition(work).build().unwrap()
}

#[tokio::test]
async fn failed_stateless_run_reports_error_and_place() {
    let fails = |_: Cx| async { Err::<(), _>(ActionError::new("broken", "it is broken")) };
    let build = |builder: Builder| builder.workflow(working(Retry::default())).action("work", fails);
    let engine = kit::start(build).await.unwrap();
    let pass = soon(engine.run_stateless(Start::new("job"))).await.unwrap();
    assert_eq!((pass.status, pass.error.unwrap().code.as_str()), (Status::Failed, "broken"));
    assert_eq!((pass.snapshot.version(), pass.snapshot.current_places()), (0, vec!["todo".into()]));
}

#[tokio::test]
async fn stateless_run_follows_the_retry_policy() {
    let work = |cx: Cx| async move {
        if cx.attempt() < 3 { Err(ActionError::new("busy", "it is busy")) } else { Ok(cx.attempt()) }
    };
    let retry = Retry { attempts: 3, ..Retry::default() };
    let build = |builder: Builder| builder.workflow(working(retry)).action("work", work);
    let engine = Arc::new(kit::start(build).await.unwrap());
    let pass = tokio::spawn({
        let engine = engine.clone();
        async move { engine.run_stateless(Start::new("job")).await }
    });
    engine.advance(Duration::from_secs(10)).await;
    assert_eq!(soon(pass).await.unwrap().unwrap().status, Status::Completed);
}

#[tokio::test]
async fn stateless_run_refuses_invalid_input() {
    let schema = json!({"type": "object", "required": ["name"]});
    let strict = Spec::new("strict").context_schema(schema).step("a").end("b").auto("ab", "a", "b");
    let engine = kit::start(|b| b.workflow(strict.build().unwrap())).await.unwrap();
    let error = soon(engine.run_stateless(Start::new("strict"))).await.unwrap_err().to_string();
    assert!(error.contains("name"), "{error}");
}

#[tokio::test]
async fn concurrent_stateless_runs_are_independent() {
    let engine = kit::start(office).await.unwrap();
    let all = (0..20).map(|_| engine.run_stateless(to_ada(false).id(RunId::nil()).key("k")));
    let all = soon(futures_util::future::join_all(all)).await;
    assert!(all.into_iter().all(|pass| pass.unwrap().status == Status::Completed));
}

#[tokio::test]
async fn stateless_run_counts_toward_max_runs() {
    let (calls, is_free) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
    let (called, freed) = (calls.clone(), is_free.clone());
    let wait = move |_: Cx, _: Value| {
        let (called, freed) = (called.clone(), freed.clone());
        async move {
            called.fetch_add(1, Ordering::SeqCst);
            freed.notified().await;
            Ok::<_, ActionError>(json!("Dear Ada"))
        }
    };
    let build = |builder: Builder| {
        builder.workflow(letter()).action("write", wait).with(|options| options.max_runs = 1)
    };
    let engine = kit::start(build).await.unwrap();
    let first = engine.run_stateless(to_ada(false));
    let second = async {
        while calls.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let refused = engine.run_stateless(to_ada(false)).await.map(|done| done.status);
        is_free.notify_one();
        refused
    };
    let (first, second) = soon(async { tokio::join!(first, second) }).await;
    assert_eq!(first.unwrap().status, Status::Completed);
    assert!(second.unwrap_err().to_string().contains("`max_runs`"));
}
