//! A run advances by itself with one checkpoint per transition, and each transition is applied completely or not at
//! all.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::core::spec::{Quorum, Transition};
use stepwell::core::{PlaceStatus, Snapshot, Spec, Timestamp};
use stepwell::store::{
    Document, DocumentQuery, HistoryQuery, Precondition, Record, RecordQuery, Status, Store,
};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{ActionError, Command, Cx, Engine, ManualClock, Operator, Signal, Signalled, Start};

use crate::kit::{
    self, audit, context, error_code, eventually, ground, history, history_actions, other_tenant, places,
    runs_of, soon, status, store, version,
};
use crate::world::{Gate, Given, Script, cell, cell_key, increment, job, pair, put, row, saved, states};

fn three_steps() -> Spec {
    let step = |id, from, to, field| Transition::new(id, from, to).action_with(saved("note", field));
    Spec::new("way")
        .step("a")
        .step("b")
        .step("c")
        .wait("d", "GO")
        .end("e")
        .signal("GO")
        .transition(step("ab", "a", "b", "first"))
        .auto("bc", "b", "c")
        .transition(step("cd", "c", "d", "second"))
        .auto("de", "d", "e")
}

async fn documents(engine: &Engine, run: &stepwell::Run, at: Option<u64>) -> Vec<Document> {
    let query =
        DocumentQuery { run: run.id(), at, key: None, kind: None, tag: None, limit: 100, cursor: None };
    engine.store().documents(engine.scope(), query).await.unwrap().items
}

#[tokio::test]
async fn run_advances_by_itself_until_it_waits_or_ends() {
    let definition = three_steps().build().unwrap();
    let script = Script::new([Ok(json!("one")), Ok(json!("two"))]);
    let engine =
        kit::start(|engine| engine.workflow(definition).action("note", script.action())).await.unwrap();
    let run = engine.start(Start::new("way")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Waiting, vec!["d".into()]));
    assert_eq!(context(&run).await, json!({"first": "one", "second": "two"}));
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "__auto:ab", "__auto:bc", "__auto:cd"]);
    assert_eq!(run.signal(Signal::new("GO")).await.unwrap(), Signalled::Consumed);
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    let history_actions = history_actions(&engine, run.id()).await;
    assert_eq!(history_actions[4..], ["__resolve_wait:d", "__auto:de"]);
    let versions: Vec<_> = history(&engine, run.id()).await.iter().map(|(entry, _)| entry.version).collect();
    assert_eq!(versions, [0, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn action_starts_after_everything_before_it_is_committed() {
    let (store, clock) = ground().await;
    let seen: Arc<Mutex<Vec<Vec<u64>>>> = Arc::default();
    let look = {
        let (store, seen) = (store.clone(), seen.clone());
        move |cx: Cx| {
            let (store, seen) = (store.clone(), seen.clone());
            async move {
                let query = HistoryQuery { run: cx.run(), from: 0, with_state: false, limit: 100 };
                let page = store.history(stepwell::store::TenantScope::single(), query).await?;
                seen.lock().unwrap().push(page.items.iter().map(|row| row.version).collect());
                Ok::<_, ActionError>(())
            }
        }
    };
    let definition = three_steps().build().unwrap();
    let engine =
        TestEngine::start_on(store, clock, |engine| engine.workflow(definition).action("note", look))
            .await
            .unwrap();
    let run = engine.start(Start::new("way")).await.unwrap();
    eventually(async || seen.lock().unwrap().len() == 2).await;
    engine.settle().await;
    assert_eq!(*seen.lock().unwrap(), [vec![0], vec![0, 1, 2]]);
    let commits: Vec<_> = history(&engine, run.id()).await.into_iter().map(|(_, commit)| commit).collect();
    assert_eq!(commits.len(), 4, "one checkpoint for each transition");
    assert_eq!(commits[1], commits[2], "a transition without an action joins the previous commit");
    assert!(commits[0] != commits[1] && commits[2] != commits[3]);
}

#[tokio::test]
async fn transition_with_an_action_is_one_version() {
    let gate = Gate::new();
    let act = gate.and(|cx| {
        cx.set_state(&json!({"staged": true}))?;
        Ok(Value::Null)
    });
    let engine = kit::start(|engine| engine.workflow(job(|work| work)).action("work", act)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    assert_eq!((gate.inside(), version(&run).await), (1, 0));
    assert_eq!((status(&run).await, context(&run).await), (Status::Running, json!({})));
    assert_eq!(history_actions(&engine, run.id()).await, ["__start"]);
    gate.open(1);
    engine.settle().await;
    assert_eq!((version(&run).await, context(&run).await), (1, json!({"staged": true})));
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "__auto:work"]);
}

#[tokio::test]
async fn due_timer_stays_until_its_action_finishes() {
    let gate = Gate::new();
    let definition = Spec::new("alarm")
        .step("asleep")
        .end("awake")
        .transition(Transition::new("ring", "asleep", "awake").after_ms(10_000).action("ring"))
        .build()
        .unwrap();
    let engine =
        kit::start(|engine| engine.workflow(definition).action("ring", gate.action())).await.unwrap();
    let run = engine.start(Start::new("alarm")).await.unwrap();
    engine.advance(Duration::from_secs(9)).await;
    assert_eq!(gate.began(), 0);
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!(gate.inside(), 1);
    let asleep = run.view().await.unwrap().snapshot.activations()[0].clone();
    assert_eq!(asleep.due(), Some(BEGINS.plus_ms(10_000)));
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!((gate.began(), gate.dropped()), (1, 0), "it is still the same attempt");
    gate.open(1);
    engine.settle().await;
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "__timer:asleep"]);
}

#[tokio::test]
async fn another_process_continues_from_snapshot_and_inbox() {
    let (store, clock) = ground().await;
    let only_calls = TestEngine::start_on(store.clone(), clock.clone(), |engine| {
        engine.workflow(three_steps().build().unwrap()).with(|options| options.max_runs = 0)
    });
    let only_calls = only_calls.await.unwrap();
    let run = only_calls.start(Start::new("way")).await.unwrap();
    assert_eq!(run.signal(Signal::new("GO")).await.unwrap(), Signalled::Buffered);
    only_calls.settle().await;
    assert_eq!(version(&run).await, 0);
    let script = Script::good();
    let worker = TestEngine::start_on(store, clock, |engine| {
        engine.workflow(three_steps().build().unwrap()).action("note", script.action())
    });
    let worker = worker.await.unwrap();
    worker.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(history_actions(&worker, run.id()).await.len(), 6);
}

/// Stages one change of every kind.
fn stage_all(cx: &Cx) -> Result<(), ActionError> {
    cx.set_state(&json!({"list": [1, 2], "staged": true}))?;
    cx.session::<String>("slot").set(&"kept".to_owned())?;
    cx.write(put("cell", json!("written")))?;
    cx.put_document("report", "report", &json!({"text": "all is well"}), &["new"])?;
    cx.start(Start::new("other"))?;
    let to = cx.snapshot().context()["to"].as_str().and_then(|to| to.parse().ok());
    cx.signal(to.unwrap(), "PING", &json!({"from": cx.run()}))
}

fn other() -> stepwell::core::Definition {
    Spec::new("other")
        .step("open")
        .end("closed")
        .signal("PING")
        .on_signal("ping", "open", "PING", "closed")
        .build()
        .unwrap()
}

/// The effects of a job that stages every kind of change.
#[derive(Debug, PartialEq)]
struct Traces {
    cell: Option<Value>,
    documents: usize,
    others: usize,
    pinged: u64,
    session: usize,
}

async fn traces(engine: &Engine, run: &stepwell::Run, pinged: &stepwell::Run) -> Traces {
    let session = run.view().await.unwrap().snapshot.session().len();
    Traces {
        cell: cell(engine, "cell").await,
        documents: documents(engine, run, None).await.len(),
        others: runs_of(engine, "other").await.len(),
        pinged: version(pinged).await,
        session,
    }
}

#[tokio::test]
async fn transition_is_applied_completely_or_not_at_all() {
    let gate = Gate::new();
    let act = gate.and(|_| Ok(Value::Null));
    let act = move |cx: Cx| {
        let passes = act(cx.clone());
        async move {
            stage_all(&cx)?;
            passes.await
        }
    };
    let build =
        |engine: stepwell::Builder| engine.workflow(job(|work| work)).workflow(other()).action("work", act);
    let engine = kit::start(build).await.unwrap();
    let pinged = engine.start(Start::new("other")).await.unwrap();
    let run = engine.start(Start::new("job").input(&json!({"to": pinged.id()}))).await.unwrap();
    engine.settle().await;
    assert_eq!(gate.inside(), 1);
    let nothing = Traces { cell: None, documents: 0, others: 1, pinged: 0, session: 0 };
    assert_eq!(traces(&engine, &run, &pinged).await, nothing, "staged changes are not written yet");
    gate.open(1);
    engine.settle().await;
    let all = Traces { cell: Some(json!("written")), documents: 1, others: 2, pinged: 1, session: 1 };
    assert_eq!(traces(&engine, &run, &pinged).await, all);
    assert_eq!(context(&run).await, json!({"list": [1, 2], "staged": true}));
    assert_eq!(documents(&engine, &run, None).await[0].visible_from, 1);
}

/// Asserts that a job that stages every kind of change and then fails leaves only the error.
async fn leaves_no_trace(code: &str, end: impl Fn(&Cx) -> Given + Send + Sync + 'static) {
    let end = Arc::new(end);
    let act = move |cx: Cx| {
        let end = end.clone();
        async move {
            stage_all(&cx)?;
            end(&cx)
        }
    };
    let schema = json!({"type": "object", "properties": {"count": {"type": "integer"}}});
    let definition = crate::world::job_spec(|work| work).context_schema(schema).build().unwrap();
    let build = |engine: stepwell::Builder| engine.workflow(definition).workflow(other()).action("work", act);
    let engine = kit::start(build).await.unwrap();
    let pinged = engine.start(Start::new("other")).await.unwrap();
    let run = engine.start(Start::new("job").input(&json!({"to": pinged.id()}))).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some(code)));
    let nothing = Traces { cell: None, documents: 0, others: 1, pinged: 0, session: 0 };
    assert_eq!(traces(&engine, &run, &pinged).await, nothing);
    assert_eq!((version(&run).await, places(&run).await), (0, vec!["todo".into()]));
    assert_eq!(context(&run).await, json!({"to": pinged.id()}));
    assert_eq!(
        history_actions(&engine, run.id()).await,
        ["__start"],
        "a failed transition is not in the history"
    );
    assert_eq!(row(&engine, pinged.id()).await.inbox, []);
    assert_eq!(audit(&engine).await, []);
}

#[tokio::test]
async fn failed_action_leaves_only_its_error() {
    leaves_no_trace("broken", |_| Err(ActionError::new("broken", "it broke"))).await;
}

#[tokio::test]
async fn invalid_state_discards_everything_staged() {
    leaves_no_trace("invalidResult", |cx| {
        cx.set_state(&json!({"count": "many"}))?;
        Ok(Value::Null)
    })
    .await;
}

#[tokio::test]
async fn cell_conflict_discards_everything_staged() {
    leaves_no_trace("conflict", |cx| {
        let mut write = put("another", json!(1));
        write.expect = Precondition::Exactly(7);
        cx.write(write)?;
        Ok(Value::Null)
    })
    .await;
}

#[tokio::test]
async fn invalid_child_discards_everything_staged() {
    leaves_no_trace("cannotStart", |cx| {
        cx.start_child(Start::new("unknown"))?;
        Ok(Value::Null)
    })
    .await;
}

#[tokio::test]
async fn refused_document_discards_everything_staged() {
    leaves_no_trace("invalid", |cx| {
        cx.put_document("", "report", &json!({}), &[])?;
        Ok(Value::Null)
    })
    .await;
}

#[tokio::test]
async fn state_changes_do_not_leak_into_the_next_attempt() {
    let definition = job(|work| work.retry(Retry { attempts: 1, ..Default::default() }));
    let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
    let act = {
        let seen = seen.clone();
        move |cx: Cx| {
            let seen = seen.clone();
            async move {
                seen.lock().unwrap().push(cx.state::<Value>()?);
                cx.update_state(|state: &mut Value| state["deep"]["list"][0] = json!("changed"))?;
                assert_eq!(cx.state::<Value>()?["deep"]["list"], json!(["changed"]));
                match cx.attempt() {
                    1 => Err(ActionError::new("busy", "once more")),
                    _ => Ok(()),
                }
            }
        }
    };
    let engine = kit::start(|engine| engine.workflow(definition).action("work", act)).await.unwrap();
    let input = json!({"deep": {"list": ["as it was"]}});
    let run = engine.start(Start::new("job").input(&input)).await.unwrap();
    engine.settle().await;
    assert_eq!(context(&run).await, input);
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!(*seen.lock().unwrap(), [input.clone(), input]);
    assert_eq!(context(&run).await, json!({"deep": {"list": ["changed"]}}));
}

#[tokio::test]
async fn writes_belong_to_the_runs_tenant() {
    let act = |cx: Cx| async move {
        stage_all(&cx)?;
        Ok::<_, ActionError>(())
    };
    let build =
        |engine: stepwell::Builder| engine.workflow(job(|work| work)).workflow(other()).action("work", act);
    let engine = kit::start(build).await.unwrap();
    let theirs = engine.for_tenant(other_tenant());
    // The action of the second tenant signals the id of a run of the first: that run must not receive it.
    let pinged = engine.start(Start::new("other")).await.unwrap();
    let run = theirs.start(Start::new("job").input(&json!({"to": pinged.id()}))).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!((version(&pinged).await, row(&engine, pinged.id()).await.inbox.len()), (0, 0));
    assert_eq!((cell(&engine, "cell").await, cell(&theirs, "cell").await), (None, Some(json!("written"))));
    assert_eq!((runs_of(&engine, "other").await.len(), runs_of(&theirs, "other").await.len()), (1, 1));
    assert_eq!(runs_of(&engine, "job").await.len(), 0);
    assert_eq!(documents(&theirs, &run, None).await.len(), 1);
    assert_eq!(documents(&engine, &run, None).await.len(), 0);
    let query = || RecordQuery::Definitions { workflow: Some("job".into()), limit: 10, cursor: None };
    let stored =
        async |engine: &Engine| engine.store().records(engine.scope(), query()).await.unwrap().items.len();
    assert_eq!((stored(&engine).await, stored(&theirs).await), (0, 1), "definitions belong to a tenant");
}

#[tokio::test]
async fn changes_of_branches_to_different_fields_are_merged() {
    let (left, right) = (Gate::new(), Gate::new());
    let sets = |gate: &Gate, field: &'static str| {
        gate.and(move |cx| {
            cx.update_state(|state: &mut Value| state["by"][field] = json!("done"))?;
            Ok(Value::Null)
        })
    };
    let definition = Spec::new("fields")
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .join("both", Quorum::All, ["left", "right"])
        .end("done")
        .transition(Transition::new("l", "left", "both").action("left"))
        .transition(Transition::new("r", "right", "both").action("right"))
        .auto("finish", "both", "done")
        .build()
        .unwrap();
    let engine = kit::start(|engine| {
        engine.workflow(definition).action("left", sets(&left, "left")).action("right", sets(&right, "right"))
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("fields").input(&json!({"by": {}, "kept": 1}))).await.unwrap();
    engine.settle().await;
    assert_eq!((left.inside(), right.inside()), (1, 1), "branches run at the same time");
    right.open(1);
    engine.settle().await;
    let patch = Command::Patch { fields: json!({"patched": true}) };
    engine.operate(run.id(), patch, &Operator::default()).await.unwrap();
    left.open(1);
    engine.settle().await;
    let all = json!({"by": {"left": "done", "right": "done"}, "kept": 1, "patched": true});
    assert_eq!((status(&run).await, context(&run).await), (Status::Completed, all));
}

#[tokio::test]
async fn checkpoint_fixes_places_state_version_and_documents() {
    let definition = Spec::new("report")
        .step("a")
        .step("b")
        .step("c")
        .end("d")
        .transition(Transition::new("ab", "a", "b").action("write"))
        .transition(Transition::new("bc", "b", "c").action("write"))
        .transition(Transition::new("cd", "c", "d").action("remove"))
        .build()
        .unwrap();
    let write = |cx: Cx| async move {
        let round = cx.snapshot().version() + 1;
        cx.set_state(&json!({"round": round}))?;
        cx.put_document("report", "report", &json!({"round": round}), &[])
    };
    let remove = |cx: Cx| async move { cx.remove_document("report") };
    let engine =
        kit::start(|engine| engine.workflow(definition).action("write", write).action("remove", remove));
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("report")).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), Value::Null);
    let states = states(&engine, run.id()).await;
    assert_eq!(states.iter().map(Snapshot::version).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for (state, place) in states.iter().zip(["a", "b", "c"]) {
        assert_eq!(state.status_of(place), PlaceStatus::Active);
    }
    let rounds: Vec<_> = states.iter().map(|state| state.context()["round"].clone()).collect();
    assert_eq!(rounds, [json!(null), json!(1), json!(2), json!(2)]);
    let mut shown = Vec::new();
    for version in 0..4 {
        let found = documents(&engine, &run, Some(version)).await;
        shown.push(found.iter().map(|document| document.body.clone()).collect::<Vec<_>>());
    }
    let body = |round: u64| vec![bytes::Bytes::from(json!({"round": round}).to_string())];
    assert_eq!(shown, [vec![], body(1), body(2), vec![]]);
    assert_eq!(documents(&engine, &run, None).await, []);
}

#[tokio::test]
async fn cell_operation_applies_once_despite_retries() {
    let definition = job(|work| work.retry(Retry { attempts: 3, ..Default::default() }));
    let act = |cx: Cx| async move {
        cx.write(increment("count"))?;
        assert_eq!(cx.read(&cell_key("count")).await?, None, "staged changes are not written yet");
        if cx.attempt() < 3 { Err(ActionError::new("busy", "again")) } else { Ok(()) }
    };
    let engine = kit::start(|engine| engine.workflow(definition).action("work", act)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_secs(10)).await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(cell(&engine, "count").await, Some(json!(1)));
}

#[tokio::test]
async fn action_can_signal_its_own_run() {
    let definition = Spec::new("self")
        .step("a")
        .wait("b", "GO")
        .end("c")
        .signal("GO")
        .transition(Transition::new("ab", "a", "b").action("ask"))
        .auto("bc", "b", "c")
        .build()
        .unwrap();
    let ask = |cx: Cx| async move { cx.signal(cx.run(), "GO", &"me") };
    let engine = kit::start(|engine| engine.workflow(definition).action("ask", ask)).await.unwrap();
    let run = engine.start(Start::new("self")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    let entry = history(&engine, run.id()).await[2].0.clone();
    assert_eq!((entry.action.as_str(), entry.payload), ("__resolve_wait:b", Some(json!("me"))));
}

#[tokio::test]
async fn stored_times_come_from_the_engines_clock() {
    let begins: Timestamp = "2040-02-29T12:00:00Z".parse().unwrap();
    let clock = ManualClock::new(begins);
    let store = store().await;
    let definition = pair().build().unwrap();
    let act = |cx: Cx| async move {
        cx.write(put("cell", json!(1)))?;
        cx.put_document("report", "report", &json!({}), &[])
    };
    let engine = TestEngine::start_on(store, clock, |engine| engine.workflow(definition).action("work", act))
        .await
        .unwrap();
    let run = engine.start(Start::new("pair")).await.unwrap();
    engine.advance(Duration::from_secs(90)).await;
    let later = begins.plus_ms(90_000);
    assert_eq!(engine.now(), later);
    run.signal(Signal::new("NEXT")).await.unwrap();
    let again = engine.start(Start::new("pair")).await.unwrap();
    engine.cancel(again.id()).await.unwrap();
    engine.settle().await;
    let times: Vec<_> = history(&engine, run.id()).await.iter().map(|(entry, _)| entry.at).collect();
    assert_eq!(times, [begins, begins, later, later]);
    let snapshot = run.view().await.unwrap().snapshot;
    assert_eq!((snapshot.created_at(), snapshot.updated_at()), (begins, later));
    let loaded = row(&engine, run.id()).await;
    assert_eq!((loaded.created_at, loaded.updated_at), (begins, later));
    assert_eq!(documents(&engine, &run, None).await[0].at, begins);
    let query = RecordQuery::Audit { limit: 10, cursor: None };
    let page = engine.store().records(engine.scope(), query).await.unwrap();
    let written: Vec<_> = page
        .items
        .iter()
        .map(|record| match record {
            Record::Audit { at, row, .. } => (*at, &row.operation[..]),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(written.first(), Some(&(begins, "store.set")));
    assert_eq!(written.last(), Some(&(later, "run.cancel")));
    // The second run may have reached its own write before it was cancelled.
    assert!(written[1..].iter().all(|(at, _)| *at == later) && written.len() <= 3, "{written:?}");
}
