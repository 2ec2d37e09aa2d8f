//! A holiday request over several days, as a durable run. Two people answer through links, and one of them is
//! reminded.
#![allow(clippy::print_stdout)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use stepwell::core::spec::{Place, Transition, Wait};
use stepwell::core::{Definition, Problems, Spec};
use stepwell::flow::{Durable, Flows, Key, KeyRing, Message, Outgoing, OutletError, Resume};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Start};

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn holiday() -> Result<Definition, Problems> {
    let answer = json!({"type": "object", "properties": {"because": {"type": "string"}}});
    let asked = |who: &str| {
        Place::Wait(Wait {
            signal: Some("ANSWER".into()),
            form: Some(answer.clone()),
            answerers: vec![format!("role:{who}")],
            ..Wait::default()
        })
    };
    Spec::new("holiday")
        .initial("asked")
        .step("asked")
        .place("lead", asked("lead"))
        .step("agreed")
        .place("office", asked("office"))
        .end_with("granted", json!({"days": {"$expr": "context.days"}}))
        .signal("ANSWER")
        .transition(Transition::new("ask_lead", "asked", "lead").action("ask_lead"))
        .transition(Transition::new("remind", "lead", "lead").after_ms(2 * 24 * 3_600_000).action("ask_lead"))
        .auto("lead_agrees", "lead", "agreed")
        .transition(Transition::new("ask_office", "agreed", "office").action("ask_office"))
        .auto("office_agrees", "office", "granted")
        .build()
}

async fn ask_lead(cx: Cx) -> Result<(), ActionError> {
    cx.send_out(Outgoing::new("mail", "lead@example.com").template("agree"))
}

async fn ask_office(cx: Cx) -> Result<(), ActionError> {
    cx.send_out(Outgoing::new("mail", "office@example.com").template("grant"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let definition = holiday()?;
    let build = |engine: stepwell::Builder| {
        engine.workflow(definition).action("ask_lead", ask_lead).action("ask_office", ask_office)
    };
    let engine = TestEngine::start(build).await?;
    let mails: Arc<Mutex<Vec<Message>>> = Arc::default();
    let postman = mails.clone();
    let outlet = move |message: Message| {
        let postman = postman.clone();
        async move {
            println!("  a mail to {}", message.to);
            postman.lock().map_err(|_| OutletError::new("the mailbox is broken"))?.push(message);
            Ok(())
        }
    };
    let ring = KeyRing::new(Key::generate("2026-11")?);
    let flows = Flows::builder(&engine, ring).only(Durable::new()).outlet("mail", outlet).build()?;
    let newest = || mails.lock().ok().and_then(|mails| mails.last().cloned()).ok_or("there is no mail");

    println!("Dilan asks for ten days.");
    let asked = flows.start(Start::new("holiday").input(&json!({"days": 10}))).await?;
    engine.settle().await;
    println!("No answer arrives for two days.");
    engine.advance(2 * DAY).await;
    let lead = newest()?;
    println!("Then the lead agrees.");
    flows.resume(Resume::new(&lead.token).input(&json!({}))).await?;
    engine.advance(DAY).await;
    println!("The office grants it.");
    let office = newest()?;
    let granted = flows.resume(Resume::new(&office.token).input(&json!({}))).await?;
    assert_eq!((granted.status, granted.result), (Status::Completed, Some(json!({"days": 10}))));
    // The applicant has a token that shows the state of the request.
    let watching = asked.token.ok_or("a flow that waits has a token")?;
    assert_eq!(flows.show(&watching).await?.status, Status::Completed);
    println!("Dilan checks the request and sees that it is granted.");
    Ok(())
}
