//! The doctor: what is stuck is made for real, is named with why, and the remedy it names works.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepwell::core::retry::Retry;
use stepwell::core::spec::Guard;
use stepwell::core::{Limits, Timestamp};
use stepwell::doctor::{Kind, Remedy, Severity};
use stepwell::engine::Builder;
use stepwell::host::{BoxFuture, Clock};
use stepwell::store::Status;
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{
    Actor, Command, Diagnose, Diagnosis, EngineError, Event, Finding, Host, ManualClock, Operator, Poll,
    RemoteAction, Schedule, Signal, Start,
};

use crate::kit::{LEASE_MS, Watched, ground, mortal, settle, start, status, store_within};
use crate::world::{Gate, Script, desk, job};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// When a process that has died has been noticed for certain.
const NOTICED: Duration = Duration::from_millis(LEASE_MS + LEASE_MS / 3);

async fn diagnosed(engine: &TestEngine) -> Diagnosis {
    engine.diagnose(&Diagnose::default()).await.unwrap()
}

/// The one finding of a kind.
#[track_caller]
fn only(diagnosis: &Diagnosis, kind: Kind) -> &Finding {
    let found: Vec<_> = diagnosis.findings.iter().filter(|finding| finding.kind == kind).collect();
    assert_eq!(found.len(), 1, "{kind:?} in {:#?}", diagnosis.findings);
    found[0]
}

/// Somebody who only answers, and works on nothing.
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
    assert!(diagnosis.looked.iter().all(|looked| looked.is_all), "{:?}", diagnosis.looked);
    assert_eq!(diagnosis.processes.iter().filter(|seen| seen.lives && seen.is_this).count(), 1);
    let one = engine.diagnose_run(waits.id(), &Diagnose::default()).await.unwrap();
    assert_eq!((one.findings.len(), one.waits[0].signals[0].as_str()), (0, "GO"), "{one:#?}");
    assert_eq!(one.remedies[0], Remedy::Signal(waits.id(), "GO".into()));
    assert!(one.next.contains("until something comes"), "{}", one.next);
}

#[tokio::test]
async fn failed_runs_are_grouped_by_their_error_and_the_remedy_retries_them() {
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
    let finding = only(&diagnosis, Kind::RunsFailed);
    assert_eq!((finding.severity, finding.count, finding.since), (Severity::Error, 3, Some(BEGINS)));
    assert!(finding.what.contains("`job`") && finding.what.contains("`busy`"), "{}", finding.what);
    let limited = engine.diagnose(&Diagnose { limit: 2, examples: 1, ..Diagnose::default() }).await.unwrap();
    let finding = only(&limited, Kind::RunsFailed);
    assert_eq!((finding.count, finding.examples.len()), (2, 1), "it stops at its limit");
    assert!(limited.looked.iter().any(|looked| looked.at == "failed runs" && !looked.is_all), "and says so");
    let one = engine.diagnose_run(runs[0].id(), &Diagnose::default()).await.unwrap();
    assert_eq!((one.status, one.failures.len()), (Status::Failed, 1));
    assert!(one.stands.contains("failure 1"), "{}", one.stands);
    for example in &only(&diagnosis, Kind::RunsFailed).examples {
        assert!(example.remedies.contains(&Remedy::Retry(example.run.unwrap())), "{example:?}");
        engine.operate(example.run.unwrap(), Command::Retry, &Operator::default()).await.unwrap();
    }
    engine.settle().await;
    assert_eq!(diagnosed(&engine).await.findings, []);
}

#[tokio::test]
async fn a_run_that_nobody_can_serve_is_named_with_what_is_missing() {
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
    let finding = only(&diagnosis, Kind::RunsUnserved);
    let missing = vec!["action `work`".to_owned(), "guard `weekday`".to_owned()];
    assert_eq!(finding.examples[0].remedies[0], Remedy::Register(missing.clone()), "{finding:#?}");
    assert!(finding.what.contains("action `work`"), "{}", finding.what);
    assert_eq!((finding.severity, finding.examples[0].run), (Severity::Error, Some(run.id())));
    let one = serves.diagnose_run(run.id(), &Diagnose::default()).await.unwrap();
    assert_eq!(one.missing, missing);
    assert_eq!(status(&run).await, Status::Running, "it has not failed");
}

#[tokio::test]
async fn a_run_that_nobody_takes_is_late_and_a_process_that_works_takes_it() {
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
    let finding = only(&diagnosis, Kind::RunsLate);
    assert!(finding.why.contains("no process that works on runs lives"), "{}", finding.why);
    assert_eq!(finding.examples[0].remedies[0], Remedy::Serve);
    assert!(finding.examples[0].why.contains("5 min"), "{}", finding.examples[0].why);
    let one = asks.diagnose_run(run.id(), &Diagnose::default()).await.unwrap();
    assert!(one.next.contains("`work`") && one.stands.contains("nobody has taken it"), "{one:#?}");
    let action = script.action();
    let serves =
        TestEngine::start_on(store, clock, |engine| engine.workflow(job(|work| work)).action("work", action));
    settle(&[&serves.await.unwrap(), &asks]).await;
    assert_eq!(diagnosed(&asks).await.findings, []);
}

#[tokio::test]
async fn what_a_dead_process_owned_is_named_and_so_are_steps_under_which_processes_die() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let action = gate.action();
    let (asks, _asks) = mortal(store.clone(), &clock, |engine| {
        idle(engine.workflow(job(|work| work)).action("work", action))
    })
    .await;
    let action = gate.action();
    let works = |engine: Builder| engine.workflow(job(|work| work)).action("work", action);
    let (first, tasks) = mortal(store.clone(), &clock, works).await;
    let run = first.start(Start::new("job")).await.unwrap().id();
    settle(&[&first, &asks]).await;
    assert_eq!(gate.inside(), 1);
    asks.advance(2 * MINUTE).await;
    let one = asks.diagnose_run(run, &Diagnose::default()).await.unwrap();
    assert!(one.owner.as_ref().is_some_and(|owner| owner.lives && !owner.is_this), "{one:#?}");
    let long = Diagnose { long_ms: 30_000, ..Diagnose::default() };
    let diagnosis = asks.diagnose(&long).await.unwrap();
    assert!(only(&diagnosis, Kind::RunsLong).examples[0].remedies.contains(&Remedy::Cancel(run)));
    tasks.kill().await;
    asks.advance(NOTICED + 2 * MINUTE).await;
    let diagnosis = diagnosed(&asks).await;
    let finding = only(&diagnosis, Kind::RunsOrphaned);
    assert_eq!((finding.severity, &finding.examples[0].remedies[0]), (Severity::Error, &Remedy::Serve));
    assert!(diagnosis.processes.iter().any(|seen| !seen.lives), "{:?}", diagnosis.processes);

    let action = gate.action();
    let (second, tasks) = mortal(store.clone(), &clock, |engine: Builder| {
        engine.workflow(job(|work| work)).action("work", action)
    })
    .await;
    settle(&[&second, &asks]).await;
    assert_eq!(gate.inside(), 1);
    tasks.kill().await;
    asks.advance(NOTICED).await;
    let action = gate.action();
    let (third, _tasks) =
        mortal(store, &clock, |engine: Builder| engine.workflow(job(|work| work)).action("work", action))
            .await;
    settle(&[&third, &asks]).await;
    assert_eq!(gate.inside(), 1);
    let diagnosis = diagnosed(&asks).await;
    let finding = only(&diagnosis, Kind::TriesDying);
    assert!(finding.examples[0].why.starts_with("2 processes died"), "{finding:?}");
    gate.open(1);
    settle(&[&third, &asks]).await;
    assert_eq!(diagnosed(&asks).await.findings, []);
}

#[tokio::test]
async fn a_step_that_fails_again_and_again_is_named_with_its_error_and_its_next_try() {
    let script = Script::bad();
    let action = script.action();
    let retry = Retry { attempts: 100, ..Retry::default() };
    let engine =
        start(|engine| engine.workflow(job(|work| work.retry(retry))).action("work", action)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(10 * MINUTE).await;
    let diagnosis = diagnosed(&engine).await;
    let finding = only(&diagnosis, Kind::TriesFailing);
    let why = &finding.examples[0].why;
    assert!(why.contains("the line is engaged") && why.contains("tried again at"), "{why}");
    assert!(diagnosis.is_healthy(), "it goes on by itself");
    let one = engine.diagnose_run(run.id(), &Diagnose::default()).await.unwrap();
    assert!(one.tries[0].failed >= 5 && one.next_at == one.tries[0].next, "{one:#?}");
}

#[tokio::test]
async fn suspended_runs_old_waits_and_full_inboxes_are_named() {
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
    let finding = only(&diagnosis, Kind::RunsSuspended);
    assert_eq!((finding.severity, finding.count), (Severity::Info, 1));
    let full = only(&diagnosis, Kind::InboxesFull);
    assert!(
        full.examples[0].why.contains("4 of 5") && full.examples[0].why.contains("signal:GO"),
        "{full:?}"
    );
    let one = engine.diagnose_run(aside.id(), &Diagnose::default()).await.unwrap();
    assert_eq!((one.kept.len(), &one.remedies[0]), (4, &Remedy::Resume(aside.id())));
    engine.advance(31 * DAY).await;
    let diagnosis = diagnosed(&engine).await;
    let old = only(&diagnosis, Kind::WaitsOld);
    assert_eq!(old.examples[0].run, Some(waits.id()));
    assert!(old.examples[0].remedies.contains(&Remedy::Signal(waits.id(), "GO".into())), "{old:?}");
    engine.operate(aside.id(), Command::Resume, &Operator::default()).await.unwrap();
    // What it kept has expired meanwhile.
    for run in [&aside, &waits] {
        run.signal(Signal::new("GO")).await.unwrap();
    }
    engine.settle().await;
    assert_eq!(diagnosed(&engine).await.findings, []);
}

#[tokio::test]
async fn tasks_that_no_worker_takes_are_named_until_one_does() {
    let engine = start(|engine| engine).await.unwrap();
    engine.catalogue().put_action(RemoteAction::new("work")).await.unwrap();
    engine.register(job(|work| work)).unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    assert_eq!(diagnosed(&engine).await.findings, []);
    engine.advance(2 * MINUTE).await;
    let diagnosis = diagnosed(&engine).await;
    let finding = only(&diagnosis, Kind::TasksWaiting);
    assert!(finding.what.contains("`work`") && diagnosis.is_healthy(), "{finding:?}");
    assert_eq!((finding.count, finding.examples[0].run), (1, Some(run.id())));
    let taken = engine.tasks().poll(Poll::new("ann", ["work"])).await.unwrap();
    assert_eq!(diagnosed(&engine).await.findings, []);
    engine.tasks().complete(taken[0].id, taken[0].fence, json!("done")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn schedules_that_are_late_or_whose_runs_fail_are_named() {
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
    let failing = only(&diagnosis, Kind::SchedulesFailing);
    let failed = works.schedule("hourly").await.unwrap().unwrap().last_run.unwrap();
    assert!(failing.examples[0].remedies.contains(&Remedy::Retry(failed)), "{failing:?}");
    works.stop(Duration::ZERO).await;
    drop(works);

    let asks =
        TestEngine::start_on(store.clone(), clock.clone(), |engine| idle(engine.workflow(job(|work| work))));
    let asks = asks.await.unwrap();
    asks.advance(3 * 60 * MINUTE).await;
    let diagnosis = diagnosed(&asks).await;
    let late = only(&diagnosis, Kind::SchedulesLate);
    assert_eq!(late.examples[0].name.as_deref(), Some("hourly"));
}

#[tokio::test]
async fn an_event_that_cannot_be_delivered_is_named_until_it_is() {
    let (store, clock) = ground().await;
    let asks = TestEngine::start_on(store.clone(), clock.clone(), idle).await.unwrap();
    let event = asks.emit(Event::new("PAID").id("1")).await.unwrap().event;
    let watched = Watched::new(store);
    watched.fail_reads(100_000);
    let works = TestEngine::start_on(watched.clone(), clock, |engine| engine).await.unwrap();
    works.advance(30 * MINUTE).await;
    let diagnosis = diagnosed(&works).await;
    let failed = only(&diagnosis, Kind::EventsFailed);
    assert_eq!(failed.examples[0].run, Some(event));
    assert!(failed.examples[0].why.contains("tried again at"), "{failed:?}");
    watched.fail_reads(0);
    works.advance(DAY).await;
    assert_eq!(diagnosed(&works).await.findings, []);
}

#[tokio::test]
async fn an_audit_trail_that_nobody_seals_is_named_and_tidying_up_seals_it() {
    let engine = start(|engine| engine).await.unwrap();
    let kv = engine.kv("notes");
    for number in 0..1_001 {
        kv.set(&format!("k{number}"), json!(number)).await.unwrap();
    }
    let diagnosis = diagnosed(&engine).await;
    assert_eq!(only(&diagnosis, Kind::AuditUnsealed).examples[0].remedies, [Remedy::TidyUp]);
    while engine.tidy().await.unwrap().has_more {}
    assert_eq!(diagnosed(&engine).await.findings, []);
}

/// A clock that follows another, which is five seconds ahead.
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
async fn a_clock_that_is_not_the_databases_is_named() {
    let (store, clock) = ground().await;
    let host = Host::system().with_clock(Arc::new(Ahead(clock.clone())));
    let engine = TestEngine::start_on(store, clock, |engine| engine.host(host)).await.unwrap();
    let diagnosis = diagnosed(&engine).await;
    let away = only(&diagnosis, Kind::ClockAway);
    assert!(away.examples[0].why.contains("5 s behind"), "{away:?}");
}

#[tokio::test]
async fn a_doctor_is_asked_by_those_who_may_see_runs_and_for_their_own_tenant() {
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
