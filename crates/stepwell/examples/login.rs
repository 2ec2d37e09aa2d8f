//! A login with a second factor that needs no database. Between two pages the state is sealed in a token that the
//! browser stores.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::spec::{Place, Transition, Wait};
use stepwell::core::{Definition, Problems, Spec};
use stepwell::flow::{FlowError, Flows, Key, KeyRing, Resume, Sealed};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Start};

/// Returns a page with required text fields.
fn page(signal: &str, fields: &[&str]) -> Place {
    let texts: serde_json::Map<String, Value> =
        fields.iter().map(|field| ((*field).to_owned(), json!({"type": "string", "minLength": 1}))).collect();
    let form = json!({"type": "object", "required": fields, "properties": texts});
    Place::Wait(Wait { signal: Some(signal.into()), form: Some(form), ..Wait::default() })
}

fn login() -> Result<Definition, Problems> {
    Spec::new("login")
        .initial("password")
        .place("password", page("PASSWORD", &["user", "password"]))
        .place("code", page("CODE", &["code"]))
        .end_with("in", json!({"user": {"$expr": "context.user"}}))
        .signal("PASSWORD")
        .signal("CODE")
        .transition(Transition::new("check", "password", "code").action("check"))
        .transition(Transition::new("verify", "code", "in").action("verify"))
        .build()
}

/// Checks the password. A field error leaves the flow where it is, and the token stays valid.
async fn check(cx: Cx) -> Result<(), ActionError> {
    let given = cx.payload().clone();
    if given["password"] != "correct horse" {
        return Err(ActionError::validation().field("/password", "this is not the password"));
    }
    cx.prompt(&"Type the six digits that your phone shows.")?;
    cx.set_state(&json!({"user": given["user"]}))
}

async fn verify(cx: Cx) -> Result<(), ActionError> {
    match cx.payload()["code"] == "271828" {
        true => Ok(()),
        false => Err(ActionError::validation().field("/code", "this is not the code")),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let definition = login()?;
    let build = |engine: stepwell::Builder| {
        engine.workflow(definition).action("check", check).action("verify", verify)
    };
    let engine = TestEngine::start(build).await?;
    let ring = KeyRing::new(Key::generate("2026-11")?);
    let flows = Flows::builder(&engine, ring).only(Sealed::new().ttl(Duration::from_secs(600))).build()?;

    let asked = flows.start(Start::new("login").input(&json!({}))).await?;
    let first = asked.token.ok_or("a flow that waits has a token")?;
    println!("The first page has a token of {} bytes; nothing was stored.", first.len());

    let wrong = Resume::new(&first).input(&json!({"user": "ann", "password": "guess"}));
    let again = flows.resume(wrong).await?;
    println!("  {}: {}", again.errors[0].pointer, again.errors[0].message);

    let right = Resume::new(&first).input(&json!({"user": "ann", "password": "correct horse"}));
    let asked = flows.resume(right).await?;
    println!("  {}", asked.waits[0].prompt.clone().unwrap_or_default());
    let second = asked.token.ok_or("the code is still missing")?;

    // A modified token is refused with the same error as an expired one.
    let forged = second.replace(&second[40..41], if &second[40..41] == "A" { "B" } else { "A" });
    assert_eq!(
        flows.resume(Resume::new(forged).input(&json!({"code": "271828"}))).await,
        Err(FlowError::Gone)
    );
    let code = Resume::new(&second).input(&json!({"code": "271828"}));
    let done = flows.resume(code.clone()).await?;
    assert_eq!((done.status, done.result), (Status::Completed, Some(json!({"user": "ann"}))));
    println!("Ann is in.");

    engine.advance(Duration::from_secs(600)).await;
    assert_eq!(flows.resume(code).await, Err(FlowError::Gone));
    println!("Ten minutes later the token is no longer valid.");
    Ok(())
}
