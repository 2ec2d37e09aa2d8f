//! Many concurrent runs on several engines, threads and the system clock: nothing is lost or repeated.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepwell::core::retry::{Backoff, Retry};
use stepwell::core::spec::{Quorum, Transition};
use stepwell::core::{Definition, Spec};
use stepwell::store::Store;
use stepwell::{ActionError, Cx, Engine, Run, Signal, Start};
use stepwell_sqlite::SqliteStore;

use crate::kit::{history_actions, store};
use crate::world::{cell, increment};

const RUNS: usize = 120;

/// One branch runs by itself and fails now and then, the other runs on a signal; both are joined.
fn definition() -> Definition {
    let retry = Retry { attempts: 5, delay_ms: 1, backoff: Backoff::Fixed, ..Retry::default() };
    Spec::new("crowd")
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .join("both", Quorum::All, ["left", "right"])
        .end("done")
        .signal("NEXT")
        .transition(Transition::new("work", "left", "both").action("work").retry(retry.clone()))
        .transition(Transition::new("next", "right", "both").on_signal("NEXT").action("next").retry(retry))
        .auto("finish", "both", "done")
        .build()
        .unwrap()
}

async fn work(cx: Cx) -> Result<(), ActionError> {
    cx.write(increment("work"))?;
    tokio::task::yield_now().await;
    match cx.attempt() {
        1 if cx.run().to_string().ends_with(['0', '3', '6', '9', 'c']) => {
            Err(ActionError::new("busy", "later"))
        }
        _ => Ok(()),
    }
}

async fn next(cx: Cx) -> Result<(), ActionError> {
    cx.write(increment("next"))?;
    cx.update_state(|state: &mut serde_json::Value| state["told"] = cx.payload().clone())?;
    tokio::time::sleep(Duration::from_millis(1)).await;
    if cx.attempt() == 1 { Err(ActionError::new("busy", "later")) } else { Ok(()) }
}

async fn engine(store: &Arc<dyn Store>) -> Engine {
    let engine =
        Engine::builder(store.clone()).workflow(definition()).action("work", work).action("next", next);
    engine.with(|options| options.max_runs = 16).start().await.unwrap()
}

/// Starts a run through one engine and signals it through the other, twice with the same id.
async fn one(number: usize, here: Engine, there: Engine) -> Run {
    let start = || Start::new("crowd").key(format!("run {number}"));
    let run = here.start(start()).await.unwrap();
    assert_eq!(there.start(start()).await.unwrap().id(), run.id());
    for _ in 0..2 {
        there.signal(run.id(), Signal::new("NEXT").with(&number).id("next")).await.unwrap();
    }
    let done = tokio::time::timeout(Duration::from_secs(60), run.result()).await;
    done.expect("it takes too long").unwrap();
    run
}

async fn crowd(store: Arc<dyn Store>) {
    let engines = [engine(&store).await, engine(&store).await];
    let tasks: Vec<_> = (0..RUNS)
        .map(|number| {
            let (here, there) = (engines[number % 2].clone(), engines[1 - number % 2].clone());
            tokio::spawn(one(number, here, there))
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        let run = task.await.unwrap();
        assert_eq!(run.view().await.unwrap().snapshot.context(), &json!({"told": number}));
        let mut history_actions = history_actions(&engines[0], run.id()).await;
        history_actions.sort();
        assert_eq!(history_actions, ["NEXT", "__auto:finish", "__auto:work", "__start"]);
    }
    assert_eq!(cell(&engines[0], "work").await, Some(json!(RUNS)));
    assert_eq!(cell(&engines[0], "next").await, Some(json!(RUNS)));
    for engine in &engines {
        engine.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_runs_lose_and_repeat_nothing() {
    crowd(store().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_runs_on_sqlite_lose_and_repeat_nothing() {
    let folder = tempfile::tempdir().unwrap();
    crowd(Arc::new(SqliteStore::open(folder.path().join("crowd.db")).unwrap())).await;
}
