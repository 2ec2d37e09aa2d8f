//! A person is invited by mail and completes the account days later. The flow's state is kept behind a handle, and
//! only the mail contains its secret.
#![allow(clippy::print_stdout)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use stepwell::core::shadow::Shadow;
use stepwell::core::spec::{Place, Transition, Wait};
use stepwell::core::{Definition, Problems, Spec};
use stepwell::flow::{FlowError, Flows, Handle, Key, KeyRing, Message, Outgoing, OutletError, Resume};
use stepwell::store::{HandleQuery, ShadowFilter, Status};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Start};

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn invite() -> Result<Definition, Problems> {
    let account = json!({
        "type": "object",
        "required": ["name", "password"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "title": "Your name"},
            "password": {"type": "string", "minLength": 8, "title": "A password"},
        },
    });
    let finish = Wait { signal: Some("FINISH".into()), form: Some(account), ..Wait::default() };
    Spec::new("invite")
        .initial("invited")
        .step("invited")
        .place("finish", Place::Wait(finish))
        .end_with("member", json!({"mail": {"$expr": "context.mail"}}))
        .signal("FINISH")
        .shadow("mail", Shadow::string("mail"))
        .transition(Transition::new("mail", "invited", "finish").action("mail"))
        .transition(Transition::new("create", "finish", "member").action("create"))
        .build()
}

/// Stages the mail. It is committed with the step and sent afterwards.
async fn mail(cx: Cx) -> Result<(), ActionError> {
    let state: serde_json::Value = cx.state()?;
    let to = state["mail"].as_str().unwrap_or_default().to_owned();
    cx.send_out(Outgoing::new("mail", to).template("invite").ttl(7 * DAY))
}

/// Creates the account in the same transaction as the flow's last step.
async fn create(cx: Cx) -> Result<(), ActionError> {
    let state: serde_json::Value = cx.state()?;
    let mail = state["mail"].as_str().unwrap_or_default().to_owned();
    cx.kv("accounts").set(&mail, json!({"name": cx.payload()["name"]}))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let definition = invite()?;
    let build =
        |engine: stepwell::Builder| engine.workflow(definition).action("mail", mail).action("create", create);
    let engine = TestEngine::start(build).await?;
    // An outlet sends messages. The server has one for SMTP.
    let mailbox: Arc<Mutex<Vec<Message>>> = Arc::default();
    let postman = mailbox.clone();
    let outlet = move |message: Message| {
        let postman = postman.clone();
        async move {
            postman.lock().map_err(|_| OutletError::new("the mailbox is broken"))?.push(message);
            Ok(())
        }
    };
    let ring = KeyRing::new(Key::generate("2026-11")?);
    let flows = Flows::builder(&engine, ring).only(Handle::new()).outlet("mail", outlet).build()?;

    let begun = flows.start(Start::new("invite").input(&json!({"mail": "bea@example.com"}))).await?;
    engine.settle().await;
    println!("Bea is invited; the sender sees that the flow is {}.", begun.status);
    let watching = begun.token.ok_or("a flow that waits has a token")?;
    let mine = Resume::new(&watching).input(&json!({"name": "Mallory", "password": "let me in!"}));
    assert_eq!(flows.resume(mine).await, Err(FlowError::WatchOnly));
    assert_eq!(flows.show(&watching).await?.status, Status::Waiting);
    println!("  The sender cannot answer for her: this token only shows that the flow waits.");

    let found = HandleQuery {
        workflow: Some("invite".into()),
        shadows: vec![ShadowFilter::equals("mail", "bea@example.com")],
        limit: 10,
        ..HandleQuery::default()
    };
    assert_eq!(flows.handles(found).await?.items.len(), 1);
    println!("  An operator finds the invitation by her address, but cannot see its secret.");

    engine.advance(2 * DAY).await;
    let mail =
        mailbox.lock().map_err(|_| "the mailbox is broken")?.first().cloned().ok_or("there is no mail")?;
    assert_eq!(flows.show(&mail.token).await?.waits[0].place, "finish");
    println!("Two days later her mail program fetches the link: nothing changes.");
    let finish = Resume::new(&mail.token).input(&json!({"name": "Bea", "password": "a long one"}));
    assert_eq!(flows.resume(finish.clone()).await?.status, Status::Completed);
    assert_eq!(flows.resume(finish).await, Err(FlowError::Gone));
    println!("She completes her account; the link is no longer valid.");
    Ok(())
}
