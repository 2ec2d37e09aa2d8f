//! A trip is booked in three steps. If the last one fails for good, the earlier bookings are cancelled in reverse
//! order.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::core::spec::{ActionSpec, Transition};
use stepwell::core::{Definition, Problems, Spec};
use stepwell::store::MemoryStore;
use stepwell::{ActionError, Cx, Engine, Start};

/// Returns a booking step. If it fails, the run continues at `otherwise`, where the earlier bookings are cancelled.
fn book(id: &str, from: &str, to: &str, otherwise: &str) -> Transition {
    let retry = Retry { attempts: 2, delay_ms: 1, place: Some(otherwise.into()), ..Retry::default() };
    let action = ActionSpec {
        name: "book".into(),
        input: json!({"what": id}),
        save_as: Some(id.to_owned()),
        version: None,
    };
    Transition::new(id, from, to).action_with(action).retry(retry)
}

fn give_back(id: &str, from: &str, to: &str) -> Transition {
    let retry = Retry { attempts: 10, delay_ms: 1, ..Retry::default() };
    let action =
        ActionSpec { name: "give_back".into(), input: json!({"what": id}), save_as: None, version: None };
    Transition::new(format!("undo_{id}"), from, to).action_with(action).retry(retry)
}

fn journey() -> Result<Definition, Problems> {
    Spec::new("journey")
        .initial("begun")
        .step("begun")
        .step("has_flight")
        .step("has_hotel")
        .step("no_car")
        .step("no_hotel")
        .end_with("booked", json!({"flight": {"$expr": "context.flight"}, "car": {"$expr": "context.car"}}))
        .end_with("cancelled", json!({"given_back": {"$expr": "context.given_back"}}))
        .transition(book("flight", "begun", "has_flight", "cancelled"))
        .transition(book("hotel", "has_flight", "has_hotel", "no_hotel"))
        .transition(book("car", "has_hotel", "booked", "no_car"))
        .transition(give_back("hotel", "no_car", "no_hotel"))
        .transition(give_back("flight", "no_hotel", "cancelled"))
        .build()
}

async fn book_it(cx: Cx, input: Value) -> Result<String, ActionError> {
    let what = input["what"].as_str().unwrap_or_default();
    let sold_out: Vec<String> = serde_json::from_value(cx.state::<Value>()?["sold_out"].clone())?;
    if sold_out.iter().any(|gone| gone == what) {
        println!("  attempt {}: no {what}", cx.attempt());
        // A sold-out item stays sold out, so this failure is permanent and not retried.
        return Err(ActionError::new("soldOut", format!("there is no {what}")).non_retryable());
    }
    println!("  the {what} is booked");
    Ok(cx.idempotency_key())
}

async fn give_it_back(cx: Cx, input: Value) -> Result<(), ActionError> {
    let what = input["what"].as_str().unwrap_or_default().to_owned();
    println!("  the {what} is cancelled");
    cx.update_state(|state: &mut Value| {
        let mut back = state["given_back"].as_array().cloned().unwrap_or_default();
        back.push(what.into());
        state["given_back"] = back.into();
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder(Arc::new(MemoryStore::new()))
        .workflow(journey()?)
        .action("book", book_it)
        .action("give_back", give_it_back)
        .start()
        .await?;
    println!("Everything is available.");
    let run = engine.start(Start::new("journey").input(&json!({"sold_out": []}))).await?;
    assert!(run.result().await?["car"].is_string());

    println!("There is no car: hotel and flight are cancelled, in that order.");
    let run = engine.start(Start::new("journey").input(&json!({"sold_out": ["car"]}))).await?;
    assert_eq!(run.result().await?, json!({"given_back": ["hotel", "flight"]}));
    Ok(())
}
