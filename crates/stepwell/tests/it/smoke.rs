//! A minimal run through the whole engine.

use std::time::Duration;

use serde_json::json;
use stepwell::core::Spec;
use stepwell::core::spec::Transition;
use stepwell::store::Status;
use stepwell::{ActionError, Cx, Signal, Signalled, Start};

use crate::kit;

async fn double(cx: Cx, input: i64) -> Result<i64, ActionError> {
    assert_eq!(cx.attempt(), 1);
    Ok(input * 2)
}

#[tokio::test]
async fn run_passes_an_action_a_wait_and_a_timer() {
    let action = stepwell::core::spec::ActionSpec {
        name: "double".into(),
        input: json!({"$expr": "context.number"}),
        save_as: Some("doubled".to_owned()),
        version: None,
    };
    let definition = Spec::new("way")
        .initial("a")
        .step("a")
        .wait("b", "GO")
        .step("c")
        .end_with("d", json!({"doubled": {"$expr": "context.doubled"}}))
        .signal("GO")
        .transition(Transition::new("ab", "a", "b").action_with(action))
        .auto("bc", "b", "c")
        .transition(Transition::new("cd", "c", "d").after_ms(60_000))
        .build()
        .unwrap();
    let engine = kit::start(|engine| engine.workflow(definition).action("double", double)).await.unwrap();
    let run = engine.start(Start::new("way").input(&json!({"number": 21}))).await.unwrap();
    engine.settle().await;
    assert_eq!(run.view().await.unwrap().status, Status::Waiting);
    assert_eq!(run.signal(Signal::new("GO")).await.unwrap(), Signalled::Consumed);
    engine.advance(Duration::from_secs(59)).await;
    assert_eq!(run.view().await.unwrap().status, Status::Waiting);
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!(run.result().await.unwrap(), json!({"doubled": 42}));
}
