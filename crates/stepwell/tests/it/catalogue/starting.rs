//! Starts by name: they use the active version of the tenant's catalogue, or else the program's built-in workflow.

use std::time::Duration;

use serde_json::json;
use stepwell::catalogue::Publish;
use stepwell::core::WorkflowSource;
use stepwell::core::migrate::Mapping;
use stepwell::store::{RunFilter, RunQuery, Status};
use stepwell::testing::TestEngine;
use stepwell::{CatalogueError, EngineError, Event, Operator, Schedule, Signal, Start};

use super::{answer, engine, publish, result};
use crate::kit::{self, Watched, ground, settle, soon, status};

/// A workflow that waits and then returns this answer.
fn patient(what: &str) -> String {
    format!(
        "steps:\n  - {{ id: wait, type: wait.signal, signal: GO }}\n  - {{ id: say, type: control.return, value: {what} }}\n"
    )
}

#[tokio::test]
async fn the_active_version_is_started() {
    let engine = engine().await;
    let catalogue = engine.catalogue();
    catalogue.publish("greet", Publish::text(answer("1"))).await.unwrap();
    let told = engine.start(Start::new("greet")).await.unwrap_err();
    assert_eq!(told.to_string(), "workflow `greet` cannot be started: no version is active; activate one");
    catalogue.activate("greet", 1).await.unwrap();
    catalogue.publish("greet", Publish::text(answer("2"))).await.unwrap();
    assert_eq!(result(&engine, "greet").await, 1, "publishing alone changes nothing for starts");
    assert_eq!(catalogue.activate("greet", 2).await.unwrap().active, Some(2));
    assert_eq!(result(&engine, "greet").await, 2);
    assert!(catalogue.activate("greet", 1).await.unwrap().is_changed);
    assert_eq!(result(&engine, "greet").await, 1);
    assert!(!catalogue.activate("greet", 1).await.unwrap().is_changed);
    catalogue.deactivate("greet").await.unwrap();
    assert!(matches!(engine.start(Start::new("greet")).await, Err(EngineError::Inactive { .. })));
}

#[tokio::test]
async fn other_processes_use_a_new_version_within_a_second() {
    let (store, clock) = ground().await;
    let one = TestEngine::start_on(store.clone(), clock.clone(), |engine| engine).await.unwrap();
    let two = TestEngine::start_on(store, clock, |engine| engine).await.unwrap();
    publish(&one, "greet", &answer("1")).await;
    assert_eq!(result(&two, "greet").await, 1);
    publish(&one, "greet", &answer("2")).await;
    assert_eq!(result(&one, "greet").await, 2, "the process that published uses it at once");
    two.advance(Duration::from_secs(1)).await;
    assert_eq!(result(&two, "greet").await, 2);
    one.catalogue().archive("greet").await.unwrap();
    two.advance(Duration::from_secs(1)).await;
    assert!(matches!(two.start(Start::new("greet")).await, Err(EngineError::Inactive { .. })));
}

/// Regression: for a second, starts and events in one process did not know a version published in another.
#[tokio::test]
async fn workflows_published_by_another_process_are_found_at_once() {
    let (store, clock) = ground().await;
    let one = TestEngine::start_on(store.clone(), clock.clone(), |engine| engine).await.unwrap();
    let two = TestEngine::start_on(store, clock, |engine| engine).await.unwrap();
    let unknown = two.start(Start::new("greet")).await;
    assert!(matches!(unknown, Err(EngineError::UnknownWorkflow { .. })), "{unknown:?}");
    publish(&one, "greet", &answer("1")).await;
    assert_eq!(result(&two, "greet").await, 1);
    two.catalogue().archive("greet").await.unwrap();
    assert!(matches!(two.start(Start::new("greet")).await, Err(EngineError::Inactive { .. })));
    one.catalogue().restore("greet").await.unwrap();
    assert_eq!(result(&two, "greet").await, 1);
    let trigger = "trigger: { id: paid, type: event, eventName: order.paid }\n";
    publish(&one, "order", &format!("{trigger}{}", answer("2"))).await;
    two.emit(Event::new("order.paid").id("7")).await.unwrap();
    settle(&[&one, &two]).await;
    let runs = two
        .runs(RunQuery { filter: RunFilter::of("order"), limit: 10, ..RunQuery::default() })
        .await
        .unwrap();
    assert_eq!(runs.items.len(), 1, "the event was accepted after the workflow");
}

#[tokio::test]
async fn a_start_does_not_read_the_catalogue_each_time() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let engine = TestEngine::start_on(watched.clone(), clock, |engine| engine).await.unwrap();
    publish(&engine, "greet", &answer("1")).await;
    result(&engine, "greet").await;
    watched.reads();
    for _ in 0..20 {
        result(&engine, "greet").await;
    }
    assert_eq!(watched.reads(), 0);
    engine.advance(Duration::from_secs(1)).await;
    watched.reads();
    for _ in 0..20 {
        result(&engine, "greet").await;
    }
    assert_eq!(watched.reads(), 1, "one cell shows that nothing has changed");
}

#[tokio::test]
async fn an_archived_workflow_cannot_start_but_its_runs_continue() {
    let engine = engine().await;
    publish(&engine, "wait", &patient("1")).await;
    let run = engine.start_once(Start::new("wait").key("k")).await.unwrap().run;
    engine.catalogue().archive("wait").await.unwrap();
    let told = engine.start(Start::new("wait")).await.unwrap_err();
    assert_eq!(told.to_string(), "workflow `wait` cannot be started: it is archived; restore it first");
    let again = engine.start_once(Start::new("wait").key("k")).await.unwrap();
    assert_eq!((again.run.id(), again.is_new), (run.id(), false), "the same key gives the same run");
    let other = engine.start_once(Start::new("wait").key("k").input(&json!({"n": 1}))).await;
    assert!(matches!(other, Err(EngineError::KeyReused { .. })), "{other:?}");
    run.signal(Signal::new("GO")).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), 1);
    let catalogue = engine.catalogue();
    let refused = catalogue.publish("wait", Publish::text(answer("2"))).await;
    assert!(matches!(refused, Err(CatalogueError::Archived(_))), "{refused:?}");
    assert!(matches!(catalogue.activate("wait", 1).await, Err(CatalogueError::Archived(_))));
    assert_eq!(catalogue.restore("wait").await.unwrap().active, Some(1));
    assert_eq!(status(&engine.start(Start::new("wait")).await.unwrap()).await, Status::Waiting);
}

#[tokio::test]
async fn a_run_keeps_the_version_it_started_with() {
    let (store, clock) = ground().await;
    let engine = TestEngine::start_on(store.clone(), clock.clone(), |engine| engine).await.unwrap();
    publish(&engine, "wait", &patient("1")).await;
    let run = engine.start(Start::new("wait")).await.unwrap().id();
    publish(&engine, "wait", &patient("2")).await;
    // The other process knows both versions only from the store.
    let other = TestEngine::start_on(store, clock, |engine| engine).await.unwrap();
    let later = other.start(Start::new("wait")).await.unwrap().id();
    for (run, expected) in [(run, 1), (later, 2)] {
        other.signal(run, Signal::new("GO")).await.unwrap();
        assert_eq!(soon(other.run(run).result()).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_run_is_migrated_to_a_published_version_of_its_own_tenant() {
    let engine = engine().await;
    // Another tenant has a version 2 of the same name.
    let other = engine.for_tenant(kit::other_tenant());
    publish(&other, "wait", &patient("8")).await;
    publish(&other, "wait", &patient("9")).await;
    let theirs = other.start(Start::new("wait")).await.unwrap();
    publish(&engine, "wait", &patient("1")).await;
    let run = engine.start(Start::new("wait")).await.unwrap();
    let mapping = Mapping { places: Default::default(), context: None };
    let refused = engine.migrate(run.id(), 2, &mapping, &Operator::named("ops"), false).await;
    assert!(refused.is_err(), "{refused:?}");
    publish(&engine, "wait", &patient("2")).await;
    engine.migrate(run.id(), 2, &mapping, &Operator::named("ops"), false).await.unwrap();
    for (engine, run, expected) in [(&*engine, run, 2), (&other, theirs, 9)] {
        engine.signal(run.id(), Signal::new("GO")).await.unwrap();
        assert_eq!(soon(run.result()).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_built_in_workflow_is_used_until_one_is_published() {
    let brought = WorkflowSource::read(&answer("0"), Some("greet")).unwrap().definition().clone();
    let engine = kit::start(|engine| engine.workflow(brought)).await.unwrap();
    assert_eq!(result(&engine, "greet").await, 0);
    let catalogue = engine.catalogue();
    let draft = catalogue.put_draft("greet", answer("1"), 0).await.unwrap();
    assert_eq!(result(&engine, "greet").await, 0, "a draft is not started");
    catalogue.publish("greet", Publish::draft(draft.revision).activate()).await.unwrap();
    assert_eq!(result(&engine, "greet").await, 1);
    catalogue.deactivate("greet").await.unwrap();
    assert!(matches!(engine.start(Start::new("greet")).await, Err(EngineError::Inactive { .. })));
    let other = engine.for_tenant(kit::other_tenant());
    assert_eq!(result(&other, "greet").await, 0, "another tenant has published nothing");
}

#[tokio::test]
async fn a_workflow_calls_the_active_version_of_another() {
    let engine = engine().await;
    let caller = "steps:\n  - { id: inner, type: workflow.call, workflow: inner }\n  - { type: control.return, value: { $expr: vars.inner } }\n";
    publish(&engine, "outer", caller).await;
    publish(&engine, "inner", &answer("1")).await;
    assert_eq!(result(&engine, "outer").await, 1);
    publish(&engine, "inner", &answer("2")).await;
    assert_eq!(result(&engine, "outer").await, 2);
    engine.catalogue().archive("inner").await.unwrap();
    let run = engine.start(Start::new("outer")).await.unwrap();
    let told = soon(run.result()).await.unwrap_err().to_string();
    assert!(told.contains("`inner` cannot be started: it is archived"), "{told}");
}

#[tokio::test]
async fn an_unreadable_catalogue_delays_runs_but_fails_none() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let engine = TestEngine::start_on(watched.clone(), clock, |engine| engine).await.unwrap();
    let caller = "steps:\n  - { type: wait.sleep, for: 5s }\n  - { id: inner, type: workflow.call, workflow: inner }\n  - { type: control.return, value: { $expr: vars.inner } }\n";
    publish(&engine, "outer", caller).await;
    publish(&engine, "inner", &answer("1")).await;
    let run = engine.start(Start::new("outer")).await.unwrap();
    watched.fail_reads(2);
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!(watched.unread(), 0, "the reads failed when the inner run was started");
    assert_eq!(soon(run.result()).await.unwrap(), 1);
}

#[tokio::test]
async fn a_schedule_starts_the_active_version_or_skips() {
    let engine = engine().await;
    publish(&engine, "greet", &answer("1")).await;
    engine.put_schedule(Schedule::new("hourly", "0 * * * *", "greet")).await.unwrap();
    let hour = Duration::from_secs(3_600);
    engine.advance(hour).await;
    publish(&engine, "greet", &answer("2")).await;
    engine.advance(hour).await;
    engine.catalogue().archive("greet").await.unwrap();
    engine.advance(hour).await;
    engine.catalogue().restore("greet").await.unwrap();
    engine.advance(hour).await;
    let stands = engine.schedule("hourly").await.unwrap().unwrap();
    assert_eq!((stands.fired, stands.skipped), (3, 1));
    let mut results = Vec::new();
    for run in kit::runs_of(&engine, "greet").await {
        results.push(soon(engine.run(run.run).result()).await.unwrap());
    }
    assert_eq!(results, [json!(1), json!(2), json!(2)]);
}

#[tokio::test]
async fn all_startable_workflows_are_listed() {
    let engine = engine().await;
    for name in ["a", "b", "c"] {
        publish(&engine, name, &answer("1")).await;
    }
    engine.catalogue().archive("a").await.unwrap();
    engine.catalogue().publish("b", Publish::text(answer("2"))).await.unwrap();
    let active = engine.catalogue().active().await.unwrap().items;
    let told: Vec<_> = active.iter().map(|one| (one.name().as_str(), one.version())).collect();
    assert_eq!(told, [("b", 1), ("c", 1)]);
}
