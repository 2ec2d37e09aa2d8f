//! Data that outlives runs: slots, keys and links, who may touch them, and the trail of whoever did.

mod actions;
mod audit;
mod foreseen;
mod kv;
mod links;
mod once;
mod permissions;
mod session;
mod slots;
mod staged;
mod watch;

use std::pin::pin;
use std::time::Duration;

use serde_json::Value;
use stepwell::core::spec::{Action, Transition};
use stepwell::core::{Definition, Spec};
use stepwell::store::{AuditRow, CommitId, Record, RecordQuery, Store};
use stepwell::testing::TestEngine;
use stepwell::{Clock, Engine, ManualClock, Run, Start};

use crate::kit::{self, soon};

const DAY: Duration = Duration::from_secs(86_400);

/// Lets time pass, a little at a time, until something is done that sleeps now and then.
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

/// An action with an input whose output goes into a field of the context.
fn call(name: &str, input: Value, field: &str) -> Action {
    Action { name: name.into(), input, save_as: Some(field.to_owned()), version: None }
}

/// A workflow that does these one after the other and then waits for `GO`.
fn chain(name: &str, actions: Vec<Action>) -> Definition {
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

/// An engine that has come as far as it can with a run of a workflow that needs no actions of its own.
async fn run_of(definition: Definition, input: &Value) -> (TestEngine, Run) {
    let name = definition.name().clone();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    let run = engine.start(Start::new(name).input(input)).await.unwrap();
    engine.settle().await;
    (engine, run)
}

/// The audit trail in the order of time; what happens at the same instant is in no order.
async fn trail_of_commits(engine: &Engine) -> Vec<(CommitId, AuditRow)> {
    let query = RecordQuery::Audit { limit: 1_000, cursor: None };
    let page = engine.store().records(engine.scope(), query).await.unwrap();
    let row = |record| match record {
        Record::Audit { commit, ordinal, at, row } => ((at, commit, ordinal), row),
        other => panic!("{other:?} is no row of the audit trail"),
    };
    let mut rows: Vec<_> = page.items.into_iter().map(row).collect();
    rows.sort_by_key(|(place, _)| *place);
    rows.into_iter().map(|((_, commit, _), row)| (commit, row)).collect()
}

/// The same without the commits.
async fn trail(engine: &Engine) -> Vec<AuditRow> {
    trail_of_commits(engine).await.into_iter().map(|(_, row)| row).collect()
}

/// A moment passes.
fn tick(engine: &TestEngine) {
    engine.clock().set(engine.now().plus_ms(1));
}
