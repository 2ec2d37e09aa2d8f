//! The doctor: each test creates a stuck run, expects a finding with its cause, and applies the suggested remedy.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepwell::core::retry::Retry;
use stepwell::core::spec::Guard;
use stepwell::core::{Limits, Timestamp};
use stepwell::doctor::{FindingKind, Remedy, Severity};
use stepwell::engine::Builder;
use stepwell::host::{BoxFuture, Clock};
use stepwell::store::Status;
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{
    Actor, Command, Diagnose, Diagnosis, EngineError, Event, Finding, Host, ManualClock, Operator, Poll,
    RemoteAction, Schedule, Signal, Start,
};

use crate::kit::{LEASE_MS, Watched, ground, settle, start, start_killable, status, store_within};
use crate::world::{Gate, Script, desk, job};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The time after which a crashed process has certainly been detected.
const NOTICED: Duration = Duration::from_millis(LEASE_MS + LEASE_MS / 3);

async fn diagnosed(engine: &TestEngine) -> Diagnosis {
    engine.diagnose(&Diagnose::default()).await.unwrap()
}

/// The only finding of a kind.
#[track_caller]
fn only(diagnosis: &Diagnosis, kind: FindingKind) -> &Finding {
    let found: Vec<_> = diagnosis.findings.iter().filter(|finding| finding.kind == kind).collect();
    assert_eq!(found.len(), 1, "{kind:?} in {:#?}", diagnosis.findings);
    found[0]
}

/// An engine that accepts calls and claims no runs.
fn idle(engine: Builder) -> Builder {
    engine.with(|options| options.max_runs = 0)
}

#[tokio::test]
async fn a_healthy_engine_has_no_findings() {
    let script = Script::good();
    let action = script.action();
    let engine =
        start(|engine| engine.workflow(job(|work| work)).workflow(desk(|work| work)).action("work", action));
    let engine = engine.await.unwrap();
    engine.start(Start::new("job")).await.unwrap();
    let waits = engine.start(Start::new("desk")).await.unwrap();
    engine.put_schedule(Schedule::new("hourly", "0 * * * *", "job")).await.unwrap();
    engine.advance(90 * MINUTE).await;
    let diagnosis = diagnosed(&engine).await;
    assert_eq!(diagnosis.findings, [], "{diagnosis:#?}");
    assert!(diagnosis.is_healthy());
    assert!(diagnosis.scanned.iter().all(|looked| looked.is_all), "{:?}", diagnosis.scanned);
    assert_eq!(diagnosis.processes.iter().filter(|seen| seen.alive && seen.is_this).count(), 1);
    let one = engine.diagnose_run(waits.id(), &Diagnose::default()).await.unwrap();
    assert_eq!((one.findings.len(), one.waits[0].signals[0].as_str()), (0, "GO"), "{one:#?}");
    assert_eq!(one.remedies[0], Remedy::Signal(waits.id(), "GO".into()));
    assert!(one.next.contains("until a message arrives"), "{}", one.next);
}

#[tokio::test]
async fn failed_runs_are_grouped_by_error() {
    let script = Script::failing(3);
    let action = script.action();
    let engine = start(|engine| engine.workflow(job(|work| work)).action("work", action)).await.unwrap();
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(engine.start(Start::new("job")).await.unwrap());
        engine.settle().await;
    }
    let diagnosis = diagnosed(&engine).await;
    assert!(!diagnosis.is_healthy());
    let finding = only(&diagnosis, FindingKind::RunsFailed);
    assert_eq!((finding.severity, finding.count, finding.since), (Severity::Error, 3, Some(BEGINS)));
    assert!(finding.what.contains("`job`") && finding.what.contains("`busy`"), "{}", finding.what);
    let limited = engine.diagnose(&Diagnose { limit: 2, examples: 1, ..Diagnose::default() }).await.unwrap();
    let finding = only(&limited, FindingKind::RunsFailed);
    assert_eq!((finding.count, finding.examples.len()), (2, 1), "it stops at its limit");
    assert!(
        limited.scanned.iter().any(|looked| looked.kind == "failed runs" && !looked.is_all),
        "incomplete"
    );
    let one = engine.diagnose_run(runs[0].id(), &Diagnose::default()).await.unwrap();
    assert_eq!((one.status, one.failures.len()), (Status::Failed, 1));
    assert!(one.state.contains("failure 1"), "{}", one.state);
    for example in &only(&diagnosis, FindingKind::RunsFailed).examples {
        assert!(example.remedies.contains(&Remedy::Retry(example.run.unwrap())), "{example:?}");
        engine.operate(example.run.unwrap(), Command::Retry, &Operator::default()).await.unwrap();
    }
    engine.settle().await;
    assert_eq!(diagnosed(&engine).await.findings, []);
}

#[tokio::test]
async fn unserved_run_is_reported_with_missing_actions() {
    let (store, clock) = ground().await;
    let asks = TestEngine::start_on(store.clone(), clock.clone(), |engine| {
        idle(engine.workflow(job(|work| work.guard(Guard::Named("weekday".into())))))
    });
    let asks = asks.await.unwrap();
    let run = asks.start(Start::new("job")).await.unwrap();
    let serves = TestEngine::start_on(store, clock, |engine| engine).await.unwrap();
    assert_eq!(diagnosed(&serves).await.findings, [], "it is not late yet");
    serves.advance(2 * MINUTE).await;
    let diagnosis = diagnosed(&serves).await;
    let finding = only(&diagnosis, FindingKind::RunsUnserved);
    let missing = vec!["action `work`".to_owned(), "guard `weekday`".to_owned()];
    assert_eq!(finding.examples[0].remedies[0], Remedy::Register(missing.clone()), "{finding:#?}");
    assert!(finding.what.contains("action `work`"), "{}", finding.what);
    assert_eq!((finding.severity, finding.examples[0].run), (Severity::Error, Some(run.id())));
    let one = serves.diagnose_run(run.id(), &Diagnose::default()).await.unwrap();
    assert_eq!(one.missing, missing);
    assert_eq!(status(&run).await, Status::Running, "it has not failed");
}

#[tokio::test]
async fn unclaimed_run_is_reported_as_late() {
    let (store, clock) = ground().await;
    let script = Script::good();
    let action = script.action();
    let asks = TestEngine::start_on(store.clone(), clock.clone(), |engine| {
        idle(engine.workflow(job(|work| work)).action("work", action))
    });
    let asks = asks.await.unwrap();
    let run = asks.start(Start::new("job")).await.unwrap();
    asks.advance(5 * MINUTE).await;
    let diagnosis = diagnosed(&asks).await;
    let finding = only(&diagnosis, FindingKind::RunsLate);
    assert!(finding.why.contains("no process that executes runs is alive"), "{}", finding.why);
    assert_eq!(finding.examples[0].remedies[0], Remedy::Serve);
    assert!(finding.examples[0].why.contains("5 min"), "{}", finding.examples[0].why);
    let one = asks.diagnose_run(run.id(), &Diagnose::default()).await.unwrap();
    assert!(one.next.contains("`work`") && one.state.contains("no process has claimed it"), "{one:#?}");
    let action = script.action();
    let serves =
        TestEngine::start_on(store, clock, |engine| engine.workflow(job(|work| work)).action("work", action));
    settle(&[&serves.await.unwrap(), &asks]).await;
    assert_eq!(diagnosed(&asks).await.findings, []);
}

#[tokio::test]
async fn orphaned_runs_and_crashing_steps_are_reported() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let action = gate.action();
    let (asks, _asks) = start_killable(store.clone(), &clock, |engine| {
        idle(engine.workflow(job(|work| work)).action("work", action))
    })
    .await;
    let action = gate.action();
    let works = |engine: Builder| engine.workflow(job(|work| work)).action("work", action);
    let (first, tasks) = start_killable(store.clone(), &clock, works).await;
    let run = first.start(Start::new("job")).await.unwrap().id();
    settle(&[&first, &asks]).await;
    assert_eq!(gate.inside(), 1);
    asks.advance(2 * MINUTE).await;
    let one = asks.diagnose_run(run, &Diagnose::default()).await.unwrap();
    assert!(one.owner.as_ref().is_some_and(|owner| owner.alive && !owner.is_this), "{one:#?}");
    let long = Diagnose { long_ms: 30_000, ..Diagnose::default() };
    let diagnosis = asks.diagnose(&long).await.unwrap();
    assert!(only(&diagnosis, FindingKind::RunsLong).examples[0].remedies.contains(&Remedy::Cancel(run)));
    tasks.kill().await;
    asks.advance(NOTICED + 2 * MINUTE).await;
    let diagnosis = diagnosed(&asks).await;
    let finding = only(&diagnosis, FindingKind::RunsOrphaned);
    assert_eq!((finding.severity, &finding.examples[0].remedies[0]), (Severity::Error, &Remedy::Serve));
    assert!(diagnosis.processes.iter().any(|seen| !seen.alive), "{:?}", diagnosis.processes);

    let action = gate.action();
    let (second, tasks) = start_killable(store.clone(), &clock, |engine: Builder| {
        engine.workflow(job(|work| work)).action("work", action)
    })
    .await;
    settle(&[&second, &asks]).await;
    assert_eq!(gate.inside(), 1);
    tasks.kill().await;
    asks.advance(NOTICED).await;
    let action = gate.action();
    let (third, _tasks) = start_killable(store, &clock, |engine: Builder| {
        engine.workflow(job(|work| work)).action("work", action)
    })
    .await;
    settle(&[&third, &asks]).await;
    assert_eq!(gate.inside(), 1);
    let diagnosis = diagnosed(&asks).await;
    let finding = only(&diagnosis, FindingKind::AttemptsCrashing);
    assert!(finding.examples[0].why.starts_with("2 processes crashed"), "{finding:?}");
    gate.open(1);
    settle(&[&third, &asks]).await;
    assert_eq!(diagnosed(&asks).await.findings, []);
}

#[tokio::test]
async fn failing_step_is_reported_with_error_and_next_attempt() {
    let script = Script::bad();
    let action = script.action();
    let retry = Retry { attempts: 100, ..Retry::default() };
    let engine =
        start(|engine| engine.workflow(job(|work| work.retry(retry))).action("work", action)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(10 * MINUTE).await;
    let diagnosis = diagnosed(&engine).await;
    let finding = only(&diagnosis, FindingKind::AttemptsFailing);
    let why = &finding.examples[0].why;
    assert!(why.contains("the line is engaged") && why.contains("next attempt at"), "{why}");
    assert!(diagnosis.is_healthy(), "the run retries by itself");
    let one = engine.diagnose_run(run.id(), &Diagnose::default()).await.unwrap();
    assert!(one.attempts[0].failed >= 5 && one.next_at == one.attempts[0].next, "{one:#?}");
}

#[tokio::test]
async fn suspended_runs_old_waits_and_full_inboxes_are_reported() {
    let limits = Limits { inbox: 5, ..Limits::default() };
    let store = store_within(limits.clone()).await;
    let clock = ManualClock::new(BEGINS);
    let action = Script::good().action();
    let engine = TestEngine::start_on(store, clock, |engine| {
        let engine = engine.workflow(desk(|work| work)).action("work", action);
        engine.with(|options| options.limits = limits)
    });
    let engine = engine.await.unwrap();
    let aside = engine.start(Start::new("desk")).await.unwrap();
    engine.operate(aside.id(), Command::Suspend, &Operator::default()).await.unwrap();
    for _ in 0..4 {
        aside.signal(Signal::new("GO")).await.unwrap();
    }
    let waits = engine.start(Start::new("desk")).await.unwrap();
    let diagnosis = diagnosed(&engine).await;
    let finding = only(&diagnosis, FindingKind::RunsSuspended);
    assert_eq!((finding.severity, finding.count), (Severity::Info, 1));
    let full = only(&diagnosis, FindingKind::InboxesFull);
    assert!(
        full.examples[0].why.contains("4 of 5") && full.examples[0].why.contains("signal:GO"),
        "{full:?}"
    );
    let one = engine.diagnose_run(aside.id(), &Diagnose::default()).await.unwrap();
    assert_eq!((one.inbox.len(), &one.remedies[0]), (4, &Remedy::Resume(aside.id())));
    engine.advance(31 * DAY).await;
    let diagnosis = diagnosed(&engine).await;
    let old = only(&diagnosis, FindingKind::WaitsOld);
    assert_eq!(old.examples[0].run, Some(waits.id()));
    assert!(old.examples[0].remedies.contains(&Remedy::Signal(waits.id(), "GO".into())), "{old:?}");
    engine.operate(aside.id(), Command::Resume, &Operator::default()).await.unwrap();
    // Its buffered signals have expired meanwhile.
    for run in [&aside, &waits] {
        run.signal(Signal::new("GO")).await.unwrap();
    }
    engine.settle().await;
    assert_eq!(diagnosed(&engine).await.findings, []);
}

#[tokio::test]
async fn unleased_tasks_are_reported_until_a_worker_polls() {
    let engine = start(|engine| engine).await.unwrap();
    engine.catalogue().put_action(RemoteAction::new("work")).await.unwrap();
    engine.register(job(|work| work)).unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    assert_eq!(diagnosed(&engine).await.findings, []);
    engine.advance(2 * MINUTE).await;
    let diagnosis = diagnosed(&engine).await;
    let finding = only(&diagnosis, FindingKind::TasksWaiting);
    assert!(finding.what.contains("`work`") && diagnosis.is_healthy(), "{finding:?}");
    assert_eq!((finding.count, finding.examples[0].run), (1, Some(run.id())));
    let taken = engine.tasks().poll(Poll::new("ann", ["work"])).await.unwrap();
    assert_eq!(diagnosed(&engine).await.findings, []);
    engine.tasks().complete(taken[0].id, taken[0].fence, json!("done")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn late_and_failing_schedules_are_reported() {
    let (store, clock) = ground().await;
    let script = Script::bad();
    let action = script.action();
    let works = TestEngine::start_on(store.clone(), clock.clone(), |engine| {
        engine.workflow(job(|work| work)).action("work", action)
    });
    let works = works.await.unwrap();
    works.put_schedule(Schedule::new("hourly", "0 * * * *", "job")).await.unwrap();
    works.advance(61 * MINUTE).await;
    let diagnosis = diagnosed(&works).await;
    let failing = only(&diagnosis, FindingKind::SchedulesFailing);
    let failed = works.schedule("hourly").await.unwrap().unwrap().last_run.unwrap();
    assert!(failing.examples[0].remedies.contains(&Remedy::Retry(failed)), "{failing:?}");
    works.stop(Duration::ZERO).await;
    drop(works);

    let asks =
        TestEngine::start_on(store.clone(), clock.clone(), |engine| idle(engine.workflow(job(|work| work))));
    let asks = asks.await.unwrap();
    asks.advance(3 * 60 * MINUTE).await;
    let diagnosis = diagnosed(&asks).await;
    let late = only(&diagnosis, FindingKind::SchedulesLate);
    assert_eq!(late.examples[0].name.as_deref(), Some("hourly"));
}

#[tokio::test]
async fn undeliverable_event_is_reported_until_delivered() {
    let (store, clock) = ground().await;
    let asks = TestEngine::start_on(store.clone(), clock.clone(), idle).await.unwrap();
    let event = asks.emit(Event::new("PAID").id("1")).await.unwrap().event;
    let watched = Watched::new(store);
    watched.fail_reads(100_000);
    let works = TestEngine::start_on(watched.clone(), clock, |engine| engine).await.unwrap();
    works.advance(30 * MINUTE).await;
    let diagnosis = diagnosed(&works).await;
    let failed = only(&diagnosis, FindingKind::EventsFailed);
    assert_eq!(failed.examples[0].run, Some(event));
    assert!(failed.examples[0].why.contains("next attempt at"), "{failed:?}");
    watched.fail_reads(0);
    works.advance(DAY).await;
    assert_eq!(diagnosed(&works).await.findings, []);
}

#[tokio::test]
async fn unsealed_audit_trail_is_reported_until_maintenance() {
    let engine = start(|engine| engine).await.unwrap();
    let kv = engine.kv("notes");
    for number in 0..1_001 {
        kv.set(&format!("k{number}"), json!(number)).await.unwrap();
    }
    let diagnosis = diagnosed(&engine).await;
    assert_eq!(only(&diagnosis, FindingKind::AuditUnsealed).examples[0].remedies, [Remedy::RunMaintenance]);
    while engine.maintain().await.unwrap().has_more {}
    assert_eq!(diagnosed(&engine).await.findings, []);
}

/// A clock that reports to be five seconds ahead of the computer's own clock.
struct Ahead(ManualClock);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()> {
        self.0.sleep_until(at)
    }

    fn ahead_ms(&self) -> Option<i64> {
        Some(5_000)
    }
}

#[tokio::test]
async fn clock_skew_is_reported() {
    let (store, clock) = ground().await;
    let host = Host::system().with_clock(Arc::new(Ahead(clock.clone())));
    let engine = TestEngine::start_on(store, clock, |engine| engine.host(host)).await.unwrap();
    let diagnosis = diagnosed(&engine).await;
    let away = only(&diagnosis, FindingKind::ClockSkew);
    assert!(away.examples[0].why.contains("5 s behind"), "{away:?}");
}

#[tokio::test]
async fn diagnosis_needs_permission_and_covers_one_tenant() {
    let action = Script::bad().action();
    let engine = start(|engine| engine.workflow(job(|work| work)).action("work", action)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    let nobody = engine.acting(Actor::new("nobody", []));
    let denied = nobody.diagnose(&Diagnose::default()).await;
    assert!(matches!(denied, Err(EngineError::Denied { .. })), "{denied:?}");
    let other = engine.for_tenant(crate::kit::other_tenant());
    assert_eq!(other.diagnose(&Diagnose::default()).await.unwrap().findings, []);
    let unknown = other.diagnose_run(run.id(), &Diagnose::default()).await;
    assert!(matches!(unknown, Err(EngineError::NoRun(_))), "{unknown:?}");
}
