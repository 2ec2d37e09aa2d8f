//! Previews of runs: available transitions and the effect of a signal, without a change.

use std::sync::Arc;

use serde_json::{Value, json};
use stepwell::core::spec::{Guard, Transition};
use stepwell::core::{Definition, Refusal, Spec};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Builder, Cx, Effect, EngineError, Run, Signal, SignalPreview, Signalled, Start};

use crate::kit::{Watched, ground, history_actions, version};

/// A gate that `PASS` opens if the named guard says so, and that `CALL` leaves by an action.
fn gate() -> Definition {
    Spec::new("gate")
        .step("closed")
        .step("through")
        .end("done")
        .signal("PASS")
        .signal("CALL")
        .transition(
            Transition::new("pass", "closed", "through").on_signal("PASS").guard(Guard::named("open")),
        )
        .transition(
            Transition::new("call", "closed", "done")
                .on_signal("CALL")
                .action("ring")
                .input(json!({"$expr": "event"})),
        )
        .auto("finish", "through", "done")
        .build()
        .unwrap()
}

async fn ring(_: Cx, input: Value) -> Result<Value, ActionError> {
    Ok(input)
}

/// Starts a gate whose guard is `is_open`.
async fn closed(is_open: bool) -> (Arc<Watched>, TestEngine, Run) {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let build = |engine: Builder| {
        engine.workflow(gate()).action("ring", ring).guard("open", move |_| async move { is_open })
    };
    let engine = TestEngine::start_on(watched.clone(), clock, build).await.unwrap();
    let run = engine.start(Start::new("gate")).await.unwrap();
    engine.settle().await;
    (watched, engine, run)
}

#[tokio::test]
async fn available_transitions_evaluate_named_guards() {
    for is_open in [false, true] {
        let (_, _engine, run) = closed(is_open).await;
        let found = run.available().await.unwrap();
        let blocked: Vec<_> =
            found.iter().map(|one| (one.transition.as_str(), one.blocked_by.is_some())).collect();
        assert_eq!(blocked, [("pass", !is_open), ("call", false)]);
    }
}

#[tokio::test]
async fn preview_reports_the_effect_and_stores_nothing() {
    let (watched, engine, run) = closed(true).await;
    watched.commits();
    let moved = run.preview(Signal::new("PASS")).await.unwrap();
    let Some(Effect::Change(entry)) = &moved.effect else { panic!("{moved:?}") };
    assert_eq!(
        (moved.outcome, entry.version, &entry.transitions[..]),
        (Signalled::Consumed, 1, &["pass".into()][..])
    );
    let called = run.preview(Signal::new("CALL").with(&7)).await.unwrap();
    let Some(Effect::Action(call)) = &called.effect else { panic!("{called:?}") };
    assert_eq!((call.action.as_str(), &call.input), ("ring", &json!(7)));
    assert_eq!((watched.commits(), version(&run).await), (vec![], 0));

    run.signal(Signal::new("PASS").id("p")).await.unwrap();
    engine.settle().await;
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "PASS", "__auto:finish"]);
    let again = run.preview(Signal::new("PASS").id("p")).await.unwrap();
    assert_eq!(again, SignalPreview { outcome: Signalled::Consumed, is_repeated: true, effect: None });
    assert!(matches!(run.preview(Signal::new("PASS")).await, Err(EngineError::Refused(Refusal::Terminal))));
}

#[tokio::test]
async fn preview_reports_the_refusal_of_a_signal() {
    let (_, _engine, run) = closed(false).await;
    let refused = run.preview(Signal::new("PASS")).await;
    assert!(matches!(refused, Err(EngineError::Refused(Refusal::GuardRejected { .. }))), "{refused:?}");
    let unknown = run.preview(Signal::new("KNOCK")).await;
    assert!(matches!(unknown, Err(EngineError::Refused(Refusal::UnknownSignal { .. }))), "{unknown:?}");
    assert_eq!(run.view().await.unwrap().status, Status::Waiting);
}
