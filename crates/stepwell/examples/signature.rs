//! A flow that starts sealed in a token and becomes a durable run when it first waits for another person, who answers
//! through a link days later.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use serde_json::json;
use stepwell::core::spec::{Place, Transition, Wait};
use stepwell::core::{Definition, Problems, Spec};
use stepwell::flow::{CreateAnswerLink, Durable, FlowError, Flows, Key, KeyRing, Resume, Sealed};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Start};

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn contract() -> Result<Definition, Problems> {
    let parties = json!({
        "type": "object",
        "required": ["buyer", "price"],
        "properties": {"buyer": {"type": "string"}, "price": {"type": "number", "minimum": 1}},
    });
    let parties = Wait { signal: Some("PARTIES".into()), form: Some(parties), ..Wait::default() };
    Spec::new("contract")
        .initial("parties")
        .place("parties", Place::Wait(parties))
        .step("review")
        .step("signing")
        .end_with("signed", json!({"price": {"$expr": "context.price"}}))
        .end("declined")
        .signal("PARTIES")
        .signal("SEND")
        .signal("SIGN")
        .signal("DECLINE")
        .transition(Transition::new("draft", "parties", "review").action("draft"))
        .transition(Transition::new("send", "review", "signing").on_signal("SEND").action("send"))
        .on_signal("sign", "signing", "SIGN", "signed")
        .on_signal("decline", "signing", "DECLINE", "declined")
        .build()
}

async fn draft(cx: Cx) -> Result<(), ActionError> {
    cx.set_state(cx.payload())
}

/// Makes the flow durable: from the next pause on another person answers, so the state must outlive the browser
/// session.
async fn send(cx: Cx) -> Result<(), ActionError> {
    cx.use_strategy("durable")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let definition = contract()?;
    let build =
        |engine: stepwell::Builder| engine.workflow(definition).action("draft", draft).action("send", send);
    let engine = TestEngine::start(build).await?;
    let flows = Flows::builder(&engine, KeyRing::new(Key::generate("2026-11")?))
        .strategy("sealed", Sealed::new())
        .strategy("durable", Durable::new())
        .default_strategy("sealed")
        .build()?;

    let begun = flows.start(Start::new("contract").input(&json!({}))).await?;
    let token = begun.token.ok_or("a flow that waits has a token")?;
    let filled = Resume::new(&token).input(&json!({"buyer": "cem@example.com", "price": 900}));
    let reviewed = flows.resume(filled).await?;
    println!(
        "Written in one session: the state is in a token of strategy `{}`.",
        reviewed.strategy.unwrap_or_default()
    );

    let old = reviewed.token.ok_or("a flow that waits has a token")?;
    let sent = flows.resume(Resume::new(&old).outcome("SEND")).await?;
    println!(
        "Sent: the state is now kept by strategy `{}`, under the same id.",
        sent.strategy.unwrap_or_default()
    );
    assert_eq!(sent.flow, begun.flow);
    assert_eq!(flows.resume(Resume::new(&old).outcome("SEND")).await, Err(FlowError::Gone));

    // Create one answer link for each possible answer.
    let link = |outcome: &str| CreateAnswerLink::new(sent.flow).outcome(outcome);
    let sign = flows.create_answer_link(link("SIGN")).await?.token.ok_or("the link was not sent")?;
    let decline = flows.create_answer_link(link("DECLINE")).await?.token.ok_or("the link was not sent")?;
    engine.advance(3 * DAY).await;
    let wrong = flows.resume(Resume::new(&sign).outcome("DECLINE")).await;
    println!("Three days later: {}", wrong.err().ok_or("a link to sign cannot decline")?);
    let signed = flows.resume(Resume::new(&sign)).await?;
    assert_eq!((signed.status, signed.result), (Status::Completed, Some(json!({"price": 900}))));
    println!("Cem signs; the other link is no longer valid.");
    assert_eq!(flows.resume(Resume::new(&decline)).await, Err(FlowError::Gone));
    Ok(())
}
