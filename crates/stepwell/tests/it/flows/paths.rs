//! Paths of a flow: errors, branches, loops, and endless paths.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::spec::{LoopStep, Quorum, Transition};
use stepwell::core::{Limits, Spec};
use stepwell::engine::Builder;
use stepwell::flow::{FlowError, Flows, Resume};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx};

use super::{add, asks, begin, begun, flows, form, go, handles, keep, nothing, sum};
use crate::kit::{self, ground, soon, store_within};
use crate::world::Gate;

const ALL: [&str; 3] = ["sealed", "handle", "durable"];

async fn fails(cx: Cx) -> Result<(), ActionError> {
    cx.kv("test").increment("sum", 1)?;
    cx.update_state(|state: &mut Value| state["half"] = json!(true))?;
    Err(ActionError::new("broken", "it is broken"))
}

/// E6: a failing action leads to its error place in the same answer; its staged writes are discarded.
#[tokio::test]
async fn a_failing_action_leads_to_its_error_place() {
    let spec = Spec::new("risky")
        .signal("GO")
        .step("open")
        .step("wrong")
        .end("done")
        .end_with("sorry", json!({"$expr": "context"}))
        .transition(
            Transition::new("try", "open", "done").on_signal("GO").action("fails").error_place("wrong"),
        )
        .on_signal("give_up", "wrong", "GO", "sorry")
        .build()
        .unwrap();
    for strategy in ALL {
        let engine =
            kit::start(|builder| builder.workflow(spec.clone()).action("fails", fails)).await.unwrap();
        let flows = flows(&engine, strategy);
        let answer = go(&flows, &begun(&flows, "risky").await).await.unwrap();
        assert_eq!((answer.status, answer.waits[0].place.as_str()), (Status::Waiting, "wrong"), "{strategy}");
        assert_eq!(sum(&engine).await, Value::Null, "{strategy}");
        let ended = go(&flows, &answer.token.unwrap()).await.unwrap();
        assert_eq!((ended.status, ended.result.unwrap()["half"].clone()), (Status::Completed, Value::Null));
    }
}

/// E6: writes of earlier steps are kept when a later step goes to its error place.
#[tokio::test]
async fn writes_before_an_error_place_are_kept() {
    let spec = Spec::new("later")
        .signal("GO")
        .step("open")
        .step("half")
        .step("wrong")
        .end("done")
        .transition(Transition::new("first", "open", "half").on_signal("GO").action("add"))
        .transition(Transition::new("second", "half", "done").action("fails").error_place("wrong"))
        .on_signal("on", "wrong", "GO", "done")
        .build()
        .unwrap();
    for strategy in ALL {
        let build =
            |builder: Builder| builder.workflow(spec.clone()).action("fails", fails).action("add", add);
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let answer = go(&flows, &begun(&flows, "later").await).await.unwrap();
        assert_eq!((answer.waits[0].place.as_str(), sum(&engine).await), ("wrong", json!(1)), "{strategy}");
    }
}

fn branches() -> Spec {
    Spec::new("pair")
        .fork("split", ["left", "right"])
        .place("left", asks("OK", form(&["l"])))
        .place("right", asks("OK", form(&["r"])))
        .join("both", Quorum::All, ["left", "right"])
        .end("done")
        .signal_with("OK", json!({"maxProperties": 1}))
        .auto("l", "left", "both")
        .auto("r", "right", "both")
        .auto("finish", "both", "done")
}

/// E9: two branches that wait for the same signal are answered one after the other, each with its own form.
#[tokio::test]
async fn branches_waiting_for_one_signal_are_answered_in_turn() {
    for strategy in ALL {
        let engine = kit::start(|builder| builder.workflow(branches().build().unwrap())).await.unwrap();
        let flows = flows(&engine, strategy);
        let begun = begin(&flows, "pair").await;
        assert_eq!(begun.waits.len(), 2, "{strategy}");
        let token = begun.token.unwrap();
        let wrong = soon(flows.resume(Resume::new(&token).input(&json!({"r": "x"})))).await.unwrap();
        assert_eq!(wrong.errors.len(), 1, "{strategy}: the first branch's form applies");
        let many = soon(flows.resume(Resume::new(&token).input(&json!({"l": "x", "m": "y"})))).await.unwrap();
        assert_eq!(many.errors.len(), 1, "{strategy}: the signal's own schema applies too");
        let half = soon(flows.resume(Resume::new(&token).input(&json!({"l": "x"})))).await.unwrap();
        assert_eq!(
            half.waits.iter().map(|wait| wait.place.as_str()).collect::<Vec<_>>(),
            ["right"],
            "{strategy}"
        );
        let token = half.token.unwrap();
        let ended = soon(flows.resume(Resume::new(&token).input(&json!({"r": "x"})))).await.unwrap();
        assert_eq!(ended.status, Status::Completed, "{strategy}");
    }
}

/// E9: the same where both places are steps that a signal leads out of.
#[tokio::test]
async fn steps_taking_one_signal_are_answered_in_turn() {
    let spec = Spec::new("steps")
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .join("both", Quorum::All, ["left", "right"])
        .end("done")
        .signal("OK")
        .transition(Transition::new("l", "left", "both").on_signal("OK").action("add"))
        .transition(Transition::new("r", "right", "both").on_signal("OK").action("add"))
        .auto("finish", "both", "done")
        .build()
        .unwrap();
    for strategy in ALL {
        let engine = kit::start(|builder| builder.workflow(spec.clone()).action("add", add)).await.unwrap();
        let flows = flows(&engine, strategy);
        let half = go(&flows, &begun(&flows, "steps").await).await.unwrap();
        assert_eq!((half.waits.len(), sum(&engine).await), (1, json!(1)), "{strategy}");
        let ended = go(&flows, &half.token.unwrap()).await.unwrap();
        assert_eq!((ended.status, sum(&engine).await), (Status::Completed, json!(2)), "{strategy}");
    }
}

/// E4: a loop continues at the iteration at which it paused, under every strategy.
#[tokio::test]
async fn a_loop_continues_at_its_iteration() {
    let note = |cx: Cx| async move {
        let at = cx.snapshot().activations()[0].position.clone();
        cx.update_state(|state: &mut Value| {
            let seen = state["seen"].as_array().cloned().unwrap_or_default();
            state["seen"] = json!([seen, vec![json!(at)]].concat());
        })
    };
    let spec = Spec::new("loop")
        .signal("MORE")
        .signal("ENOUGH")
        .step("before")
        .step("turn")
        .end_with("done", json!({"$expr": "context.seen"}))
        .transition(Transition::new("enter", "before", "turn").loop_step(LoopStep::Enter))
        .transition(
            Transition::new("again", "turn", "turn")
                .on_signal("MORE")
                .action("note")
                .loop_step(LoopStep::Next),
        )
        .transition(Transition::new("leave", "turn", "done").on_signal("ENOUGH").loop_step(LoopStep::Leave))
        .initial("before")
        .build()
        .unwrap();
    let mut all = Vec::new();
    for strategy in ALL {
        let engine = kit::start(|builder| builder.workflow(spec.clone()).action("note", note)).await.unwrap();
        let flows = flows(&engine, strategy);
        let mut token = begun(&flows, "loop").await;
        for _ in 0..3 {
            let answer = soon(flows.resume(Resume::new(&token).outcome("MORE"))).await.unwrap();
            token = answer.token.unwrap();
        }
        let ended = soon(flows.resume(Resume::new(&token).outcome("ENOUGH"))).await.unwrap();
        all.push(ended.result.unwrap());
    }
    assert_eq!(all[0].as_array().unwrap().len(), 3);
    assert_ne!(all[0][0], all[0][1], "each iteration has its own position");
    assert_eq!((&all[0], &all[1]), (&all[1], &all[2]), "it is the same under every strategy");
}

/// E6: an endless path stops at a named limit, and the token stays valid.
#[tokio::test]
async fn an_endless_path_stops_at_a_limit() {
    let spec = Spec::new("endless")
        .signal("GO")
        .step("open")
        .step("a")
        .step("b")
        .end("done")
        .transition(Transition::new("in", "open", "a").on_signal("GO").action("keep"))
        .transition(Transition::new("ab", "a", "b").when("context.loops"))
        .transition(Transition::new("out", "a", "done").when("$not(context.loops)"))
        .auto("ba", "b", "a")
        .build()
        .unwrap();
    for strategy in ["sealed", "handle"] {
        let limits = Limits { flow_moves: 50, ..Limits::default() };
        let (store, clock) = (store_within(limits.clone()).await, ground().await.1);
        let build = |builder: Builder| {
            let builder = builder.workflow(spec.clone()).action("keep", keep);
            builder.with(|options| options.limits = limits)
        };
        let engine = TestEngine::start_on(store, clock, build).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "endless").await;
        let error = soon(flows.resume(Resume::new(&token).input(&json!({"loops": true})))).await.unwrap_err();
        assert!(error.to_string().contains("50"), "{error}");
        assert_eq!(flows.show(&token).await.unwrap().waits[0].place, "open");
        let ended = soon(flows.resume(Resume::new(&token).input(&json!({"loops": false})))).await.unwrap();
        assert_eq!(ended.status, Status::Completed, "{strategy}");
    }
}

/// E6: an action that exceeds its timeout fails; the flow is where it was.
#[tokio::test]
async fn an_action_that_exceeds_its_timeout_fails() {
    let gate = Gate::new();
    let slow = Transition::new("slow", "open", "done").on_signal("GO").action("wait").timeout_ms(5_000);
    let spec = Spec::new("slow").signal("GO").step("open").end("done").transition(slow).build().unwrap();
    let engine = kit::start(|builder| builder.workflow(spec).action("wait", gate.action())).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "slow").await;
    let resumed = tokio::spawn({
        let (flows, token) = (flows.clone(), token.clone());
        async move { flows.resume(Resume::new(token)).await }
    });
    kit::eventually(async || gate.inside() == 1).await;
    engine.advance(Duration::from_secs(5)).await;
    let answer = soon(resumed).await.unwrap();
    assert!(matches!(&answer, Err(FlowError::Failed(failure)) if failure.code == "timeout"), "{answer:?}");
    gate.open(1);
    assert_eq!(
        (handles(&flows).await[0].owner, go(&flows, &token).await.unwrap().status),
        (None, Status::Completed)
    );
}

/// E1: dropping a resume of a sealed flow leaves nothing behind: the token is valid, and its key is free.
#[tokio::test]
async fn a_disconnect_from_a_sealed_flow_leaves_nothing_behind() {
    let gate = Gate::new();
    let counts = gate.and(|cx: &Cx| cx.kv("test").increment("sum", 1).map(|()| Value::Null));
    let build = |builder: Builder| {
        let builder = builder.workflow(super::walk("slow", &["counts", "nothing"]).build().unwrap());
        builder.action("counts", counts).action("nothing", nothing)
    };
    let engine = kit::start(build).await.unwrap();
    let flows: Flows = flows(&engine, "sealed");
    let token = begun(&flows, "slow").await;
    let asks = Resume::new(&token).key("k");
    let client = tokio::spawn({
        let (flows, asks) = (flows.clone(), asks.clone());
        async move { flows.resume(asks).await }
    });
    kit::eventually(async || gate.inside() == 1).await;
    client.abort();
    let _ = client.await;
    gate.open(10);
    soon(flows.resume(asks)).await.unwrap();
    assert_eq!((sum(&engine).await, gate.began()), (json!(1), 2));
}

/// E4: guards on the data choose the path after each pause.
#[tokio::test]
async fn guards_choose_the_path_after_a_pause() {
    let spec = Spec::new("guarded")
        .signal("GO")
        .step("open")
        .step("choice")
        .step("more")
        .end("done")
        .transition(Transition::new("in", "open", "choice").on_signal("GO").action("keep"))
        .transition(Transition::new("big", "choice", "more").when("context.n > 10"))
        .transition(Transition::new("small", "choice", "done").when("context.n <= 10"))
        .on_signal("back", "more", "GO", "open")
        .build()
        .unwrap();
    for strategy in ALL {
        let engine = kit::start(|builder| builder.workflow(spec.clone()).action("keep", keep)).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "guarded").await;
        let more = soon(flows.resume(Resume::new(&token).input(&json!({"n": 11})))).await.unwrap();
        assert_eq!(more.waits[0].place, "more", "{strategy}");
        let back = go(&flows, &more.token.unwrap()).await.unwrap();
        assert_eq!(back.waits[0].place, "open", "{strategy}");
        let done =
            soon(flows.resume(Resume::new(back.token.unwrap()).input(&json!({"n": 10})))).await.unwrap();
        assert_eq!(done.status, Status::Completed, "{strategy}");
    }
}

/// E6: when a later action of an execution fails, the next resume starts again from the pause.
#[tokio::test]
async fn every_resume_starts_at_the_pause() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let flaky = move |_: Cx| {
        let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move { if is_first { Err(ActionError::new("busy", "it is busy")) } else { Ok(()) } }
    };
    let spec = Spec::new("flaky")
        .signal("GO")
        .step("a")
        .step("b")
        .end("c")
        .transition(Transition::new("ab", "a", "b").on_signal("GO").action("add"))
        .transition(Transition::new("bc", "b", "c").action("flaky"))
        .build()
        .unwrap();
    let engine =
        kit::start(|builder| builder.workflow(spec).action("add", add).action("flaky", flaky)).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "flaky").await;
    assert!(matches!(go(&flows, &token).await, Err(FlowError::Failed(_))));
    assert_eq!(go(&flows, &token).await.unwrap().status, Status::Completed);
    assert_eq!((calls.load(Ordering::SeqCst), sum(&engine).await), (2, json!(1)));
}
