//! An order is charged at a bank that is down for a while. The charge is retried. If the retries fail, the order waits
//! in a place where a person can look at it.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use stepwell::core::retry::Retry;
use stepwell::core::spec::{ActionSpec, Transition};
use stepwell::core::{Definition, Problems, Spec};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Signal, Start};

/// The data of a run as a Rust type.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    item: String,
    cents: u64,
    #[serde(default)]
    receipt: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Charge {
    cents: u64,
}

fn order() -> Result<Definition, Problems> {
    let charge = ActionSpec {
        name: "charge".into(),
        input: json!({"cents": {"$expr": "context.cents"}}),
        save_as: None,
        version: None,
    };
    let retry = Retry { attempts: 3, place: Some("declined".into()), ..Retry::default() };
    Spec::new("order")
        .initial("placed")
        .step("placed")
        .step("charged")
        .step("declined")
        .end_with("shipped", json!({"receipt": {"$expr": "context.receipt"}}))
        .end_with("given_up", json!({"why": {"$expr": "context.why"}}))
        .signal("TRY_AGAIN")
        .transition(Transition::new("charge", "placed", "charged").action_with(charge).retry(retry))
        .transition(Transition::new("ship", "charged", "shipped").action("ship"))
        .transition(Transition::new("again", "declined", "placed").on_signal("TRY_AGAIN"))
        .transition(
            Transition::new("give_up", "declined", "given_up").after_ms(24 * 3_600_000).action("give_up"),
        )
        .build()
}

async fn ship(cx: Cx) -> Result<(), ActionError> {
    let order: Order = cx.state()?;
    println!("  {} is on its way", order.item);
    Ok(())
}

async fn give_up(cx: Cx) -> Result<(), ActionError> {
    let error = &cx.snapshot().activations()[0].locals["error"];
    let why = format!("{}: {}", error["code"], error["message"]);
    cx.update_state(|state: &mut serde_json::Value| state["why"] = why.into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Number of calls for which the bank is down.
    let down = Arc::new(AtomicU32::new(2));
    let bank = down.clone();
    let charge = move |cx: Cx, input: Charge| {
        let bank = bank.clone();
        async move {
            println!(
                "  attempt {}: charging {} cents, key {}",
                cx.attempt(),
                input.cents,
                cx.idempotency_key()
            );
            if bank.load(Ordering::SeqCst) > 0 {
                bank.fetch_sub(1, Ordering::SeqCst);
                return Err(ActionError::new("bankDown", "the bank does not answer"));
            }
            cx.update_state(|order: &mut Order| order.receipt = Some(cx.idempotency_key()))
        }
    };
    let definition = order()?;
    let engine = TestEngine::start(|engine| {
        engine.workflow(definition).action("charge", charge).action("ship", ship).action("give_up", give_up)
    })
    .await?;

    println!("The bank is down for two calls: the third attempt, three seconds later, succeeds.");
    let lamp = Order { item: "a lamp".to_owned(), cents: 4_900, receipt: None };
    let run = engine.start(Start::new("order").input(&lamp)).await?;
    engine.advance(Duration::from_secs(3)).await;
    let result = run.result().await?;
    assert_eq!(result["receipt"].as_str().map(|key| key.starts_with(&run.id().to_string())), Some(true));

    println!("The bank is down for a long time: after four attempts the order waits for a person.");
    down.store(5, Ordering::SeqCst);
    let chair = Order { item: "a chair".to_owned(), cents: 19_900, receipt: None };
    let run = engine.start(Start::new("order").input(&chair)).await?;
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!(run.view().await?.snapshot.current_places(), ["declined"]);
    println!("An operator requests another attempt. It fails once more and then works.");
    run.signal(Signal::new("TRY_AGAIN")).await?;
    engine.advance(Duration::from_secs(60)).await;
    assert!(run.result().await?["receipt"].is_string());

    println!("No request arrives: a day later the order is given up with a reason.");
    down.store(100, Ordering::SeqCst);
    let table = Order { item: "a table".to_owned(), cents: 39_900, receipt: None };
    let run = engine.start(Start::new("order").input(&table)).await?;
    engine.advance(Duration::from_secs(25 * 3_600)).await;
    let result = run.result().await?;
    println!("  {result}");
    assert!(result["why"].as_str().is_some_and(|why| why.contains("bankDown")));
    Ok(())
}
