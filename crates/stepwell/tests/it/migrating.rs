//! Workflow versions: a run keeps the version it started with until a migration, which is one audited commit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::migrate::Mapping;
use stepwell::core::spec::{ChildRule, Place, Transition, Wait};
use stepwell::core::{Definition, Name, Spec};
use stepwell::engine::Builder;
use stepwell::store::{RecordQuery, Status, Store};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Command, Cx, EngineError, Operator, Run, Signal, Start};
use tokio::sync::Semaphore;

use crate::kit::{
    self, after_s, audit, context, error_code, ground, history, other_tenant, places, runs_of, soon, status,
    version, waits_of,
};

/// A permit waits for its stamp. Version 1 calls the place `desk`, version 2 `counter`.
fn permit(edition: u32) -> Spec {
    let place = if edition == 1 { "desk" } else { "counter" };
    Spec::new("permit")
        .version(edition)
        .wait(place, "STAMP")
        .end_with("granted", json!({"edition": edition, "stamp": {"$expr": "event"}}))
        .signal("STAMP")
        .auto("grant", place, "granted")
}

fn first() -> Definition {
    permit(1).build().unwrap()
}

fn second() -> Definition {
    permit(2).build().unwrap()
}

fn mapping(places: &[(&str, &str)]) -> Mapping {
    let places: BTreeMap<_, _> =
        places.iter().map(|(from, to)| (Name::from(*from), Name::from(*to))).collect();
    Mapping { places, context: None }
}

async fn started(build: impl FnOnce(Builder) -> Builder) -> (TestEngine, Run) {
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("permit").input(&json!({"for": "a shed"}))).await.unwrap();
    engine.settle().await;
    (engine, run)
}

async fn stamped(engine: &TestEngine, run: &Run) -> Value {
    run.signal(Signal::new("STAMP").with("seen")).await.unwrap();
    engine.settle().await;
    soon(run.result()).await.unwrap()
}

#[tokio::test]
async fn new_version_does_not_affect_existing_runs() {
    let (engine, run) = started(|builder| builder.workflow(first())).await;
    engine.register(second()).unwrap();
    engine.settle().await;
    let newer = engine.start(Start::new("permit")).await.unwrap();
    engine.settle().await;
    assert_eq!((places(&run).await, places(&newer).await), (vec!["desk".into()], vec!["counter".into()]));
    assert_eq!(stamped(&engine, &run).await, json!({"edition": 1, "stamp": "seen"}));
    assert_eq!(stamped(&engine, &newer).await, json!({"edition": 2, "stamp": "seen"}));
}

#[tokio::test]
async fn older_version_registered_later_is_not_the_default() {
    let (engine, run) = started(|builder| builder.workflow(second())).await;
    engine.register(first()).unwrap();
    let next = engine.start(Start::new("permit")).await.unwrap();
    engine.settle().await;
    assert_eq!((places(&run).await, places(&next).await), (vec!["counter".into()], vec!["counter".into()]));
}

#[tokio::test]
async fn runs_are_pinned_to_the_definition_hash() {
    let (engine, run) = started(|builder| builder.workflow(first())).await;
    engine.register(permit(2).version(1).build().unwrap()).unwrap();
    let newer = engine.start(Start::new("permit")).await.unwrap();
    engine.settle().await;
    assert_eq!((places(&run).await, places(&newer).await), (vec!["desk".into()], vec!["counter".into()]));
    assert_eq!(stamped(&engine, &run).await["edition"], json!(1));
    assert_eq!(stamped(&engine, &newer).await["edition"], json!(2));
}

#[tokio::test]
async fn process_with_only_the_new_version_continues_old_runs() {
    let (store, clock) = ground().await;
    let a = TestEngine::start_on(store.clone(), clock.clone(), |b| b.workflow(first())).await.unwrap();
    let run = a.start(Start::new("permit")).await.unwrap().id();
    a.settle().await;
    drop(a);
    let b = TestEngine::start_on(store, clock, |b| b.workflow(second())).await.unwrap();
    let run = b.run(run);
    assert_eq!(stamped(&b, &run).await, json!({"edition": 1, "stamp": "seen"}));
    let newer = b.start(Start::new("permit")).await.unwrap();
    assert_eq!(stamped(&b, &newer).await["edition"], json!(2));
}

#[tokio::test]
async fn migration_is_one_audited_commit() {
    let (engine, run) = started(|builder| builder.workflow(first())).await;
    engine.register(second()).unwrap();
    let mapping = Mapping { context: Some(json!({"for": "a barn"})), ..mapping(&[("desk", "counter")]) };
    let by = Operator { reason: Some("new law".to_owned()), ..Operator::named("ada").seen(0) };
    let migrated = engine.migrate(run.id(), 2, &mapping, &by, false).await.unwrap();
    assert_eq!((migrated.version, migrated.is_dry), (0, false));
    assert_eq!((migrated.from, migrated.to), (vec!["desk".into()], vec!["counter".into()]));
    let view = run.view().await.unwrap();
    assert_eq!((view.snapshot.version(), view.status), (1, Status::Waiting));
    assert_eq!((view.snapshot.definition_hash(), view.snapshot.definition_version()), (second().hash(), 2));
    assert_eq!(context(&run).await, json!({"for": "a barn"}));
    assert_eq!(runs_of(&engine, "permit").await[0].definition, second().hash());
    let waits: Vec<_> = waits_of(&engine, run.id()).await.into_iter().map(|row| row.wait.place).collect();
    assert_eq!(waits, [Name::from("counter")]);
    let (entry, commit) = history(&engine, run.id()).await.pop().unwrap();
    assert_eq!((entry.action.as_str(), entry.version), ("__operator:migrate", 1));
    let trail = audit(&engine).await;
    let [(id, row)] = &trail[..] else { panic!("{trail:?}") };
    assert_eq!((*id, row.operation.as_str(), row.actor.as_deref()), (commit, "run.migrate", Some("ada")));
    let detail: Value = serde_json::from_slice(&row.detail).unwrap();
    let (from, to) = (first().hash(), second().hash());
    // The trail outlives the run, so it names new data by its fields only.
    let mapping = json!({"places": mapping.places, "context": ["/for"]});
    let expected = json!({"from": from, "to": to, "mapping": mapping});
    assert_eq!(detail, json!({"seen": 0, "reason": "new law", "detail": expected}));
    assert_eq!(stamped(&engine, &run).await, json!({"edition": 2, "stamp": "seen"}));
}

#[tokio::test]
async fn repeated_key_replays_the_migration() {
    let (engine, run) = started(|builder| builder.workflow(first())).await;
    engine.register(second()).unwrap();
    let (mapping, by) = (mapping(&[("desk", "counter")]), Operator::named("ada").seen(0).key("m-1"));
    // A dry run does not consume the idempotency key.
    assert!(engine.migrate(run.id(), 2, &mapping, &by, true).await.unwrap().is_dry);
    let done = engine.migrate_once(run.id(), 2, &mapping, &by, false).await.unwrap();
    let again = engine.migrate_once(run.id(), 2, &mapping, &by, false).await.unwrap();
    assert_eq!((done.is_new, again.is_new), (true, false));
    assert_eq!(done.value, again.value);
    assert_eq!((kit::version(&run).await, audit(&engine).await.len()), (1, 1));
}

#[tokio::test]
async fn migration_stores_the_target_definition() {
    let (store, clock) = ground().await;
    let a = TestEngine::start_on(store.clone(), clock.clone(), |b| b.workflow(first())).await.unwrap();
    let theirs = a.for_tenant(other_tenant());
    let run = theirs.start(Start::new("permit")).await.unwrap().id();
    a.register(second()).unwrap();
    theirs.migrate(run, 2, &mapping(&[("desk", "counter")]), &Operator::default(), false).await.unwrap();
    let query = RecordQuery::Definition(second().hash());
    assert_eq!(store.records(other_tenant(), query).await.unwrap().items.len(), 1);
    drop((a, theirs));
    // A process that was built without either version.
    let b = TestEngine::start_on(store, clock, |b| b).await.unwrap();
    let run = b.for_tenant(other_tenant()).run(run);
    assert_eq!(stamped(&b, &run).await["edition"], json!(2));
}

#[tokio::test]
async fn dry_run_reports_the_outcome_and_changes_nothing() {
    let (engine, run) = started(|builder| builder.workflow(first())).await;
    engine.register(second()).unwrap();
    let before = engine.store().load(engine.scope(), run.id()).await.unwrap();
    let by = Operator::named("ada").seen(0);
    let tried = engine.migrate(run.id(), 2, &mapping(&[("desk", "counter")]), &by, true).await.unwrap();
    assert_eq!((tried.version, tried.is_dry), (0, true));
    assert_eq!((tried.from, tried.to), (vec!["desk".into()], vec!["counter".into()]));
    let error = engine.migrate(run.id(), 2, &Mapping::default(), &by, true).await.unwrap_err();
    assert!(error.to_string().contains("`desk`"), "{error}");
    engine.settle().await;
    let after = engine.store().load(engine.scope(), run.id()).await.unwrap();
    assert_eq!((after, audit(&engine).await), (before, vec![]));
}

#[tokio::test]
async fn migration_reports_every_obstacle() {
    let schema = json!({"type": "object", "required": ["owner", "size"]});
    let (engine, run) = started(|builder| builder.workflow(first())).await;
    engine.register(permit(2).context_schema(schema).build().unwrap()).unwrap();
    let before = engine.store().load(engine.scope(), run.id()).await.unwrap();
    let wrong = mapping(&[("dusk", "counter"), ("granted", "grantet")]);
    for dry in [true, false] {
        let error = engine.migrate(run.id(), 2, &wrong, &Operator::named("ada"), dry).await.unwrap_err();
        let text = error.to_string();
        for part in ["`dusk`", "did you mean `desk`", "`grantet`", "the run is in `desk`", "owner", "size"] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
    let after = engine.store().load(engine.scope(), run.id()).await.unwrap();
    assert_eq!((after, audit(&engine).await), (before, vec![]));
}

#[tokio::test]
async fn impossible_migration_is_refused_with_the_reason() {
    let (engine, run) = started(|builder| builder.workflow(first())).await;
    engine.register(second()).unwrap();
    let (mapping, by) = (mapping(&[("desk", "counter")]), Operator::named("ada"));
    let unknown = engine.migrate(run.id(), 3, &mapping, &by, false).await.unwrap_err();
    assert!(unknown.to_string().contains("no version 3 of workflow `permit`"), "{unknown}");
    let moved = engine.migrate(run.id(), 2, &mapping, &by.clone().seen(4), false).await.unwrap_err();
    assert_eq!(moved, EngineError::VersionMoved { run: run.id(), seen: 4, actual: 0 });
    let theirs = engine.for_tenant(other_tenant());
    let other = theirs.migrate(run.id(), 2, &mapping, &by, false).await.unwrap_err();
    assert_eq!(other, EngineError::NoRun(run.id()));
    let same = engine.migrate(run.id(), 1, &Mapping::default(), &by, false).await.unwrap_err();
    assert!(same.to_string().contains("nothing to migrate"), "{same}");
    assert_eq!(stamped(&engine, &run).await["edition"], json!(1));
    let ended = engine.migrate(run.id(), 2, &mapping, &by, false).await.unwrap_err();
    assert!(ended.to_string().contains("ended"), "{ended}");
    assert_eq!((version(&run).await, audit(&engine).await), (2, vec![]));
}

#[tokio::test]
async fn suspended_run_stays_suspended_after_migration() {
    let (engine, run) = started(|builder| builder.workflow(first())).await;
    engine.register(second()).unwrap();
    engine.operate(run.id(), Command::Suspend, &Operator::default()).await.unwrap();
    let by = Operator::default();
    engine.migrate(run.id(), 2, &mapping(&[("desk", "counter")]), &by, false).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Suspended, vec!["counter".into()]));
    engine.operate(run.id(), Command::Resume, &by).await.unwrap();
    assert_eq!(stamped(&engine, &run).await["edition"], json!(2));
}

/// A check that runs by itself; each version has another action for it.
fn checked(edition: u32) -> Definition {
    let action = stepwell::core::spec::ActionSpec {
        name: format!("check_{edition}").into(),
        input: Value::Null,
        save_as: Some(format!("checked_{edition}")),
        version: None,
    };
    Spec::new("permit")
        .version(edition)
        .step("todo")
        .end_with("granted", json!({"edition": edition}))
        .transition(Transition::new("check", "todo", "granted").action_with(action))
        .build()
        .unwrap()
}

#[tokio::test]
async fn migrated_failed_run_is_retried_with_the_new_version() {
    let broken = |_: Cx| async { Err::<(), _>(ActionError::new("broken", "it is broken")) };
    let works = |_: Cx| async { Ok::<_, ActionError>("yes") };
    let build =
        |builder: Builder| builder.workflow(checked(1)).action("check_1", broken).action("check_2", works);
    let (engine, run) = started(build).await;
    assert_eq!(status(&run).await, Status::Failed);
    engine.register(checked(2)).unwrap();
    engine.migrate(run.id(), 2, &Mapping::default(), &Operator::default(), false).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Failed, 1));
    engine.operate(run.id(), Command::Retry, &Operator::default()).await.unwrap();
    engine.settle().await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"edition": 2}));
    assert_eq!(context(&run).await, json!({"for": "a shed", "checked_2": "yes"}));
}

#[tokio::test]
async fn result_of_an_old_versions_action_is_discarded() {
    let door = Arc::new(Semaphore::new(0));
    let seen = Arc::new(Mutex::new(Vec::<Cx>::new()));
    let slow = {
        let (door, seen) = (door.clone(), seen.clone());
        move |cx: Cx| {
            let (door, seen) = (door.clone(), seen.clone());
            async move {
                seen.lock().unwrap().push(cx);
                door.acquire().await?.forget();
                Ok::<_, ActionError>("old")
            }
        }
    };
    let quick = |_: Cx| async { Ok::<_, ActionError>("new") };
    let build =
        |builder: Builder| builder.workflow(checked(1)).action("check_1", slow).action("check_2", quick);
    let (engine, run) = started(build).await;
    engine.register(checked(2)).unwrap();
    engine.migrate(run.id(), 2, &Mapping::default(), &Operator::default(), false).await.unwrap();
    engine.settle().await;
    door.add_permits(1);
    engine.settle().await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"edition": 2}));
    assert_eq!(context(&run).await, json!({"for": "a shed", "checked_2": "new"}));
    assert!(seen.lock().unwrap()[0].is_over());
}

/// A permit that waits for the neighbours it has asked.
fn neighbours(edition: u32, rule: ChildRule) -> Definition {
    Spec::new("permit")
        .version(edition)
        .step("todo")
        .place("asking", Place::Wait(Wait { children: Some(rule), ..Wait::default() }))
        .end("granted")
        .transition(Transition::new("ask", "todo", "asking").action("ask"))
        .auto("grant", "asking", "granted")
        .build()
        .unwrap()
}

async fn asked(rule: ChildRule) -> (TestEngine, Run) {
    let neighbour = Spec::new("neighbour").wait("asked", "YES").end("agreed").signal("YES");
    let neighbour = neighbour.auto("agree", "asked", "agreed").build().unwrap();
    let ask = |cx: Cx| async move { (0..2).try_for_each(|_| cx.start_child(Start::new("neighbour"))) };
    let build =
        |builder: Builder| builder.workflow(neighbours(1, rule)).workflow(neighbour).action("ask", ask);
    let (engine, run) = started(build).await;
    let child = runs_of(&engine, "neighbour").await.remove(0);
    engine.cancel(child.run).await.unwrap();
    engine.settle().await;
    (engine, run)
}

#[tokio::test]
async fn unsatisfiable_child_rule_of_new_version_stops_the_run() {
    let (engine, run) = asked(ChildRule::AllSettled).await;
    assert_eq!(status(&run).await, Status::Waiting);
    engine.register(neighbours(2, ChildRule::All)).unwrap();
    engine.migrate(run.id(), 2, &Mapping::default(), &Operator::default(), false).await.unwrap();
    engine.settle().await;
    assert_eq!(
        (status(&run).await, error_code(&run).await.as_deref()),
        (Status::Failed, Some("childrenFailed"))
    );
}

#[tokio::test]
async fn migrated_run_still_counts_its_children() {
    let (engine, run) = asked(ChildRule::AllSettled).await;
    engine.register(neighbours(2, ChildRule::Any)).unwrap();
    engine.migrate(run.id(), 2, &Mapping::default(), &Operator::default(), false).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Waiting);
    let child = runs_of(&engine, "neighbour").await.remove(1);
    engine.signal(child.run, Signal::new("YES")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn waits_missing_in_the_new_version_are_closed() {
    let old = Spec::new("permit").step("todo").end("granted").signal("GRANT");
    let old = old.on_signal("grant", "todo", "GRANT", "granted").build().unwrap();
    let new = Spec::new("permit").version(2).step("todo").end("granted");
    let new = new.transition(Transition::new("grant", "todo", "granted").after_ms(60_000)).build().unwrap();
    let (engine, run) = started(|builder| builder.workflow(old)).await;
    assert_eq!(waits_of(&engine, run.id()).await.len(), 1);
    engine.register(new).unwrap();
    engine.migrate(run.id(), 2, &Mapping::default(), &Operator::default(), false).await.unwrap();
    engine.settle().await;
    assert_eq!(waits_of(&engine, run.id()).await, []);
    assert_eq!(run.view().await.unwrap().wake, Some(after_s(60)));
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn run_can_be_forked_from_before_its_migration() {
    let (engine, run) = started(|builder| builder.workflow(first())).await;
    engine.register(second()).unwrap();
    let by = Operator::default();
    engine.migrate(run.id(), 2, &mapping(&[("desk", "counter")]), &by, false).await.unwrap();
    let after = engine.fork(run.id(), 1, &by).await.unwrap();
    assert_eq!(stamped(&engine, &after).await["edition"], json!(2));
    let before = engine.fork(run.id(), 0, &by).await.unwrap();
    assert_eq!(stamped(&engine, &before).await["edition"], json!(1));
}
