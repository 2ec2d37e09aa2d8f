//! A report asks all regions for their figures in parallel, each in a child run, and adds them up.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use serde_json::{Value, json};
use stepwell::core::spec::{ChildRule, Place, Transition, Wait};
use stepwell::core::{Definition, Problems, Spec};
use stepwell::store::MemoryStore;
use stepwell::{ActionError, Cx, Engine, Start};

fn report() -> Result<Definition, Problems> {
    let all = Wait { children: Some(ChildRule::All), ..Wait::default() };
    Spec::new("report")
        .initial("asking")
        .step("asking")
        .place("answers", Place::Wait(all))
        .end_with("done", json!({"total": {"$expr": "context.total"}}))
        .transition(Transition::new("ask", "asking", "answers").action("ask"))
        .transition(Transition::new("add", "answers", "done").action("add"))
        .build()
}

fn region() -> Result<Definition, Problems> {
    Spec::new("region")
        .initial("counting")
        .step("counting")
        .end_with("counted", json!({"sales": {"$expr": "context.sales"}}))
        .transition(Transition::new("count", "counting", "counted").action("count"))
        .build()
}

/// Starts a child for each region, in the same commit as the transition.
async fn ask(cx: Cx) -> Result<(), ActionError> {
    let regions: Vec<String> = serde_json::from_value(cx.state::<Value>()?["regions"].clone())?;
    for name in regions {
        cx.start_child(Start::new("region").input(&json!({"name": name})))?;
    }
    Ok(())
}

async fn count(cx: Cx) -> Result<(), ActionError> {
    cx.update_state(|state: &mut Value| {
        let name = state["name"].as_str().unwrap_or_default().to_owned();
        state["sales"] = (name.len() * 100).into();
    })
}

/// Adds up the results of the children, which are the payload of the resolved wait.
async fn add(cx: Cx) -> Result<(), ActionError> {
    let answers = cx.payload()["children"].as_array().cloned().unwrap_or_default();
    let total: u64 = answers.iter().filter_map(|child| child["end"]["output"]["sales"].as_u64()).sum();
    println!("  {} regions have answered", answers.len());
    cx.update_state(|state: &mut Value| state["total"] = total.into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder(Arc::new(MemoryStore::new()))
        .workflow(report()?)
        .workflow(region()?)
        .action("ask", ask)
        .action("count", count)
        .action("add", add)
        .start()
        .await?;
    println!("The report asks four regions.");
    let regions = json!({"regions": ["north", "south", "east", "west"]});
    let run = engine.start(Start::new("report").input(&regions)).await?;
    let result = run.result().await?;
    println!("  {result}");
    assert_eq!(result, json!({"total": 1_800}));
    Ok(())
}
