//! Starts and signals that the engine prepares as commits and the caller applies.

use serde_json::json;
use stepwell::core::{Definition, Refusal, RunId, Spec};
use stepwell::store::{Commit, CommitError, Committed, Refused, Status, Store};
use stepwell::testing::TestEngine;
use stepwell::{EngineError, Signal, Start};

use crate::kit::{self, history_actions, runs_of, soon, status};

/// `a --ab--> b --GO--> c`. The payload of `GO` is a number.
fn gate() -> Definition {
    Spec::new("gate")
        .initial("a")
        .step("a")
        .step("b")
        .end("c")
        .signal_with("GO", json!({"type": "integer"}))
        .auto("ab", "a", "b")
        .on_signal("go", "b", "GO", "c")
        .build()
        .unwrap()
}

async fn engine() -> TestEngine {
    kit::start(|engine| engine.workflow(gate())).await.unwrap()
}

/// Applies a prepared commit directly to the store.
async fn made(engine: &TestEngine, commit: Commit) -> Result<Committed, CommitError> {
    let made = soon(engine.store().commit(engine.scope(), commit)).await;
    engine.settle().await;
    made
}

fn go() -> Signal {
    Signal::new("GO").with(&7)
}

#[tokio::test]
async fn run_starts_when_its_commit_is_applied() {
    let engine = engine().await;
    let (id, commit) = engine.start_commit(Start::new("gate")).await.unwrap();
    engine.settle().await;
    assert!(matches!(engine.run(id).view().await, Err(EngineError::NoRun(run)) if run == id));
    made(&engine, commit).await.unwrap();
    let run = engine.run(id);
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.owner), (Status::Waiting, None));
    assert_eq!(history_actions(&engine, id).await, ["__start", "__auto:ab"]);
    run.signal(go()).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn signal_is_consumed_when_its_commit_is_applied() {
    let engine = engine().await;
    let run = engine.start(Start::new("gate")).await.unwrap();
    engine.settle().await;
    let commit = engine.signal_commit(run.id(), go()).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Waiting, "the commit is not applied yet");
    made(&engine, commit).await.unwrap();
    assert_eq!(status(&run).await, Status::Completed);
}

/// The run does not exist yet when its signal is prepared: both are applied in one transaction.
#[tokio::test]
async fn signal_commit_can_be_prepared_before_its_run_exists() {
    let engine = engine().await;
    let (id, start) = engine.start_commit(Start::new("gate")).await.unwrap();
    let signal = engine.signal_commit(id, go()).await.unwrap();
    let refused = made(&engine, signal.clone()).await.unwrap_err();
    assert!(matches!(refused, CommitError::Refused(Refused::NoTarget { run }) if run == id), "{refused}");
    made(&engine, start).await.unwrap();
    made(&engine, signal).await.unwrap();
    assert_eq!(status(&engine.run(id)).await, Status::Completed);
}

#[tokio::test]
async fn signal_commit_of_an_invalid_signal_is_refused() {
    let engine = engine().await;
    let run = engine.start(Start::new("gate")).await.unwrap();
    engine.settle().await;
    let unknown = engine.signal_commit(run.id(), Signal::new("NEVER")).await.unwrap_err();
    assert!(matches!(unknown, EngineError::Refused(Refusal::UnknownSignal { .. })), "{unknown}");
    let unfit = engine.signal_commit(run.id(), Signal::new("GO").with(&"seven")).await.unwrap_err();
    assert!(matches!(unfit, EngineError::Refused(Refusal::InvalidPayload { .. })), "{unfit}");
    let strict = engine.signal_commit(run.id(), go().strict()).await.unwrap_err();
    assert!(matches!(&strict, EngineError::Invalid(_)), "{strict}");
    assert!(strict.to_string().contains("a strict signal must be accepted or refused at once"), "{strict}");
    assert_eq!(status(&run).await, Status::Waiting);
}

#[tokio::test]
async fn start_commit_of_an_unknown_workflow_is_refused() {
    let engine = engine().await;
    let error = engine.start_commit(Start::new("nothing")).await.unwrap_err();
    assert!(error.to_string().contains("nothing"), "{error}");
}

#[tokio::test]
async fn start_commits_with_the_same_key_create_one_run() {
    let engine = engine().await;
    let (first, commit) = engine.start_commit(Start::new("gate").key("ada's")).await.unwrap();
    let (second, again) = engine.start_commit(Start::new("gate").key("ada's")).await.unwrap();
    assert_ne!(first, second);
    made(&engine, commit).await.unwrap();
    let error = made(&engine, again).await.unwrap_err();
    let CommitError::Refused(Refused::Done { key, answer, .. }) = &error else { panic!("{error}") };
    assert_eq!((key.as_str(), answer.as_ref()), ("ada's", first.to_string().as_bytes()));
    // An ordinary start with the same key finds the run.
    let known = engine.start_once(Start::new("gate").key("ada's")).await.unwrap();
    assert_eq!((known.is_new, known.run.id()), (false, first));
    let other = Start::new("gate").input(&json!({"other": true})).key("ada's");
    let (_, other) = engine.start_commit(other).await.unwrap();
    let error = made(&engine, other).await.unwrap_err();
    assert!(matches!(&error, CommitError::Refused(Refused::KeyReused { .. })), "{error}");
    assert_eq!(runs_of(&engine, "gate").await.len(), 1);
}

#[tokio::test]
async fn signal_commits_with_the_same_id_apply_once() {
    let engine = engine().await;
    let run = engine.start(Start::new("gate")).await.unwrap();
    engine.settle().await;
    let commit = engine.signal_commit(run.id(), go().id("click 1")).await.unwrap();
    let again = engine.signal_commit(run.id(), go().id("click 1")).await.unwrap();
    made(&engine, commit).await.unwrap();
    let error = made(&engine, again).await.unwrap_err();
    assert!(matches!(&error, CommitError::Refused(Refused::Done { .. })), "{error}");
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn start_commit_uses_the_given_run_id() {
    let engine = engine().await;
    let id = RunId::new(uuid::Uuid::from_u128(77));
    let (run, commit) = engine.start_commit(Start::new("gate").id(id)).await.unwrap();
    assert_eq!(run, id);
    let (_, again) = engine.start_commit(Start::new("gate").id(id)).await.unwrap();
    made(&engine, commit).await.unwrap();
    let error = made(&engine, again).await.unwrap_err();
    assert!(matches!(&error, CommitError::Refused(Refused::RunExists { run }) if *run == id), "{error}");
}
