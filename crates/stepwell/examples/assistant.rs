//! An assistant: a model proposes a step and a person accepts or rejects it, until the model is done.
//!
//! The model is a stub. The point is the durable loop: every proposal and every answer is a checkpoint, the
//! conversation is stored as documents, and the person may take a week to answer.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::spec::{LoopStep, Place, Transition, Wait};
use stepwell::core::{Definition, Problems, Spec};
use stepwell::store::DocumentQuery;
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Signal, Start};

fn assistant() -> Result<Definition, Problems> {
    let verdict = json!({"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}});
    let asked = Wait { signal: Some("VERDICT".into()), form: Some(verdict.clone()), ..Wait::default() };
    Spec::new("assistant")
        .initial("begun")
        .step("begun")
        .step("thinking")
        .step("proposed")
        .place("asked", Place::Wait(asked))
        .end_with("done", json!({"steps": {"$expr": "context.done"}}))
        .signal_with("VERDICT", verdict)
        .transition(Transition::new("begin", "begun", "thinking").loop_step(LoopStep::Enter))
        .transition(Transition::new("propose", "thinking", "proposed").action("propose"))
        .transition(
            Transition::new("finish", "proposed", "done")
                .when("context.proposal = 'done'")
                .priority(1)
                .loop_step(LoopStep::Leave),
        )
        .transition(Transition::new("ask", "proposed", "asked"))
        .transition(
            Transition::new("act", "asked", "thinking")
                .when("event.ok")
                .action("act")
                .loop_step(LoopStep::Next),
        )
        .transition(
            Transition::new("drop", "asked", "thinking")
                .priority(-1)
                .action("note")
                .loop_step(LoopStep::Next),
        )
        .build()
}

/// Stands for the model: proposes the first step that was neither done nor refused.
async fn propose(cx: Cx) -> Result<(), ActionError> {
    let state: Value = cx.state()?;
    let seen = |field: &str, plan: &str| {
        state[field].as_array().is_some_and(|list| list.iter().any(|item| item == plan))
    };
    let plans = ["read the mail", "delete the mail", "write an answer"];
    let next = plans.iter().find(|plan| !seen("done", plan) && !seen("refused", plan)).unwrap_or(&"done");
    println!("  the model proposes: {next}");
    cx.put_document(format!("proposal-{}", cx.activation()), "proposal", next, &["model"])?;
    cx.update_state(|state: &mut Value| state["proposal"] = (*next).into())
}

async fn act(cx: Cx) -> Result<(), ActionError> {
    remember(&cx, "done")
}

async fn note(cx: Cx) -> Result<(), ActionError> {
    remember(&cx, "refused")
}

fn remember(cx: &Cx, field: &str) -> Result<(), ActionError> {
    cx.put_document(format!("verdict-{}", cx.activation()), "verdict", cx.payload(), &["person"])?;
    cx.update_state(|state: &mut Value| {
        let mut list = state[field].as_array().cloned().unwrap_or_default();
        list.push(state["proposal"].clone());
        state[field] = list.into();
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let definition = assistant()?;
    let engine = TestEngine::start(|engine| {
        engine.workflow(definition).action("propose", propose).action("act", act).action("note", note)
    })
    .await?;
    println!("The model works through the mail, and a person decides each step.");
    let run = engine.start(Start::new("assistant").input(&json!({}))).await?;
    for _ in 0..3 {
        engine.advance(Duration::from_secs(24 * 3_600)).await;
        let proposal = run.view().await?.snapshot.context()["proposal"].clone();
        let ok = proposal != "delete the mail";
        println!("  a day later the person says {}", if ok { "yes" } else { "no" });
        run.signal(Signal::new("VERDICT").with(&json!({"ok": ok}))).await?;
    }
    let result = run.result().await?;
    println!("  {result}");
    assert_eq!(result, json!({"steps": ["read the mail", "write an answer"]}));

    let query = DocumentQuery {
        run: run.id(),
        at: None,
        key: None,
        kind: None,
        tag: Some("model".to_owned()),
        limit: 10,
        cursor: None,
    };
    let kept = engine.store().documents(engine.scope(), query).await?;
    println!("  {} proposals are stored as documents", kept.items.len());
    assert_eq!(kept.items.len(), 4);
    Ok(())
}
