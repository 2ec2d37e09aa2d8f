//! An expense claim waits for a decision: a manager answers, or the claim expires after a week.
//!
//! The example uses a test engine, so a week passes in a moment.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use serde_json::json;
use stepwell::core::spec::{Place, Transition, Wait};
use stepwell::core::{Definition, Problems, Spec};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Signal, Start};

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn expense() -> Result<Definition, Problems> {
    let answer = json!({
        "type": "object",
        "required": ["approved", "by"],
        "properties": {"approved": {"type": "boolean"}, "by": {"type": "string"}},
    });
    let decision = Wait {
        signal: Some("DECIDE".into()),
        form: Some(answer.clone()),
        answerers: vec!["role:manager".to_owned()],
        ..Wait::default()
    };
    Spec::new("expense")
        .initial("decision")
        .place("decision", Place::Wait(decision))
        .end_with("paid", json!({"paid": {"$expr": "context.amount"}, "by": {"$expr": "event.by"}}))
        .end_with("refused", json!({"paid": 0, "by": {"$expr": "event.by"}}))
        .end_with("too_late", json!({"paid": 0}))
        .signal_with("DECIDE", answer)
        .transition(Transition::new("pay", "decision", "paid").when("event.approved").action("pay"))
        .transition(Transition::new("refuse", "decision", "refused").priority(-1))
        .transition(Transition::new("expire", "decision", "too_late").after_ms(7 * 24 * 3_600_000))
        .build()
}

/// Calls an external system. After a crash the call may be repeated, with the same idempotency key.
async fn pay(cx: Cx) -> Result<String, ActionError> {
    println!("  paying, with the key {}", cx.idempotency_key());
    Ok(cx.idempotency_key())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let definition = expense()?;
    let engine = TestEngine::start(|engine| engine.workflow(definition).action("pay", pay)).await?;

    println!("Ann asks for 120, and Mia answers after two days.");
    let run = engine.start(Start::new("expense").input(&json!({"amount": 120}))).await?;
    engine.advance(2 * DAY).await;
    run.signal(Signal::new("DECIDE").with(&json!({"approved": true, "by": "mia@example.com"}))).await?;
    let result = run.result().await?;
    println!("  {result}");
    assert_eq!(result, json!({"paid": 120, "by": "mia@example.com"}));

    println!("Ben asks for 9000. An answer without `by` is refused, and nothing changes.");
    let run = engine.start(Start::new("expense").input(&json!({"amount": 9_000}))).await?;
    let refused = run.signal(Signal::new("DECIDE").with(&json!({"approved": true}))).await;
    println!("  {}", refused.err().ok_or("the payload is invalid and must be refused")?);
    run.signal(Signal::new("DECIDE").with(&json!({"approved": false, "by": "mia@example.com"}))).await?;
    assert_eq!(run.result().await?, json!({"paid": 0, "by": "mia@example.com"}));

    println!("Cem asks for 40, and no answer arrives for a week.");
    let run = engine.start(Start::new("expense").input(&json!({"amount": 40}))).await?;
    engine.advance(7 * DAY).await;
    assert_eq!(run.result().await?, json!({"paid": 0}));
    println!("  too late");
    Ok(())
}
