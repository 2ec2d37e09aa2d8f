//! Concurrency and rate limits: runs are admitted in order of arrival, never more than allowed, across crashes, failures
//! and processes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::admission::{ConcurrencyLimit, LimitKind, RateLimit, WhenFull};
use stepwell::core::spec::{ChildRule, Place, Transition, Wait};
use stepwell::core::{Definition, Name, RunId, Spec};
use stepwell::doctor::FindingKind;
use stepwell::engine::Builder;
use stepwell::store::{Cleanup, CleanupKind, RunFilter, RunQuery, Status, Store};
use stepwell::testing::TestEngine;
use stepwell::{
    ActionError, Command, Cx, Diagnose, EngineError, Event, ManualClock, Operator, Schedule, Signal, Start,
};

use crate::kit::{
    self, Fate, LEASE_MS, Watched, ground, history_actions, runs_of, settle, start_killable, status,
};

/// The time after which a crashed process has certainly been detected.
const NOTICED: Duration = Duration::from_millis(LEASE_MS + LEASE_MS / 3);

/// The runs in the order in which they began.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<Vec<RunId>>>);

impl Begun {
    fn runs(&self) -> Vec<RunId> {
        self.0.lock().unwrap().clone()
    }

    fn action(&self) -> impl Fn(Cx) -> std::future::Ready<Result<(), ActionError>> + Send + Sync + use<> {
        let begun = self.0.clone();
        move |cx| {
            let mut begun = begun.lock().unwrap();
            // A crash may repeat the attempt.
            if !begun.contains(&cx.run()) {
                begun.push(cx.run());
            }
            std::future::ready(Ok(()))
        }
    }
}

async fn breaks(_: Cx) -> Result<(), ActionError> {
    Err(ActionError::new("broken", "it is broken"))
}

/// A job notes that it began, works until `DONE`, and fails at `BREAK`. Its key is `context.key`.
fn job() -> Spec {
    Spec::new("job")
        .initial("todo")
        .step("todo")
        .step("work")
        .end("done")
        .signal("DONE")
        .signal("BREAK")
        .transition(Transition::new("begin", "todo", "work").action("begin"))
        .on_signal("finish", "work", "DONE", "done")
        .transition(Transition::new("fail", "work", "done").on_signal("BREAK").action("breaks"))
}

fn by_key() -> Option<Value> {
    Some(json!({"$expr": "context.key"}))
}

fn at_most(limit: u32, when_full: WhenFull) -> Definition {
    job().concurrency(ConcurrencyLimit { key: by_key(), limit, when_full }).build().unwrap()
}

fn per_minute(limit: u32, burst: Option<u32>) -> Definition {
    job().rate_limit(RateLimit { key: by_key(), limit, per_ms: 60_000, burst }).build().unwrap()
}

fn serving(definition: Definition, begun: &Begun) -> impl FnOnce(Builder) -> Builder + use<> {
    let begin = begun.action();
    move |engine| engine.workflow(definition).action("begin", begin).action("breaks", breaks)
}

async fn open(definition: Definition) -> (TestEngine, Begun) {
    let begun = Begun::default();
    let engine = kit::start(serving(definition, &begun)).await.unwrap();
    (engine, begun)
}

fn of(key: &str) -> Start {
    Start::new("job").input(&json!({"key": key}))
}

async fn starts(engine: &TestEngine, key: &str, count: usize) -> Vec<RunId> {
    let mut runs = Vec::new();
    for _ in 0..count {
        runs.push(engine.start(of(key)).await.unwrap().id());
    }
    engine.settle().await;
    runs
}

async fn done(engine: &TestEngine, run: RunId) {
    engine.signal(run, Signal::new("DONE")).await.unwrap();
    engine.settle().await;
}

async fn statuses(engine: &TestEngine, runs: &[RunId]) -> Vec<Status> {
    let mut found = Vec::new();
    for run in runs {
        found.push(status(&engine.run(*run)).await);
    }
    found
}

// Concurrency.

#[tokio::test]
async fn runs_of_a_key_wait_for_their_turn_in_order_of_arrival() {
    let (engine, begun) = open(at_most(2, WhenFull::Wait)).await;
    let runs = starts(&engine, "a", 5).await;
    let other = starts(&engine, "b", 1).await;
    use Status::{Completed, Pending, Waiting};
    assert_eq!(statuses(&engine, &runs).await, [Waiting, Waiting, Pending, Pending, Pending]);
    assert_eq!(statuses(&engine, &other).await, [Waiting], "another key has a limit of its own");
    let waits = engine.run(runs[3]).view().await.unwrap();
    let queued = engine.run(runs[3]).limit_waited_for(&waits).await.unwrap().unwrap();
    assert_eq!((queued.kind, queued.key.as_deref(), queued.position), (LimitKind::Concurrency, Some("a"), 2));
    done(&engine, runs[1]).await;
    assert_eq!(statuses(&engine, &runs).await, [Waiting, Completed, Waiting, Pending, Pending]);
    for run in [0, 2, 3, 4] {
        done(&engine, runs[run]).await;
    }
    assert_eq!(statuses(&engine, &runs).await, [Completed; 5]);
    let order: Vec<_> = begun.runs().into_iter().filter(|run| runs.contains(run)).collect();
    assert_eq!(order, runs);
}

#[tokio::test]
async fn a_workflow_without_a_key_has_one_limit() {
    let limit = ConcurrencyLimit { key: None, limit: 1, when_full: WhenFull::Wait };
    let (engine, _) = open(job().concurrency(limit).build().unwrap()).await;
    let (a, b) = (starts(&engine, "a", 1).await, starts(&engine, "b", 1).await);
    assert_eq!(statuses(&engine, &[a[0], b[0]]).await, [Status::Waiting, Status::Pending]);
    done(&engine, a[0]).await;
    assert_eq!(statuses(&engine, &b).await, [Status::Waiting]);
}

#[tokio::test]
async fn every_kind_of_end_admits_the_next_run() {
    let (engine, _) = open(at_most(1, WhenFull::Wait)).await;
    let runs = starts(&engine, "a", 6).await;
    engine.cancel(runs[0]).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&engine.run(runs[1])).await, Status::Waiting, "a cancelled run gives its turn back");
    engine.signal(runs[1], Signal::new("BREAK")).await.unwrap();
    engine.settle().await;
    assert_eq!(statuses(&engine, &runs[1..3]).await, [Status::Failed, Status::Waiting]);
    engine.cancel(runs[3]).await.unwrap();
    engine.operate(runs[2], Command::Suspend, &Operator::default()).await.unwrap();
    engine.settle().await;
    assert_eq!(statuses(&engine, &runs[2..5]).await, [Status::Suspended, Status::Cancelled, Status::Pending]);
    // A run that is deleted sends no message: the gate finds out by itself.
    let what = CleanupKind::Run(runs[2]);
    let cleanup = Cleanup { now: engine.now(), limit: 1, what };
    engine.store().cleanup(engine.scope(), cleanup).await.unwrap();
    engine.advance(Duration::from_secs(11)).await;
    assert_eq!(statuses(&engine, &runs[4..]).await, [Status::Waiting, Status::Pending]);
    let operator = Operator::default();
    engine.operate(runs[1], Command::Retry, &operator).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&engine.run(runs[1])).await, Status::Pending, "a retried run waits again");
    done(&engine, runs[4]).await;
    assert_eq!(statuses(&engine, &[runs[5], runs[1]]).await, [Status::Waiting, Status::Pending]);
    done(&engine, runs[5]).await;
    assert_eq!(status(&engine.run(runs[1])).await, Status::Failed, "it was admitted and failed again");
}

#[tokio::test]
async fn a_full_limit_refuses_starts() {
    let (engine, _) = open(at_most(1, WhenFull::Refuse)).await;
    let first = engine.start(of("a").key("one")).await.unwrap();
    let refused = engine.start(of("a")).await.map(|run| run.id());
    let (workflow, key) = (Name::from("job"), Some("a".to_owned()));
    assert_eq!(refused, Err(EngineError::LimitReached { workflow, key, limit: 1 }));
    let again = engine.start_once(of("a").key("one")).await.unwrap();
    assert_eq!((again.run.id(), again.is_new), (first.id(), false), "a repeated start is not refused");
    engine.settle().await;
    assert!(engine.start(of("a")).await.is_err(), "also when the first run has begun");
    assert_eq!(starts(&engine, "b", 1).await.len(), 1);
    done(&engine, first.id()).await;
    let next = starts(&engine, "a", 1).await;
    assert_eq!(statuses(&engine, &next).await, [Status::Waiting]);
}

#[tokio::test]
async fn a_start_that_loses_the_race_for_the_last_turn_is_cancelled() {
    let (engine, _) = open(at_most(1, WhenFull::Refuse)).await;
    let at = engine.now().plus_ms(1_000);
    // Both are accepted before either begins.
    let first = engine.start(of("a").at(at)).await.unwrap().id();
    let second = engine.start(of("a").at(at)).await.unwrap().id();
    engine.advance(Duration::from_secs(2)).await;
    let mut found = statuses(&engine, &[first, second]).await;
    found.sort_by_key(|status| status.as_str());
    assert_eq!(found, [Status::Cancelled, Status::Waiting]);
    let over = if status(&engine.run(first)).await == Status::Cancelled { first } else { second };
    assert_eq!(history_actions(&engine, over).await, ["__start", "__limit:refused"]);
}

#[tokio::test]
async fn the_oldest_run_makes_way_for_the_newest() {
    let (engine, begun) = open(at_most(2, WhenFull::CancelOldest)).await;
    let runs = starts(&engine, "a", 2).await;
    let newer = starts(&engine, "a", 1).await;
    assert_eq!(statuses(&engine, &runs).await, [Status::Cancelled, Status::Waiting]);
    assert_eq!(statuses(&engine, &newer).await, [Status::Waiting]);
    assert_eq!(history_actions(&engine, runs[0]).await, ["__start", "__auto:begin", "__limit:superseded"]);
    let mut many = Vec::new();
    for _ in 0..4 {
        many.push(engine.start(of("a")).await.unwrap().id());
    }
    engine.settle().await;
    use Status::{Cancelled, Waiting};
    assert_eq!(statuses(&engine, &[runs[1], newer[0]]).await, [Cancelled, Cancelled]);
    assert_eq!(statuses(&engine, &many).await, [Cancelled, Cancelled, Waiting, Waiting]);
    assert!(begun.runs().ends_with(&many[2..]));
}

#[tokio::test]
async fn a_start_in_the_future_joins_the_queue_at_its_time() {
    let (engine, begun) = open(at_most(1, WhenFull::Wait)).await;
    let first = starts(&engine, "a", 1).await[0];
    let later = engine.start(of("a").after(Duration::from_secs(60))).await.unwrap().id();
    let now = starts(&engine, "a", 1).await[0];
    engine.advance(Duration::from_secs(61)).await;
    assert_eq!(
        statuses(&engine, &[first, now, later]).await,
        [Status::Waiting, Status::Pending, Status::Pending]
    );
    done(&engine, first).await;
    done(&engine, now).await;
    assert_eq!(begun.runs(), [first, now, later]);
}

#[tokio::test]
async fn a_waiting_run_keeps_signals_and_its_deadline() {
    let (engine, _) = open(at_most(1, WhenFull::Wait)).await;
    let first = starts(&engine, "a", 1).await[0];
    let signalled = starts(&engine, "a", 1).await[0];
    engine.signal(signalled, Signal::new("DONE")).await.unwrap();
    let hurried = engine.start(of("a").within(Duration::from_secs(30))).await.unwrap().id();
    engine.advance(Duration::from_secs(31)).await;
    assert_eq!(statuses(&engine, &[signalled, hurried]).await, [Status::Pending, Status::Cancelled]);
    done(&engine, first).await;
    assert_eq!(status(&engine.run(signalled)).await, Status::Completed, "the signal was buffered");
}

#[tokio::test]
async fn a_timer_of_the_first_place_begins_with_the_run() {
    let limit = ConcurrencyLimit { key: None, limit: 1, when_full: WhenFull::Wait };
    let nap = Spec::new("nap")
        .initial("asleep")
        .step("asleep")
        .end("awake")
        .transition(Transition::new("wake", "asleep", "awake").after_ms(60_000))
        .concurrency(limit)
        .build()
        .unwrap();
    let engine = kit::start(|engine| engine.workflow(nap)).await.unwrap();
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(engine.start(Start::new("nap")).await.unwrap().id());
    }
    for minute in 1..=3 {
        engine.advance(Duration::from_secs(60)).await;
        let over =
            statuses(&engine, &runs).await.iter().filter(|status| **status == Status::Completed).count();
        assert_eq!(over, minute, "each run sleeps for a minute of its own");
    }
    assert_eq!(history_actions(&engine, runs[2]).await, ["__start", "__limit:admitted", "__timer:asleep"]);
}

#[tokio::test]
async fn a_key_of_the_wrong_type_refuses_the_start() {
    let (engine, _) = open(at_most(1, WhenFull::Wait)).await;
    for key in [json!(null), json!(["a"]), json!(true), json!(""), json!("x".repeat(257))] {
        let refused = engine.start(Start::new("job").input(&json!({"key": key}))).await;
        let error = refused.map(|run| run.id()).unwrap_err().to_string();
        assert!(
            error.starts_with("`concurrency.key` must give text or a number of 1 to 256 characters"),
            "{error}"
        );
    }
    let missing = engine.start(Start::new("job")).await.map(|run| run.id()).unwrap_err().to_string();
    assert!(missing.contains("context.key"), "{missing}");
    assert!(engine.start(Start::new("job").input(&json!({"key": 7}))).await.is_ok());
}

#[test]
fn impossible_limits_are_refused_when_the_workflow_is_built() {
    let concurrency = |limit, key| ConcurrencyLimit { key, limit, when_full: WhenFull::Wait };
    let refused = |spec: Spec| spec.build().unwrap_err().to_string();
    let zero = refused(job().concurrency(concurrency(0, None)));
    assert!(zero.contains("`concurrency.limit` must be a whole number from 1 to 10000 (got 0)"), "{zero}");
    let key = refused(job().concurrency(concurrency(1, Some(json!([1])))));
    assert!(key.contains("`concurrency.key` must be text, a number or an expression"), "{key}");
    let rate = |per_ms, burst| RateLimit { key: None, limit: 2, per_ms, burst };
    let period = refused(job().rate_limit(rate(0, None)));
    assert!(period.contains("`rateLimit.per` must be longer than zero"), "{period}");
    let burst = refused(job().rate_limit(rate(1, Some(3))));
    assert!(burst.contains("`rateLimit.burst` must be a whole number from 1 to 2 (got 3)"), "{burst}");
    let sealed = refused(job().concurrency(concurrency(1, None)).strategy("sealed"));
    assert!(sealed.contains("the strategy `sealed` allows no limit on active runs"), "{sealed}");
}

// Doors.

#[tokio::test]
async fn runs_that_other_runs_start_count() {
    let wait = Wait { children: Some(ChildRule::All), ..Wait::default() };
    let parent = Spec::new("parent")
        .initial("open")
        .step("open")
        .place("waiting", Place::Wait(wait))
        .end("over")
        .transition(Transition::new("split", "open", "waiting").action("split"))
        .auto("end", "waiting", "over")
        .build()
        .unwrap();
    async fn split(cx: Cx) -> Result<(), ActionError> {
        cx.start_child(of("a"))?;
        cx.start_child(of("a"))?;
        cx.start(of("a"))?;
        Ok(())
    }
    let begun = Begun::default();
    let serve = serving(at_most(1, WhenFull::Wait), &begun);
    let engine = kit::start(|engine| serve(engine).workflow(parent).action("split", split)).await.unwrap();
    let parent = engine.start(Start::new("parent")).await.unwrap();
    engine.settle().await;
    for many in 1..=3 {
        assert_eq!(begun.runs().len(), many);
        done(&engine, begun.runs()[many - 1]).await;
    }
    assert_eq!(status(&parent).await, Status::Completed);
}

#[tokio::test]
async fn events_schedules_forks_and_signals_that_start_runs_count() {
    use stepwell::core::spec::{OnEvent, Trigger, TriggerKind};
    let on = OnEvent { event_name: "ORDERED".into(), filter: None, correlation: None };
    let trigger = Trigger { id: "ordered".into(), on: TriggerKind::Event(on), input: None };
    let limit = ConcurrencyLimit { key: by_key(), limit: 1, when_full: WhenFull::Wait };
    let mut spec = job().concurrency(limit);
    spec.triggers.push(trigger);
    let (engine, begun) = open(spec.build().unwrap()).await;
    let first = starts(&engine, "a", 1).await[0];
    engine.emit(Event::new("ORDERED").with(&json!({"key": "a"}))).await.unwrap();
    engine.settle().await;
    let schedule = Schedule::new("often", "* * * * *", "job").input(json!({"key": "a"}));
    engine.put_schedule(schedule).await.unwrap();
    engine.advance(Duration::from_secs(60)).await;
    engine.remove_schedule("often").await.unwrap();
    let fork = engine.fork(first, 0, &Operator::default()).await.unwrap();
    let signalled = engine.start_or_signal(of("a").key("s"), Signal::new("DONE")).await.unwrap();
    engine.settle().await;
    let all = runs_of(&engine, "job").await;
    assert_eq!((all.len(), begun.runs().len()), (5, 1));
    assert_eq!(all.iter().filter(|run| run.status == Status::Pending).count(), 4);
    for many in 1..=4 {
        done(&engine, begun.runs()[many - 1]).await;
    }
    assert_eq!(begun.runs()[3..], [fork.id(), signalled.run.id()]);
    assert_eq!(status(&signalled.run).await, Status::Completed);
}

#[tokio::test]
async fn another_version_of_the_workflow_shares_the_limit() {
    let (store, clock) = ground().await;
    let begun = Begun::default();
    let old = at_most(1, WhenFull::Wait);
    let first = TestEngine::start_on(store.clone(), clock.clone(), serving(old, &begun)).await.unwrap();
    let runs = starts(&first, "a", 2).await;
    first.engine().stop(Duration::ZERO).await;
    let limit = ConcurrencyLimit { key: by_key(), limit: 3, when_full: WhenFull::Wait };
    let new = job().version(2).concurrency(limit).build().unwrap();
    let engine = TestEngine::start_on(store, clock, serving(new, &begun)).await.unwrap();
    let more = starts(&engine, "a", 2).await;
    use Status::{Pending, Waiting};
    assert_eq!(statuses(&engine, &runs).await, [Waiting, Waiting], "the numbers of the newest version count");
    assert_eq!(statuses(&engine, &more).await, [Waiting, Pending]);
}

// Rates.

#[tokio::test]
async fn runs_begin_at_the_rate_of_the_limit() {
    let (engine, begun) = open(per_minute(3, None)).await;
    let runs = starts(&engine, "a", 8).await;
    assert_eq!(begun.runs(), runs[..3]);
    engine.advance(Duration::from_millis(59_999)).await;
    assert_eq!(begun.runs().len(), 3);
    engine.advance(Duration::from_millis(1)).await;
    assert_eq!(begun.runs(), runs[..6]);
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!(begun.runs(), runs);
}

#[tokio::test]
async fn a_burst_below_the_limit_spreads_the_runs() {
    let (engine, begun) = open(per_minute(6, Some(2))).await;
    starts(&engine, "a", 7).await;
    for expected in [2, 2, 4, 4, 6, 6, 7] {
        assert_eq!(begun.runs().len(), expected);
        engine.advance(Duration::from_secs(10)).await;
    }
}

#[tokio::test]
async fn a_restart_keeps_the_count_of_a_rate_limit() {
    let (store, clock) = ground().await;
    let begun = Begun::default();
    let serve = || serving(per_minute(2, None), &begun);
    let (first, tasks) = start_killable(store.clone(), &clock, serve()).await;
    let runs = starts(&first, "a", 4).await;
    assert_eq!(begun.runs(), runs[..2]);
    tasks.kill().await;
    let (second, _tasks) = start_killable(store, &clock, serve()).await;
    second.advance(Duration::from_secs(30)).await;
    assert_eq!(begun.runs(), runs[..2]);
    second.advance(Duration::from_secs(30)).await;
    assert_eq!(begun.runs(), runs);
}

#[tokio::test]
async fn a_run_passes_both_limits_of_its_workflow() {
    let concurrency = ConcurrencyLimit { key: by_key(), limit: 1, when_full: WhenFull::Wait };
    let rate = RateLimit { key: None, limit: 2, per_ms: 60_000, burst: None };
    let (engine, begun) = open(job().concurrency(concurrency).rate_limit(rate).build().unwrap()).await;
    let a = starts(&engine, "a", 2).await;
    let b = starts(&engine, "b", 1).await;
    let c = starts(&engine, "c", 1).await;
    assert_eq!(begun.runs(), [a[0], b[0]]);
    let view = engine.run(c[0]).view().await.unwrap();
    let queued = engine.run(c[0]).limit_waited_for(&view).await.unwrap().unwrap();
    assert_eq!((queued.kind, queued.position), (LimitKind::Rate, 1));
    engine.cancel(c[0]).await.unwrap();
    let again = starts(&engine, "c", 1).await;
    done(&engine, a[0]).await;
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!(begun.runs()[2..], [a[1], again[0]], "both may begin, in order of arrival");
}

#[tokio::test]
async fn the_doctor_names_a_limit_that_is_full_for_long() {
    let (engine, _) = open(at_most(1, WhenFull::Wait)).await;
    let runs = starts(&engine, "a", 3).await;
    let diagnosed = async || engine.diagnose(&Diagnose::default()).await.unwrap().findings;
    assert_eq!(diagnosed().await, []);
    engine.advance(Duration::from_secs(3_700)).await;
    let findings = diagnosed().await;
    let [found] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((found.kind, found.count), (FindingKind::LimitsFull, 1));
    assert_eq!((found.examples[0].run, found.examples[0].name.as_deref()), (Some(runs[0]), Some("a")));
    assert!(found.examples[0].why.starts_with("1 active, 2 waiting, full for 1 h 1 min"), "{found:?}");
}

// Size, fairness, processes and crashes.

#[tokio::test]
async fn no_key_delays_another() {
    let (engine, begun) = open(at_most(1, WhenFull::Wait)).await;
    let flood = starts(&engine, "flood", kit::many(300) as usize).await;
    let mut others = Vec::new();
    for number in 0..50 {
        others.push(engine.start(of(&format!("key {number}"))).await.unwrap().id());
    }
    engine.settle().await;
    assert_eq!(statuses(&engine, &others).await, [Status::Waiting; 50]);
    let limits = engine.limits_of(&"job".into(), 200, None).await.unwrap();
    assert_eq!(limits.items.len(), 51);
    let row = limits.items.iter().find(|row| row.key.as_deref() == Some("flood")).unwrap();
    assert_eq!((row.active, row.waiting), (1, flood.len() as u64 - 1));
    assert_eq!(row.runs[0].run, flood[0]);
    for run in &flood[..5] {
        done(&engine, *run).await;
    }
    let order: Vec<_> = begun.runs().into_iter().filter(|run| flood.contains(run)).collect();
    assert_eq!(order, flood[..6]);
}

#[tokio::test]
async fn an_idle_gate_ends_and_a_later_run_opens_it_again() {
    let (engine, _) = open(at_most(1, WhenFull::Wait)).await;
    let gates = async || {
        let query = RunQuery { filter: RunFilter::of("stepwell.gate"), limit: 10, ..RunQuery::default() };
        engine.store().runs(engine.scope(), query).await.unwrap().items
    };
    let runs = starts(&engine, "a", 2).await;
    assert_eq!(gates().await[0].status, Status::Waiting);
    done(&engine, runs[0]).await;
    done(&engine, runs[1]).await;
    assert_eq!(gates().await[0].status, Status::Completed);
    let runs = starts(&engine, "a", 2).await;
    assert_eq!(statuses(&engine, &runs).await, [Status::Waiting, Status::Pending]);
    done(&engine, runs[0]).await;
    done(&engine, runs[1]).await;
    engine.advance(Duration::from_secs(40 * 24 * 3_600)).await;
    assert_eq!(gates().await, [], "retention removes it");
    let runs = starts(&engine, "a", 2).await;
    assert_eq!(statuses(&engine, &runs).await, [Status::Waiting, Status::Pending]);
}

/// Three runs of a limit of 1. The process that serves them is killed when it makes a certain commit, before or after
/// the commit arrives. Another process completes them.
async fn dies_at(commit: usize, fate: Fate) -> usize {
    let (inner, clock) = ground().await;
    let begun = Begun::default();
    let serve = || serving(at_most(1, WhenFull::Wait), &begun);
    let no_runs = |engine: Builder| serve()(engine).with(|options| options.max_runs = 0);
    let client = TestEngine::start_on(inner.clone(), clock.clone(), no_runs).await.unwrap();
    let store = Watched::new(inner.clone());
    let count = Arc::new(Mutex::new(0));
    let counted = count.clone();
    store.rule(move |_| {
        let mut made = counted.lock().unwrap();
        *made += 1;
        match *made {
            made if made == commit => fate,
            made if made > commit => Fate::Hangs,
            _ => Fate::Arrives,
        }
    });
    let (first, tasks) = start_killable(store, &clock, serve()).await;
    let runs = starts(&client, "a", 3).await;
    for run in &runs {
        client.signal(*run, Signal::new("DONE")).await.unwrap();
    }
    settle(&[&client, &first]).await;
    tasks.kill().await;
    let (second, _tasks) = start_killable(inner, &clock, serve()).await;
    second.advance(NOTICED).await;
    assert_eq!(statuses(&second, &runs).await, [Status::Completed; 3], "commit {commit}, {fate:?}");
    assert_eq!(begun.runs(), runs, "commit {commit}, {fate:?}");
    *count.lock().unwrap()
}

#[tokio::test]
async fn a_crash_at_any_commit_loses_no_turn() {
    for commit in 1.. {
        let made = dies_at(commit, Fate::Hangs).await.max(dies_at(commit, Fate::AnswerLost).await);
        if made < commit {
            assert!(commit > 6, "only {made} commits");
            return;
        }
    }
}

/// The expected state of all runs.
#[derive(Default)]
struct Model {
    limit: usize,
    keys: BTreeMap<String, (Vec<RunId>, VecDeque<RunId>)>,
    key_of: BTreeMap<RunId, String>,
    expected: BTreeMap<RunId, Status>,
    order: Vec<RunId>,
}

impl Model {
    fn admit(&mut self, key: &str) {
        let (active, queue) = self.keys.get_mut(key).unwrap();
        while active.len() < self.limit && !queue.is_empty() {
            let run = queue.pop_front().unwrap();
            active.push(run);
            if !self.order.contains(&run) {
                self.order.push(run);
            }
            self.expected.insert(run, Status::Waiting);
        }
    }

    fn join(&mut self, key: &str, run: RunId) {
        self.keys.entry(key.to_owned()).or_default().1.push_back(run);
        self.key_of.insert(run, key.to_owned());
        self.expected.insert(run, Status::Pending);
        self.admit(key);
    }

    fn leave(&mut self, run: RunId, with: Status) {
        let key = self.key_of[&run].clone();
        let (active, queue) = self.keys.get_mut(&key).unwrap();
        active.retain(|other| *other != run);
        queue.retain(|other| *other != run);
        self.expected.insert(run, with);
        self.admit(&key);
    }

    fn pick(&self, dice: &mut Dice, of: impl Fn(Status) -> bool) -> Option<RunId> {
        let found: Vec<_> =
            self.expected.iter().filter(|(_, status)| of(**status)).map(|(run, _)| *run).collect();
        (!found.is_empty()).then(|| found[dice.roll(found.len())])
    }
}

/// A small generator of pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

async fn engines(
    store: &Arc<dyn Store>,
    clock: &ManualClock,
    begun: &Begun,
    limit: u32,
) -> (TestEngine, kit::Tasks) {
    start_killable(store.clone(), clock, serving(at_most(limit, WhenFull::Wait), begun)).await
}

/// Random starts, ends, failures, retries and crashes. After each the runs are exactly those of the model.
#[tokio::test]
async fn random_histories_match_the_model() {
    for seed in 1..=3_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let limit = 1 + dice.roll(3);
        let (store, clock) = ground().await;
        let begun = Begun::default();
        let (mut engine, mut tasks) = engines(&store, &clock, &begun, limit as u32).await;
        let mut model = Model { limit, ..Model::default() };
        for step in 0..kit::many(100).max(40) {
            let key = ["a", "b", "c"][dice.roll(3)];
            match dice.roll(12) {
                0..=4 => model.join(key, engine.start(of(key)).await.unwrap().id()),
                5..=6 => {
                    if let Some(run) = model.pick(&mut dice, |status| status == Status::Waiting) {
                        engine.signal(run, Signal::new("DONE")).await.unwrap();
                        model.leave(run, Status::Completed);
                    }
                }
                7 => {
                    if let Some(run) = model.pick(&mut dice, |status| !status.is_final()) {
                        engine.cancel(run).await.unwrap();
                        model.leave(run, Status::Cancelled);
                    }
                }
                8..=9 => {
                    if let Some(run) = model.pick(&mut dice, |status| status == Status::Waiting) {
                        engine.signal(run, Signal::new("BREAK")).await.unwrap();
                        model.leave(run, Status::Failed);
                    }
                }
                10 => {
                    if let Some(run) = model.pick(&mut dice, |status| status == Status::Failed) {
                        let dismiss = Command::Dismiss;
                        engine.operate(run, dismiss, &Operator::default()).await.unwrap();
                        let key = model.key_of[&run].clone();
                        model.join(&key, run);
                    }
                }
                _ => {
                    tasks.kill().await;
                    (engine, tasks) = engines(&store, &clock, &begun, limit as u32).await;
                    engine.advance(NOTICED).await;
                }
            }
            // Arrivals at the same time would be in the order of the runs' ids.
            engine.advance(Duration::from_millis(1)).await;
            for (run, expected) in &model.expected {
                let found = status(&engine.run(*run)).await;
                assert_eq!(found, *expected, "seed {seed}, step {step}, run {run}");
            }
        }
        let in_order = |key: &str, all: &[RunId]| {
            all.iter().filter(|run| model.key_of[*run] == key).copied().collect::<Vec<_>>()
        };
        for key in ["a", "b", "c"] {
            assert_eq!(in_order(key, &begun.runs()), in_order(key, &model.order), "seed {seed}, key {key}");
        }
    }
}
