//! A step changes the strategy of its flow from the next pause on.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::shadow::Shadow;
use stepwell::core::{RunId, Spec};
use stepwell::engine::Builder;
use stepwell::flow::{Answer, FlowError, Flows, Resume};
use stepwell::store::{HandleKind, Record, RecordQuery, RunQuery, Status};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Engine, Start};

use super::{add, begin, begun, flows, go, handles, next, nothing, sum, walk};
use crate::kit::{self, history, runs, soon};
use crate::world::states;

/// An action that selects the strategy its input names, if any, and counts its calls in the data.
async fn elsewhere(cx: Cx) -> Result<(), ActionError> {
    if let Some(name) = cx.payload()["to"].as_str() {
        cx.use_strategy(name)?;
    }
    cx.update_state(|state: &mut Value| state["steps"] = json!(state["steps"].as_u64().unwrap_or(0) + 1))
}

fn mover() -> Spec {
    walk("mover", &["elsewhere"; 4]).shadow("steps", Shadow::number("steps"))
}

fn office(builder: Builder) -> Builder {
    let builder = builder.workflow(mover().build().unwrap()).action("elsewhere", elsewhere);
    builder.action("nothing", nothing).action("add", add)
}

fn to(token: &str, strategy: &str) -> Resume {
    Resume::new(token).input(&json!({"to": strategy}))
}

async fn moved(flows: &Flows, token: &str, strategy: &str) -> Answer {
    let answer = soon(flows.resume(to(token, strategy))).await.unwrap();
    let token = answer.token.as_ref().unwrap();
    assert!(token.starts_with(&format!("{strategy}.")), "{token}");
    assert_eq!(answer.strategy.as_deref(), Some(strategy));
    answer
}

async fn columns(engine: &Engine, flow: RunId) -> usize {
    engine.store().records(engine.scope(), RecordQuery::Shadows(flow)).await.unwrap().items.len()
}

/// Asserts that the old token is invalid under the same strategy, another one and none.
async fn is_gone(flows: &Flows, token: &str) {
    for resume in [Resume::new(token), to(token, "sealed"), to(token, "handle"), to(token, "durable")] {
        let answer = soon(flows.resume(resume.clone())).await;
        assert_eq!(answer, Err(FlowError::Gone), "{resume:?}");
    }
    assert_eq!(flows.show(token).await, Err(FlowError::Gone));
}

/// Resumes to the end, and checks at each step and after the end that the old token is invalid.
async fn to_the_end(flows: &Flows, old: &str, mut token: String) -> Answer {
    loop {
        is_gone(flows, old).await;
        let answer = go(flows, &token).await.unwrap();
        match answer.token.clone() {
            Some(next) => token = next,
            None => {
                is_gone(flows, old).await;
                return answer;
            }
        }
    }
}

/// E4: from a sealed token to a handle: the row is created once under the flow's own id.
#[tokio::test]
async fn a_step_moves_a_flow_from_a_sealed_token_to_a_handle() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "sealed");
    let begun = begin(&flows, "mover").await;
    let old = begun.token.unwrap();
    engine.advance(Duration::from_secs(5)).await;
    let answer = moved(&flows, &old, "handle").await;
    assert_eq!(answer.flow, begun.flow);
    let [row] = &handles(&flows).await[..] else { panic!("there is one handle") };
    assert_eq!((row.run, row.kind), (begun.flow, HandleKind::Flow));
    assert_eq!((row.created_at, row.updated_at), (kit::after_s(0), kit::after_s(5)));
    assert_eq!(columns(&engine, begun.flow).await, 1);
    let ended = to_the_end(&flows, &old, answer.token.unwrap()).await;
    assert_eq!(ended.result, Some(json!({"steps": 4})));
    assert_eq!((handles(&flows).await, columns(&engine, begun.flow).await), (vec![], 0));
}

/// E4: from a handle to a sealed token: the handle is consumed, and its columns are removed.
#[tokio::test]
async fn a_step_moves_a_flow_from_a_handle_to_a_sealed_token() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let begun = begin(&flows, "mover").await;
    let second = go(&flows, &begun.token.unwrap()).await.unwrap();
    assert_eq!(columns(&engine, begun.flow).await, 1);
    let old = second.token.unwrap();
    let answer = moved(&flows, &old, "sealed").await;
    assert_eq!(answer.flow, begun.flow);
    assert_eq!((handles(&flows).await, columns(&engine, begun.flow).await), (vec![], 0));
    let ended = to_the_end(&flows, &old, answer.token.unwrap()).await;
    assert_eq!((ended.result, handles(&flows).await), (Some(json!({"steps": 4})), vec![]));
}

/// E4: to a durable run: same id, same version, its history starts there, and its columns are kept.
#[tokio::test]
async fn a_flow_becomes_a_durable_run_with_its_id_and_version() {
    for from in ["sealed", "handle"] {
        let engine = kit::start(office).await.unwrap();
        let flows = flows(&engine, from);
        let begun = begin(&flows, "mover").await;
        let old = next(&flows, &begun.token.unwrap()).await;
        let answer = moved(&flows, &old, "durable").await;
        assert_eq!(answer.flow, begun.flow);
        let all = runs(&engine, RunQuery::default()).await;
        assert_eq!(
            all.iter().map(|run| (run.run, run.status)).collect::<Vec<_>>(),
            [(begun.flow, Status::Waiting)]
        );
        let view = engine.run(begun.flow).view().await.unwrap();
        let version = view.snapshot.version();
        assert!(version >= 2, "{version}");
        let kept = history(&engine, begun.flow).await;
        assert_eq!(kept.iter().map(|(entry, _)| entry.version).collect::<Vec<_>>(), [version]);
        assert_eq!(states(&engine, begun.flow).await, [(*view.snapshot).clone()]);
        assert_eq!(columns(&engine, begun.flow).await, 1);
        let ended = to_the_end(&flows, &old, answer.token.unwrap()).await;
        assert_eq!((ended.status, ended.result), (Status::Completed, Some(json!({"steps": 4}))));
        assert_eq!(engine.run(begun.flow).view().await.unwrap().status, Status::Completed);
        assert_eq!(columns(&engine, begun.flow).await, 1, "a run that has ended keeps its columns");
    }
}

/// E4: the row is created once, not once for each path that a sealed token can take.
#[tokio::test]
async fn a_sealed_flow_gets_one_row_on_any_path() {
    for strategy in ["handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let flows = flows(&engine, "sealed");
        let first = begun(&flows, "mover").await;
        let second = next(&flows, &first).await;
        // One path gets there a step later than the other, at another version.
        moved(&flows, &second, strategy).await;
        let late = soon(flows.resume(to(&first, strategy))).await;
        assert_eq!(late, Err(FlowError::Gone), "{strategy}");
        assert_eq!(handles(&flows).await.len(), 1, "{strategy}");
    }
}

/// E4: the old token stays invalid after the durable run was purged, until it would have expired.
#[tokio::test]
async fn the_old_token_stays_invalid_after_the_run_is_purged() {
    let hour = |builder: Builder| {
        let builder = office(builder).with(|options| options.retention_ms = Some(1_000));
        builder.with(|options| options.maintenance_interval_ms = 60_000)
    };
    let engine = kit::start(hour).await.unwrap();
    let flows = flows(&engine, "sealed");
    let old = begun(&flows, "mover").await;
    let mut token = moved(&flows, &old, "durable").await.token;
    while let Some(now) = token {
        token = go(&flows, &now).await.unwrap().token;
    }
    engine.advance(Duration::from_secs(180)).await;
    assert_eq!(runs(&engine, RunQuery::default()).await, []);
    assert_eq!(soon(flows.resume(to(&old, "durable"))).await, Err(FlowError::Gone));
    assert_eq!(runs(&engine, RunQuery::default()).await, []);
}

/// E4: a durable run stays durable: a step that selects another strategy fails.
#[tokio::test]
async fn a_durable_run_stays_durable() {
    for (strategy, code) in
        [("sealed", "notAFlow"), ("handle", "notAFlow"), ("nowhere", "unknownStrategy"), ("durable", "")]
    {
        let engine = kit::start(office).await.unwrap();
        let flows = flows(&engine, "durable");
        let token = begun(&flows, "mover").await;
        let answer = soon(flows.resume(to(&token, strategy))).await.unwrap();
        let error = answer.error.map(|error| (error.code, error.is_final));
        assert_eq!(error, Some((code.to_owned(), true)).filter(|(code, _)| !code.is_empty()), "{strategy}");
        let status = if code.is_empty() { Status::Waiting } else { Status::Failed };
        assert_eq!((answer.strategy.as_deref(), answer.status), (Some("durable"), status));
    }
}

/// E4: an unknown strategy is reported by name, and the token stays valid.
#[tokio::test]
async fn an_unknown_strategy_is_reported_and_the_token_stays_valid() {
    for strategy in ["sealed", "handle"] {
        let engine = kit::start(office).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "mover").await;
        for _ in 0..2 {
            let error = soon(flows.resume(to(&token, "nowhere"))).await.unwrap_err().to_string();
            assert!(error.contains("`nowhere`") && error.contains("`handle`"), "{error}");
        }
        assert_eq!(flows.show(&token).await.unwrap().waits[0].place, "p0");
        next(&flows, &token).await;
    }
}

/// E4: the writes of a step are in the commit that changes the strategy, once.
#[tokio::test]
async fn a_strategy_change_and_its_writes_are_one_commit() {
    let both = |cx: Cx| async move {
        add(cx.clone()).await?;
        elsewhere(cx).await
    };
    for (from, into) in
        [("sealed", "handle"), ("sealed", "durable"), ("handle", "sealed"), ("handle", "durable")]
    {
        let workflow = walk("both", &["both", "nothing"]).build().unwrap();
        let build = |builder: Builder| office(builder).workflow(workflow.clone()).action("both", both);
        let (store, clock) = kit::ground().await;
        let watched = kit::Watched::new(store);
        let engine = TestEngine::start_on(watched.clone(), clock, build).await.unwrap();
        let flows = flows(&engine, from);
        let old = begun(&flows, "both").await;
        watched.commits();
        let answer = moved(&flows, &old, into).await;
        let writing = watched.commits().into_iter().filter(|commit| !commit.cells.is_empty()).count();
        assert_eq!((writing, sum(&engine).await), (1, json!(1)));
        is_gone(&flows, &old).await;
        assert_eq!(sum(&engine).await, json!(1));
        assert_eq!(go(&flows, &answer.token.unwrap()).await.unwrap().status, Status::Completed);
    }
}

/// E4: the change applies from the next pause on, even if later steps run before it.
#[tokio::test]
async fn a_strategy_change_applies_from_the_next_pause() {
    use stepwell::core::spec::Transition;
    let quick = Spec::new("quick")
        .signal("GO")
        .step("a")
        .step("b")
        .step("c")
        .end("done")
        .transition(Transition::new("ab", "a", "b").action("leave"))
        .transition(Transition::new("bc", "b", "c").action("nothing"))
        .on_signal("on", "c", "GO", "done")
        .build()
        .unwrap();
    let leave = |cx: Cx| async move { cx.use_strategy("handle") };
    let build = |builder: Builder| office(builder).workflow(quick).action("leave", leave);
    let engine = kit::start(build).await.unwrap();
    let flows = flows(&engine, "sealed");
    let answer = soon(flows.start(Start::new("quick"))).await.unwrap();
    assert_eq!((answer.strategy.as_deref(), handles(&flows).await.len()), (Some("handle"), 1));
    assert_eq!(go(&flows, &answer.token.unwrap()).await.unwrap().status, Status::Completed);
}

/// E4: the row of a flow that became a run contains the run's link, not a flow.
#[tokio::test]
async fn a_run_that_was_a_flow_has_only_a_link() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "mover").await;
    moved(&flows, &token, "durable").await;
    let kinds: Vec<_> = handles(&flows).await.iter().map(|row| row.kind).collect();
    assert_eq!(kinds, [HandleKind::Link]);
    let rows =
        engine.store().records(engine.scope(), RecordQuery::Handle(handles(&flows).await[0].handle)).await;
    assert!(matches!(rows.unwrap().items[..], [Record::Handle(_)]));
}
