//! The actions of the simulation. Their external effects are logged, and each result names the attempt that produced
//! it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::engine::Builder;
use stepwell::{ActionError, Cx, Start};
use stepwell_core::RunId;
use stepwell_store::{CellKey, CellOp, CellWrite, Precondition, Space};

use super::oracle::{Ending, FailedAttempt};
use super::world::World;

const ALL: [&str; 8] = ["work", "count", "add", "tell", "flaky", "fragile", "doomed", "spawn"];

/// Registers the actions for the engine of a process.
pub(crate) fn register(mut builder: Builder, world: &Arc<World>, process: usize) -> Builder {
    for action in ALL {
        let world = world.clone();
        builder = builder.action(action, move |cx: Cx| perform(world.clone(), process, action, cx));
    }
    builder
}

/// A running attempt. It is recorded as dropped if it is dropped before it reports its end.
struct Running {
    world: Arc<World>,
    token: usize,
}

impl Running {
    fn ended(&self, ending: Ending) {
        let now = self.world.now();
        let mut scene = self.world.scene();
        let scene = &mut *scene;
        scene.oracle.try_ended(now, self.token, ending, &mut scene.trace);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended(Ending::Dropped);
    }
}

async fn perform(
    world: Arc<World>,
    process: usize,
    action: &'static str,
    cx: Cx,
) -> Result<Value, ActionError> {
    let tried = FailedAttempt {
        run: cx.run(),
        activation: cx.activation(),
        transition: cx.transition().to_string(),
        key: cx.idempotency_key(),
        attempt: cx.attempt(),
        process,
    };
    let context: Value = cx.state()?;
    let (token, takes_us, ending) = begin(&world, action, tried, &context);
    let running = Running { world: world.clone(), token };
    world.sleep(takes_us).await;
    if ending != Ending::Succeeded {
        running.ended(ending);
        return Err(fail(ending));
    }
    stage(&cx, action, token, &context)?;
    running.ended(Ending::Succeeded);
    Ok(json!({ "token": token }))
}

/// Logs an attempt and decides its duration and ending.
fn begin(world: &World, action: &str, tried: FailedAttempt, context: &Value) -> (usize, u64, Ending) {
    let now = world.now();
    let mut scene = world.scene();
    let scene = &mut *scene;
    let dice = &mut scene.actions;
    let quiet = scene.quiet_since.is_some();
    let takes_us = match dice.below(1_000) {
        0..300 => 0,
        300..850 => dice.between(1_000, 60_000),
        850..970 => dice.between(60_000, 900_000),
        _ if quiet => 0,
        _ => dice.between(1_000_000, 4_000_000),
    };
    let ending = ending(action, context, quiet, dice.below(1_000), scene.temper.fails);
    scene.tally.attempts += 1;
    let (token, verdict) = scene.oracle.try_started(now, action, tried, &mut scene.trace);
    scene.judge(verdict);
    (token, takes_us, ending)
}

fn ending(action: &str, context: &Value, quiet: bool, thrown: u64, fails: u64) -> Ending {
    match action {
        "doomed" if context["fails"] == true => Ending::FailedForGood,
        "fragile" if !quiet && thrown < 600 => Ending::Failed,
        "add" if !quiet && thrown < fails => Ending::Failed,
        "flaky" => match context["fails"].as_str() {
            Some("always") => Ending::Failed,
            Some("never") => Ending::Succeeded,
            _ if thrown < 200 => Ending::Panicked,
            _ if thrown < 500 => Ending::Failed,
            _ => Ending::Succeeded,
        },
        _ => Ending::Succeeded,
    }
}

fn fail(ending: Ending) -> ActionError {
    match ending {
        // Skips the panic hook, which would print a message.
        Ending::Panicked => std::panic::resume_unwind(Box::new("scripted")),
        Ending::FailedForGood => ActionError::new("scripted", "scripted permanent failure").non_retryable(),
        _ => ActionError::new("scripted", "scripted failure"),
    }
}

/// Stages the writes of a successful attempt, which are part of its commit.
fn stage(cx: &Cx, action: &str, token: usize, context: &Value) -> Result<(), ActionError> {
    let mark = format!("mark-{}", cx.transition());
    cx.update_state(|state: &mut Value| state[mark] = token.into())?;
    match action {
        "work" => cx.put_document(cx.transition().as_str(), "note", &json!({ "token": token }), &[]),
        "count" | "add" => {
            cx.write(increment(cx.run().to_string()))?;
            cx.write(increment("total".to_owned()))
        }
        "tell" => match context["tells"].as_str().and_then(|run| run.parse::<RunId>().ok()) {
            Some(run) => cx.signal(run, "ADD", &json!({"sig": format!("told by {}", cx.run())})),
            None => Ok(()),
        },
        "spawn" => {
            let fails = context["children"].as_array().cloned().unwrap_or_default();
            for (number, kind) in fails.iter().enumerate() {
                let workflow = if kind == "napper" { "napper" } else { "child" };
                let input = json!({"number": number, "fails": *kind == "fails"});
                cx.start_child(Start::new(workflow).input(&input))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Namespace of the counter cells.
pub(crate) const COUNTERS: &str = "counters";

fn increment(key: String) -> CellWrite {
    CellWrite {
        key: CellKey { space: Space::Kv, owner: COUNTERS.to_owned(), key },
        op: CellOp::Increment { by: 1.into() },
        expect: Precondition::Anything,
        initial: None,
        by: None,
    }
}

/// Time that an engine gets to stop gracefully.
pub(crate) const GRACE: Duration = Duration::from_millis(300);
