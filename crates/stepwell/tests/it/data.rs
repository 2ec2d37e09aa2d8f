//! Data that outlives runs: slots, keys and links, their permissions, and their audit trail.

mod actions;
mod audit;
mod kv;
mod links;
mod once;
mod permissions;
mod predicted;
mod session;
mod slot_actions;
mod slots;
mod staged;
mod watch;

use std::pin::pin;
use std::time::Duration;

use serde_json::Value;
use stepwell::core::spec::{ActionSpec, Transition};
use stepwell::core::{Definition, Spec};
use stepwell::store::{AuditRow, CommitId, Record, RecordQuery, Store};
use stepwell::testing::TestEngine;
use stepwell::{Clock, Engine, ManualClock, Run, Start};

use crate::kit::{self, soon};

const DAY: Duration = Duration::from_secs(86_400);

/// Advances the clock in small steps until a future that sleeps is done.
async fn as_time_passes<T>(clock: &ManualClock, what: impl Future<Output = T>) -> T {
    let mut what = pin!(what);
    soon(async {
        loop {
            tokio::select! {
                biased;
                done = &mut what => return done,
                () = tokio::time::sleep(Duration::from_millis(1)) => clock.set(clock.now().plus_ms(20)),
            }
        }
    })
    .await
}

/// An action with an input, whose output is saved in a field of the context.
fn call(name: &str, input: Value, field: &str) -> ActionSpec {
    ActionSpec { name: name.into(), input, save_as: Some(field.to_owned()), version: None }
}

/// A workflow that runs these actions in order and then waits for `GO`.
fn chain(name: &str, actions: Vec<ActionSpec>) -> Definition {
    let last = actions.len();
    let mut spec = Spec::new(name).signal("GO").end("done");
    for at in 0..last {
        spec = spec.step(format!("p{at}"));
    }
    spec = spec.wait(format!("p{last}"), "GO").initial("p0");
    for (at, action) in actions.into_iter().enumerate() {
        let (from, to) = (format!("p{at}"), format!("p{}", at + 1));
        spec = spec.transition(Transition::new(format!("t{at}"), from, to).action_with(action));
    }
    spec.auto("end", format!("p{last}"), "done").build().unwrap()
}

/// Starts a run of a workflow that needs no registered actions, and lets it settle.
async fn run_of(definition: Definition, input: &Value) -> (TestEngine, Run) {
    let name = definition.name().clone();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    let run = engine.start(Start::new(name).input(input)).await.unwrap();
    engine.settle().await;
    (engine, run)
}

/// The audit trail in order of time. Rows of the same instant have no defined order.
async fn trail_of_commits(engine: &Engine) -> Vec<(CommitId, AuditRow)> {
    let query = RecordQuery::Audit { limit: 1_000, cursor: None };
    let page = engine.store().records(engine.scope(), query).await.unwrap();
    let row = |record| match record {
        Record::Audit { commit, ordinal, at, row } => ((at, commit, ordinal), row),
        other => panic!("{other:?} is not an audit row"),
    };
    let mut rows: Vec<_> = page.items.into_iter().map(row).collect();
    rows.sort_by_key(|(place, _)| *place);
    rows.into_iter().map(|((_, commit, _), row)| (commit, row)).collect()
}

/// The audit trail without the commit ids.
async fn trail(engine: &Engine) -> Vec<AuditRow> {
    trail_of_commits(engine).await.into_iter().map(|(_, row)| row).collect()
}

/// Advances the clock by one millisecond.
fn tick(engine: &TestEngine) {
    engine.clock().set(engine.now().plus_ms(1));
}
