//! Bulk commands: one audited command per run, across crashes, with progress, dry run and cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::bulk::BulkResultQuery;
use stepwell::core::spec::{Spec, Transition};
use stepwell::core::{Mapping, RunId};
use stepwell::engine::Builder;
use stepwell::store::{Commit, RunFilter, RunQuery, Status};
use stepwell::testing::TestEngine;
use stepwell::{
    Actor, Bulk, BulkCommand, BulkOutcome, BulkStatus, BulkView, Engine, EngineError, Operator, Permission,
    Signal, Start,
};

use crate::kit::{
    self, Fate, LEASE_MS, Watched, audit, context, ground, places, runs_of, start_killable, status,
};
use crate::world::{Script, desk, job};

const SECOND: Duration = Duration::from_secs(1);
/// The number of runs per batch.
const BATCH: usize = 50;

fn failing(script: &Script) -> impl FnOnce(Builder) -> Builder + use<> {
    let action = script.action();
    move |engine| engine.workflow(job(|work| work)).workflow(desk(|work| work)).action("work", action)
}

/// Starts this many runs of `job`, which all fail.
async fn failed_runs(engine: &TestEngine, count: usize) -> Vec<RunId> {
    let mut runs = Vec::new();
    for _ in 0..count {
        runs.push(engine.start(Start::new("job")).await.unwrap().id());
    }
    engine.settle().await;
    for run in &runs {
        assert_eq!(status(&engine.run(*run)).await, Status::Failed);
    }
    runs
}

fn failed_jobs() -> RunFilter {
    RunFilter { workflow: Some("job".into()), status: vec![Status::Failed], ..RunFilter::default() }
}

/// Starts a bulk command and returns it once all due work is done.
async fn done(engine: &TestEngine, bulk: Bulk) -> BulkView {
    let id = engine.bulk(bulk).await.unwrap().value;
    engine.settle().await;
    engine.bulk_view(id).await.unwrap()
}

fn counts(view: &BulkView) -> (Option<u64>, u64, u64, u64) {
    (view.total, view.done, view.failed, view.skipped)
}

/// The audited commands on a run: operation, actor, and the bulk command that they are a part of.
async fn commands(engine: &Engine, run: RunId) -> Vec<(String, Option<String>, Value)> {
    let rows = audit(engine).await.into_iter().filter(|(_, row)| row.run == Some(run));
    let shown = rows.map(|(_, row)| {
        let detail: Value = serde_json::from_slice(&row.detail).unwrap();
        (row.operation, row.actor, detail["bulk"].clone())
    });
    shown.filter(|(operation, ..)| operation != "run.start").collect()
}

/// All results of a bulk command, read in pages of three.
async fn results(engine: &Engine, id: RunId) -> Vec<(RunId, BulkOutcome, Option<String>)> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let page =
            engine.bulk_results(id, BulkResultQuery { outcome: None, limit: 3, cursor }).await.unwrap();
        all.extend(page.items.into_iter().map(|result| (result.run, result.outcome, result.detail)));
        match page.next {
            Some(next) => cursor = Some(next),
            None => return all,
        }
    }
}

#[tokio::test]
async fn bulk_retry_by_filter_is_one_audited_command_per_run() {
    let script = Script::bad();
    let engine = kit::start(failing(&script)).await.unwrap();
    let runs = failed_runs(&engine, BATCH + 5).await;
    let waiting = engine.start(Start::new("desk")).await.unwrap().id();
    engine.settle().await;
    let ada = engine.acting(Actor::new("ada", [Permission::Manage, Permission::View]));
    let asked = Bulk::filter(BulkCommand::Retry, failed_jobs()).reason("the line is repaired");
    let id = ada.bulk(asked).await.unwrap().value;
    engine.settle().await;
    let view = engine.bulk_view(id).await.unwrap();
    assert_eq!((view.status, counts(&view)), (BulkStatus::Completed, (Some(55), 55, 0, 0)));
    assert_eq!((view.actor.as_deref(), view.reason.as_deref()), (Some("ada"), Some("the line is repaired")));
    assert!(view.ended_at.is_some_and(|ended| ended >= view.started_at));
    for run in &runs {
        let expected = ("run.retry".to_owned(), Some("ada".to_owned()), json!(id));
        assert_eq!(commands(&engine, *run).await, [expected]);
    }
    assert_eq!(script.calls().len(), 2 * runs.len(), "they failed again, and are not retried again");
    assert_eq!(commands(&engine, waiting).await, []);
    let listed = engine.bulks(10, None).await.unwrap().items;
    assert_eq!(listed, [view]);
    let all = results(&engine, id).await;
    assert_eq!(all.len(), runs.len());
    assert!(all.iter().all(|(_, outcome, detail)| *outcome == BulkOutcome::Done && detail.is_none()));
}

#[tokio::test]
async fn bulk_executes_every_command() {
    let engine = kit::start(failing(&Script::good())).await.unwrap();
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(engine.start(Start::new("desk")).await.unwrap().id());
    }
    engine.settle().await;
    let of = |status: Status| RunFilter {
        workflow: Some("desk".into()),
        status: vec![status],
        ..RunFilter::default()
    };
    let all = |command: BulkCommand| Bulk::runs(command, runs.clone());
    let statuses = async || {
        let mut found = Vec::new();
        for run in &runs {
            found.push(status(&engine.run(*run)).await);
        }
        found
    };
    assert_eq!(counts(&done(&engine, all(BulkCommand::Suspend)).await), (Some(4), 4, 0, 0));
    assert_eq!(statuses().await, [Status::Suspended; 4]);
    let resumed = Bulk::filter(BulkCommand::Resume, RunFilter::default());
    assert_eq!(counts(&done(&engine, resumed).await), (Some(4), 4, 0, 0));
    assert_eq!(statuses().await, [Status::Waiting; 4]);

    let signal = |strict| BulkCommand::Signal { name: "GO".into(), payload: json!(7), strict, ttl_ms: None };
    let some = Bulk::runs(signal(true), runs[..2].to_vec());
    assert_eq!(counts(&done(&engine, some).await), (Some(2), 2, 0, 0));
    let view = done(&engine, all(signal(true))).await;
    assert_eq!(counts(&view), (Some(4), 2, 0, 2), "two have ended, so they are skipped");
    assert_eq!(statuses().await, [Status::Completed; 4]);
    let unknown = BulkCommand::Signal { name: "GONE".into(), payload: json!(7), strict: true, ttl_ms: None };
    assert_eq!(done(&engine, all(unknown)).await.done, 0);

    let more = engine.start(Start::new("desk")).await.unwrap().id();
    engine.settle().await;
    let view = done(&engine, Bulk::filter(BulkCommand::Cancel, of(Status::Waiting))).await;
    assert_eq!((counts(&view), status(&engine.run(more)).await), ((Some(1), 1, 0, 0), Status::Cancelled));

    let nobody = RunId::new(uuid::Uuid::from_u128(1));
    let named = runs.iter().copied().chain([nobody, runs[0]]);
    let view = done(&engine, Bulk::runs(BulkCommand::Delete, named)).await;
    assert_eq!(counts(&view), (Some(5), 4, 0, 1), "one is unknown, and one is named twice");
    let (run, outcome, detail) = results(&engine, view.id).await.pop().unwrap();
    assert_eq!((run, outcome), (nobody, BulkOutcome::Skipped));
    assert!(detail.unwrap().contains("there is no run"));
    assert_eq!(runs_of(&engine, "desk").await.len(), 1);
    let deleted =
        commands(&engine, runs[0]).await.into_iter().filter(|(operation, ..)| operation == "run.delete");
    assert_eq!(deleted.map(|(.., bulk)| bulk).collect::<Vec<_>>(), [json!(view.id)]);
}

#[tokio::test]
async fn bulk_migrate_moves_each_run_to_the_version() {
    let version = |version: u32, place: &str| {
        let spec = Spec::new("permit").version(version).step(place).end("over").signal("GO");
        spec.transition(Transition::new("go", place, "over").on_signal("GO")).build().unwrap()
    };
    let engine = kit::start(|engine| engine.workflow(version(1, "desk"))).await.unwrap();
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(engine.start(Start::new("permit")).await.unwrap().id());
    }
    engine.register(version(2, "counter")).unwrap();
    engine.settle().await;
    let unmapped = BulkCommand::Migrate { version: 2, mapping: Mapping::default() };
    let view = done(&engine, Bulk::runs(unmapped, runs.clone())).await;
    assert_eq!((view.status, counts(&view)), (BulkStatus::Completed, (Some(3), 0, 3, 0)));
    assert_eq!(view.failures.len(), 3);
    assert!(view.failures[0].detail.as_ref().unwrap().contains("desk"), "{:?}", view.failures);
    let places_of = [("desk".into(), "counter".into())].into_iter().collect();
    let mapping = Mapping { places: places_of, ..Mapping::default() };
    let command = BulkCommand::Migrate { version: 2, mapping };
    let dry = done(&engine, Bulk::runs(command.clone(), runs.clone()).dry_run()).await;
    assert_eq!((counts(&dry), places(&engine.run(runs[0])).await), ((Some(3), 3, 0, 0), vec!["desk".into()]));
    assert_eq!(counts(&done(&engine, Bulk::runs(command, runs.clone())).await), (Some(3), 3, 0, 0));
    for run in runs {
        assert_eq!(places(&engine.run(run)).await, ["counter"]);
    }
}

#[tokio::test]
async fn bulk_dry_run_changes_nothing() {
    let script = Script::bad();
    let engine = kit::start(failing(&script)).await.unwrap();
    let failed = failed_runs(&engine, 3).await;
    let waiting = engine.start(Start::new("desk")).await.unwrap().id();
    engine.settle().await;
    let named = [failed.clone(), vec![waiting]].concat();
    let commands_of = [
        (BulkCommand::Retry, (3, 0, 1)),
        (BulkCommand::Cancel, (4, 0, 0)),
        (BulkCommand::Suspend, (4, 0, 0)),
        (BulkCommand::Resume, (0, 0, 4)),
        (BulkCommand::Delete, (0, 0, 4)),
        (
            BulkCommand::Signal { name: "GO".into(), payload: json!(1), strict: false, ttl_ms: None },
            (1, 3, 0),
        ),
    ];
    for (command, expected) in commands_of {
        let view = done(&engine, Bulk::runs(command.clone(), named.clone()).dry_run()).await;
        assert_eq!((view.done, view.failed, view.skipped), expected, "{command:?}");
        assert!(view.is_dry);
    }
    assert_eq!(script.calls().len(), 3);
    for run in named {
        assert_eq!(commands(&engine, run).await, []);
    }
}

#[tokio::test]
async fn run_that_does_not_fit_any_more_is_skipped_with_the_reason() {
    let engine = kit::start(failing(&Script::bad())).await.unwrap();
    let runs = failed_runs(&engine, 2).await;
    engine.cancel(runs[0]).await.unwrap();
    let view = done(&engine, Bulk::runs(BulkCommand::Retry, runs.clone())).await;
    assert_eq!((view.status, counts(&view)), (BulkStatus::Completed, (Some(2), 1, 0, 1)));
    let skipped = results(&engine, view.id).await.remove(0);
    assert_eq!((skipped.0, skipped.1), (runs[0], BulkOutcome::Skipped));
    assert!(skipped.2.unwrap().contains("cancelled: it has ended"));
    let query = BulkResultQuery { outcome: Some(BulkOutcome::Done), limit: 10, cursor: None };
    let only = engine.bulk_results(view.id, query).await.unwrap().items;
    assert_eq!(only.iter().map(|result| result.run).collect::<Vec<_>>(), [runs[1]]);
}

#[tokio::test]
async fn bulk_touches_at_most_as_many_runs_as_allowed() {
    let engine = kit::start(failing(&Script::bad())).await.unwrap();
    let runs = failed_runs(&engine, 5).await;
    let view = done(&engine, Bulk::filter(BulkCommand::Cancel, failed_jobs()).most(3)).await;
    assert_eq!(counts(&view), (Some(3), 3, 0, 0));
    let view = done(&engine, Bulk::runs(BulkCommand::Retry, runs.clone()).most(4)).await;
    assert_eq!(counts(&view), (Some(4), 2, 0, 2), "the newest three were cancelled");
}

#[tokio::test]
async fn bulk_does_not_touch_runs_created_later() {
    let (store, clock) = ground().await;
    let script = Script::bad();
    let first = TestEngine::start_on(store.clone(), clock.clone(), failing(&script)).await.unwrap();
    let early = failed_runs(&first, 2).await;
    let accepting = |engine: Builder| failing(&script)(engine).with(|options| options.max_runs = 0);
    let front = TestEngine::start_on(store, clock, accepting).await.unwrap();
    first.stop(Duration::ZERO).await;
    let id = front.bulk(Bulk::filter(BulkCommand::Cancel, failed_jobs())).await.unwrap().value;
    let waiting = front.bulk_view(id).await.unwrap();
    assert_eq!((waiting.status, counts(&waiting)), (BulkStatus::Running, (None, 0, 0, 0)));
    drop(first);
    front.advance(SECOND).await;
    let again = |engine: Builder| failing(&script)(engine);
    let second = TestEngine::start_on(front.store().clone(), front.clock().clone(), again).await.unwrap();
    let late = second.start(Start::new("job")).await.unwrap().id();
    second.settle().await;
    let view = second.bulk_view(id).await.unwrap();
    assert_eq!((view.status, view.done), (BulkStatus::Completed, 2));
    assert_eq!(status(&second.run(late)).await, Status::Failed);
    assert_eq!(status(&second.run(early[0])).await, Status::Cancelled);
}

/// Returns true for the commit that records the results of a batch.
fn is_recording(commit: &Commit) -> bool {
    commit.step.is_some() && !commit.documents.is_empty()
}

#[tokio::test]
async fn cancelled_bulk_leaves_the_rest_untouched() {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner);
    let script = Script::bad();
    let engine = TestEngine::start_on(store.clone(), clock, failing(&script)).await.unwrap();
    let runs = failed_runs(&engine, 2 * BATCH + 20).await;
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let (flag, mut recorded) = (is_cancelled.clone(), 0);
    store.rule(move |commit| {
        recorded += usize::from(is_recording(commit));
        // The second batch is applied, and its results cannot be recorded yet.
        match is_recording(commit) && recorded > 1 && !flag.load(Ordering::SeqCst) {
            true => Fate::Fails,
            false => Fate::Arrives,
        }
    });
    let id = engine.bulk(Bulk::filter(BulkCommand::Cancel, failed_jobs())).await.unwrap().value;
    engine.settle().await;
    let view = engine.bulk_view(id).await.unwrap();
    assert_eq!((view.status, counts(&view)), (BulkStatus::Running, (Some(120), 50, 0, 0)));
    let ada = Operator { reason: Some("a mistake".to_owned()), ..Operator::named("ada") };
    assert_eq!(engine.cancel_bulk(id, &ada).await.unwrap().status, BulkStatus::Cancelling);
    is_cancelled.store(true, Ordering::SeqCst);
    engine.advance(60 * SECOND).await;
    let view = engine.bulk_view(id).await.unwrap();
    assert_eq!((view.status, counts(&view)), (BulkStatus::Cancelled, (Some(120), 100, 0, 0)));
    let mut untouched = 0;
    for run in &runs {
        match status(&engine.run(*run)).await {
            Status::Cancelled => assert_eq!(commands(&engine, *run).await.len(), 1),
            _ => untouched += usize::from(commands(&engine, *run).await.is_empty()),
        }
    }
    assert_eq!(untouched, 20);
    assert!(matches!(engine.cancel_bulk(id, &ada).await, Err(EngineError::WrongStatus { .. })));
    let rows = audit(&engine).await;
    let row = rows.iter().find(|(_, row)| row.operation == "bulk.cancel").map(|(_, row)| row).unwrap();
    assert_eq!((row.subject.clone(), row.actor.as_deref()), (id.to_string(), Some("ada")));
}

/// A process crashes at one of its commits during a bulk command; another one continues.
async fn dies_at(command: BulkCommand, commit: usize, fate: Fate) {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner.clone());
    let script = Script::bad();
    let (first, tasks) = start_killable(store.clone(), &clock, failing(&script)).await;
    let runs = failed_runs(&first, 3).await;
    if command == BulkCommand::Delete {
        for run in &runs {
            first.cancel(*run).await.unwrap();
        }
    }
    let before = commands(&first, runs[0]).await.len();
    let mut left = commit;
    store.rule(move |_| {
        left = left.wrapping_sub(1);
        match left {
            usize::MAX => fate,
            // Every later commit of the process hangs.
            left if left > commit => Fate::Hangs,
            _ => Fate::Arrives,
        }
    });
    let target = Bulk::runs(command.clone(), runs.clone());
    let started = tokio::time::timeout(SECOND, first.bulk(target.key("once"))).await;
    first.settle().await;
    tasks.kill().await;
    let (second, _tasks) = start_killable(inner, &clock, failing(&script)).await;
    second.advance(Duration::from_millis(LEASE_MS + LEASE_MS / 3)).await;
    second.advance(SECOND).await;
    let again = second.bulk(Bulk::runs(command.clone(), runs.clone()).key("once")).await.unwrap();
    if let Ok(Ok(started)) = started {
        assert_eq!((again.value, again.is_new), (started.value, false));
    }
    second.advance(SECOND).await;
    let view = second.bulk_view(again.value).await.unwrap();
    let at = format!("{command:?} at commit {commit} with {fate:?}");
    assert_eq!((view.status, counts(&view)), (BulkStatus::Completed, (Some(3), 3, 0, 0)), "{at}");
    for run in &runs {
        let all = commands(&second, *run).await;
        assert_eq!(all.len(), before + 1, "{at}: {all:?}");
    }
    assert_eq!(results(&second, again.value).await.len(), 3, "{at}");
}

#[tokio::test]
async fn crash_at_any_commit_applies_each_command_once() {
    for command in [BulkCommand::Retry, BulkCommand::Delete] {
        for commit in 0..7 {
            for fate in [Fate::Hangs, Fate::AnswerLost] {
                dies_at(command.clone(), commit, fate).await;
            }
        }
    }
}

#[tokio::test]
async fn the_same_key_is_the_same_bulk_command() {
    let engine = kit::start(failing(&Script::bad())).await.unwrap();
    let runs = failed_runs(&engine, 2).await;
    let asked = |runs: &[RunId]| Bulk::runs(BulkCommand::Cancel, runs.to_vec()).key("monday");
    let first = engine.bulk(asked(&runs)).await.unwrap();
    engine.settle().await;
    let again = engine.bulk(asked(&runs)).await.unwrap();
    assert_eq!((first.is_new, again.is_new, first.value), (true, false, again.value));
    let other = engine.bulk(asked(&runs[..1])).await;
    assert!(matches!(other, Err(EngineError::KeyReused { .. })), "{other:?}");
    // A key of a start is another key.
    assert!(engine.start_once(Start::new("job").key("monday")).await.unwrap().is_new);
}

#[tokio::test]
async fn bulk_needs_the_permission_of_its_command() {
    let engine = kit::start(failing(&Script::bad())).await.unwrap();
    let runs = failed_runs(&engine, 1).await;
    let bob = engine.acting(Actor::new("bob", [Permission::Manage]));
    let migrate = BulkCommand::Migrate { version: 2, mapping: Mapping::default() };
    for command in [BulkCommand::Delete, migrate] {
        let refused = bob.bulk(Bulk::runs(command, runs.clone())).await;
        let Err(EngineError::Denied { permission, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(permission, Permission::Admin);
    }
    let viewer = engine.acting(Actor::new("eve", [Permission::View]));
    let refused = viewer.bulk(Bulk::runs(BulkCommand::Retry, runs.clone())).await;
    assert!(matches!(refused, Err(EngineError::Denied { permission: Permission::Manage, .. })));
    let id = bob.bulk(Bulk::runs(BulkCommand::Retry, runs)).await.unwrap().value;
    let refused = viewer.cancel_bulk(id, &Operator::default()).await;
    assert!(matches!(refused, Err(EngineError::Denied { .. })), "{refused:?}");
}

#[tokio::test]
async fn wrong_bulk_requests_are_refused() {
    let engine = kit::start(failing(&Script::bad())).await.unwrap();
    let run = failed_runs(&engine, 1).await[0];
    let refused = async |bulk: Bulk| engine.bulk(bulk).await.unwrap_err().to_string();
    let none = refused(Bulk::runs(BulkCommand::Retry, [])).await;
    assert!(none.contains("name their ids, or a filter"), "{none}");
    let every = refused(Bulk::filter(BulkCommand::Cancel, RunFilter::default())).await;
    assert!(every.contains("would select every run"), "{every}");
    let zero = refused(Bulk::runs(BulkCommand::Retry, [run]).most(0)).await;
    assert!(zero.contains("must be greater than zero"), "{zero}");
    let many = refused(Bulk::runs(BulkCommand::Retry, [run]).most(1_000_000)).await;
    assert!(many.contains("exceeds the limit `bulk_runs`: 1000000, at most 100000 allowed"), "{many}");
    let ids = (0..1_001).map(|id| RunId::new(uuid::Uuid::from_u128(id)));
    let many = refused(Bulk::runs(BulkCommand::Retry, ids)).await;
    assert!(many.contains("exceeds the limit `bulk_ids`: 1001, at most 1000 allowed"), "{many}");
    assert_eq!(runs_of(&engine, stepwell::bulk::WORKFLOW).await.len(), 0);
    assert!(matches!(engine.bulk_view(run).await, Err(EngineError::NoBulk(_))));
    let refused =
        engine.cancel(engine.bulk(Bulk::runs(BulkCommand::Retry, [run])).await.unwrap().value).await;
    assert!(refused.unwrap_err().to_string().contains("cancel the bulk command"));
}

#[tokio::test]
async fn many_runs_start_with_one_call() {
    let engine = kit::start(failing(&Script::good())).await.unwrap();
    let starts = |count: usize| -> Vec<Start> {
        let start = |number: usize| {
            let workflow = if number == 1 { "nothing" } else { "desk" };
            Start::new(workflow).input(&json!({"number": number})).key(format!("order-{number}"))
        };
        (0..count).map(start).collect()
    };
    let first = engine.start_many(starts(5)).await.unwrap();
    assert_eq!(first.len(), 5);
    assert!(matches!(first[1], Err(EngineError::UnknownWorkflow { .. })));
    let again = engine.start_many(starts(6)).await.unwrap();
    let is_new: Vec<_> = again.iter().map(|one| one.as_ref().is_ok_and(|started| started.is_new)).collect();
    assert_eq!(is_new, [false, false, false, false, false, true]);
    for (number, started) in again.iter().enumerate().filter(|(number, _)| *number != 1) {
        let run = &started.as_ref().unwrap().run;
        assert_eq!(context(run).await, json!({"number": number}), "one result per start, in order");
    }
    assert_eq!(kit::runs(&engine, RunQuery { limit: 50, ..RunQuery::default() }).await.len(), 5);
    let many = engine.start_many(vec![Start::new("desk"); 1_001]).await;
    assert!(many.unwrap_err().to_string().contains("batch_starts"));
    engine.run(again[0].as_ref().unwrap().run.id()).signal(Signal::new("GO")).await.unwrap();
}
