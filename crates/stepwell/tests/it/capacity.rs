//! Concurrency limits of a process, runs that wait for a permit, and graceful shutdown.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use stepwell::core::retry::Retry;
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, RunId, Spec};
use stepwell::engine::Builder;
use stepwell::store::{Fault, Faulty, Status};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{ActionError, Cx, Run, Signal, Start};

use crate::kit::{
    self, LEASE_MS, eventually, ground, other_tenant, settle, soon, start_killable, status, version,
};
use crate::world::{Gate, Script, desk, job, row};

const SECOND: Duration = Duration::from_secs(1);

/// A workflow of this name with one action of the same name.
fn named(name: &str) -> Definition {
    let work = Transition::new("work", "todo", "done").action(name);
    Spec::new(name).step("todo").end("done").transition(work).build().unwrap()
}

fn gated(gate: &Gate) -> impl FnOnce(Builder) -> Builder + use<> {
    let action = gate.action();
    move |engine| engine.workflow(job(|work| work)).action("work", action)
}

fn limited(max_runs: usize, of: &[(&str, usize)]) -> impl FnOnce(Builder) -> Builder + use<> {
    let of: BTreeMap<_, _> = of.iter().map(|(name, max)| ((*name).into(), *max)).collect();
    move |engine| {
        engine.with(|options| {
            options.max_runs = max_runs;
            options.max_runs_per_workflow = of;
        })
    }
}

async fn start(engine: &TestEngine, workflow: &str, many: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    for _ in 0..many {
        runs.push(engine.start(Start::new(workflow)).await.unwrap());
    }
    runs
}

async fn count(runs: &[Run], wanted: Status) -> usize {
    let mut found = 0;
    for run in runs {
        found += usize::from(status(run).await == wanted);
    }
    found
}

async fn owned(runs: &[Run]) -> usize {
    let mut found = 0;
    for run in runs {
        found += usize::from(run.view().await.unwrap().owner.is_some());
    }
    found
}

// Concurrency limits.

#[tokio::test]
async fn running_actions_never_exceed_max_runs() {
    let gate = Gate::new();
    let build = gated(&gate);
    let engine = kit::start(|engine| limited(4, &[])(build(engine))).await.unwrap();
    let runs = start(&engine, "job", 50).await;
    engine.settle().await;
    assert_eq!(
        (gate.inside(), owned(&runs).await),
        (4, 4),
        "the other runs wait in the store without an owner"
    );
    for finished in 1..=50_usize {
        gate.open(1);
        engine.settle().await;
        assert_eq!(count(&runs, Status::Completed).await, finished);
        assert_eq!(gate.inside(), 4.min(50 - finished));
    }
    assert_eq!((gate.most(), gate.began(), engine.now()), (4, 50, BEGINS), "no run waited for the clock");
}

#[tokio::test]
async fn workflow_limit_is_kept_and_delays_no_other_workflow() {
    let (gate, other) = (Gate::new(), Gate::new());
    let engine = kit::start(|engine| {
        let engine = engine.workflow(named("slow")).workflow(named("other"));
        let engine = engine.action("slow", gate.action()).action("other", other.action());
        limited(8, &[("slow", 2)])(engine)
    });
    let engine = engine.await.unwrap();
    let slow = start(&engine, "slow", 12).await;
    let others = start(&engine, "other", 12).await;
    engine.settle().await;
    assert_eq!((gate.inside(), other.inside()), (2, 6));
    other.open(12);
    engine.settle().await;
    assert_eq!((count(&others, Status::Completed).await, gate.inside()), (12, 2));
    for finished in 1..=12_usize {
        gate.open(1);
        engine.settle().await;
        assert_eq!(
            count(&slow, Status::Completed).await,
            finished,
            "the next run starts when a permit is free"
        );
    }
    assert_eq!((gate.most(), engine.now()), (2, BEGINS));
}

#[tokio::test]
async fn workflow_limits_apply_within_the_process_limit() {
    let (one, two) = (Gate::new(), Gate::new());
    let engine = kit::start(|engine| {
        let engine = engine.workflow(named("one")).workflow(named("two"));
        let engine = engine.action("one", one.action()).action("two", two.action());
        limited(4, &[("one", 3), ("two", 3)])(engine)
    });
    let engine = engine.await.unwrap();
    let runs = [start(&engine, "one", 9).await, start(&engine, "two", 9).await].concat();
    engine.settle().await;
    assert_eq!((one.inside(), two.inside()), (3, 1));
    one.open(9);
    engine.settle().await;
    assert_eq!((one.began(), two.inside()), (9, 3));
    two.open(9);
    engine.settle().await;
    assert_eq!((count(&runs, Status::Completed).await, one.most(), two.most()), (18, 3, 3));
}

#[tokio::test]
async fn due_runs_wait_for_a_free_permit() {
    let gate = Gate::new();
    let ring = Transition::new("ring", "asleep", "awake").after_ms(5_000).action("work");
    let alarm = Spec::new("alarm").step("asleep").end("awake").transition(ring).build().unwrap();
    let build = gated(&gate);
    let engine = kit::start(|engine| limited(1, &[])(build(engine).workflow(alarm))).await.unwrap();
    let alarms = start(&engine, "alarm", 3).await;
    engine.settle().await;
    let job = engine.start(Start::new("job")).await.unwrap();
    engine.advance(10 * SECOND).await;
    assert_eq!((gate.inside(), status(&job).await), (1, Status::Running));
    gate.open(4);
    engine.settle().await;
    assert_eq!((count(&alarms, Status::Completed).await, status(&job).await), (3, Status::Completed));
}

#[tokio::test]
async fn signal_is_accepted_while_all_permits_are_taken() {
    let gate = Gate::new();
    let engine = kit::start(|engine| {
        let engine = engine.workflow(job(|work| work)).workflow(desk(|work| work));
        limited(1, &[])(engine.action("work", gate.action()))
    });
    let engine = engine.await.unwrap();
    let waiting = engine.start(Start::new("desk")).await.unwrap();
    engine.settle().await;
    let job = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    waiting.signal(Signal::new("GO").with(&7)).await.unwrap();
    engine.settle().await;
    assert_eq!((gate.began(), gate.most()), (1, 1));
    gate.open(2);
    engine.settle().await;
    assert_eq!((status(&job).await, status(&waiting).await), (Status::Completed, Status::Completed));
}

#[tokio::test]
async fn waiting_run_holds_no_permit() {
    let script = Script::failing(1);
    let retry = Retry { attempts: 1, delay_ms: 3_600_000, max_delay_ms: 3_600_000, ..Retry::default() };
    let failing = job(|work| work.retry(retry));
    let engine = kit::start(|engine| {
        let engine = engine.workflow(failing).workflow(desk(|work| work)).workflow(named("good"));
        let engine = engine.action("work", script.action()).action("good", Script::good().action());
        limited(1, &[])(engine)
    });
    let engine = engine.await.unwrap();
    start(&engine, "desk", 5).await;
    start(&engine, "job", 1).await;
    engine.settle().await;
    let good = start(&engine, "good", 5).await;
    engine.settle().await;
    assert_eq!(count(&good, Status::Completed).await, 5);
}

#[tokio::test]
async fn engine_without_permits_executes_no_runs() {
    let script = Script::good();
    let engine = kit::start(|engine| {
        let engine = engine.workflow(job(|work| work)).workflow(desk(|work| work));
        limited(0, &[])(engine.action("work", script.action()))
    });
    let engine = engine.await.unwrap();
    let runs = [start(&engine, "job", 3).await, start(&engine, "desk", 3).await].concat();
    for run in &runs[3..] {
        run.signal(Signal::new("GO")).await.unwrap();
    }
    engine.advance(SECOND).await;
    assert_eq!((script.calls().len(), owned(&runs).await), (0, 0));
    assert_eq!(count(&runs, Status::Running).await, 6);
}

#[tokio::test]
async fn second_process_executes_runs_beyond_the_first_ones_limit() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let (build, other) = (gated(&gate), gated(&gate));
    let (first, _first) =
        start_killable(store.clone(), &clock, |engine| limited(2, &[])(build(engine))).await;
    let (second, _second) = start_killable(store, &clock, |engine| limited(3, &[])(other(engine))).await;
    let runs = start(&first, "job", 20).await;
    settle(&[&first, &second]).await;
    assert_eq!(gate.inside(), 5);
    for _ in 0..20 {
        gate.open(1);
        settle(&[&first, &second]).await;
    }
    assert_eq!((count(&runs, Status::Completed).await, gate.most(), gate.began()), (20, 5, 20));
}

// Stopping.

/// A workflow of two steps with one action each.
fn two() -> Definition {
    let work = |id, from, to| Transition::new(id, from, to).action("work");
    let spec = Spec::new("two").step("a").step("b").end("c");
    spec.transition(work("ab", "a", "b")).transition(work("bc", "b", "c")).build().unwrap()
}

fn two_gated(gate: &Gate) -> impl FnOnce(Builder) -> Builder + use<> {
    let action = gate.action();
    move |engine| engine.workflow(two()).action("work", action)
}

/// Stops an engine in a task of its own.
fn stop(engine: &TestEngine, grace: Duration) -> tokio::task::JoinHandle<()> {
    let engine = engine.engine().clone();
    tokio::spawn(async move { engine.stop(grace).await })
}

#[tokio::test]
async fn stopping_engine_finishes_actions_and_starts_none() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let (first, _first) = start_killable(store.clone(), &clock, two_gated(&gate)).await;
    let run = first.start(Start::new("two")).await.unwrap();
    first.settle().await;
    let stopped = stop(&first, 60 * SECOND);
    first.settle().await;
    assert_eq!((gate.inside(), gate.dropped(), stopped.is_finished()), (1, 0, false));
    let late = first.start(Start::new("two")).await.unwrap();
    first.settle().await;
    assert_eq!((gate.began(), status(&late).await), (1, Status::Running), "other processes execute it");
    gate.open(1);
    soon(stopped).await.unwrap();
    assert_eq!((gate.began(), gate.dropped(), version(&run).await), (1, 0, 1), "its result is committed");
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.owner, first.now()), (Status::Running, None, BEGINS));
    gate.open(5);
    first.advance(60 * SECOND).await;
    assert_eq!(gate.began(), 1, "no other action is started");
}

#[tokio::test]
async fn stopped_engine_releases_its_runs_to_another_at_once() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let (first, _first) = start_killable(store.clone(), &clock, two_gated(&gate)).await;
    let script = Script::good();
    let action = script.action();
    let build = |engine: Builder| engine.workflow(two()).action("work", action);
    let (second, _second) = start_killable(store, &clock, build).await;
    let run = first.start(Start::new("two")).await.unwrap();
    first.settle().await;
    let stopped = stop(&first, 60 * SECOND);
    settle(&[&first, &second]).await;
    assert_eq!(script.calls().len(), 0);
    gate.open(1);
    soon(stopped).await.unwrap();
    second.settle().await;
    assert_eq!((status(&run).await, second.now()), (Status::Completed, BEGINS), "no lease has to expire");
    let tried: Vec<_> = script.calls().iter().map(|call| (call.transition.clone(), call.attempt)).collect();
    assert_eq!(tried, [("bc".to_owned(), 1)]);
}

#[tokio::test]
async fn action_dropped_at_shutdown_does_not_count_as_a_crash() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let (first, _first) = start_killable(store.clone(), &clock, two_gated(&gate)).await;
    let run = first.start(Start::new("two")).await.unwrap();
    first.settle().await;
    let stopped = stop(&first, 10 * SECOND);
    first.advance(Duration::from_millis(9_999)).await;
    assert_eq!((gate.inside(), gate.dropped(), stopped.is_finished()), (1, 0, false));
    first.advance(Duration::from_millis(1)).await;
    soon(stopped).await.unwrap();
    assert_eq!((gate.inside(), gate.dropped()), (0, 1));
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.owner, view.has_error()), (Status::Running, None, false));
    let script = Script::good();
    let action = script.action();
    let build = |engine: Builder| {
        engine.workflow(two()).action("work", action).with(|options| options.max_crashes = 1)
    };
    let (second, _second) = start_killable(store, &clock, build).await;
    second.settle().await;
    assert_eq!((status(&run).await, second.now()), (Status::Completed, BEGINS.plus_ms(10_000)));
    assert_eq!(script.calls()[0].attempt, 1, "a shutdown is not a crash");
}

#[tokio::test]
async fn repeated_shutdowns_do_not_count_as_crashes() {
    let (store, clock) = ground().await;
    let mut run = None;
    for _ in 0..7 {
        let gate = Gate::new();
        let (engine, _tasks) = start_killable(store.clone(), &clock, two_gated(&gate)).await;
        let id = match run {
            Some(id) => id,
            None => engine.start(Start::new("two")).await.unwrap().id(),
        };
        run = Some(id);
        engine.settle().await;
        assert_eq!(gate.inside(), 1);
        soon(engine.stop(Duration::ZERO)).await;
        assert_eq!(gate.dropped(), 1);
    }
    let (engine, _tasks) = start_killable(store, &clock, |engine| {
        engine.workflow(two()).action("work", Script::good().action())
    })
    .await;
    engine.settle().await;
    assert_eq!(status(&engine.run(run.unwrap())).await, Status::Completed);
}

#[tokio::test]
async fn idle_engine_stops_at_once() {
    let (store, clock) = ground().await;
    let (engine, tasks) = start_killable(store, &clock, two_gated(&Gate::new())).await;
    engine.settle().await;
    soon(engine.stop(60 * SECOND)).await;
    assert_eq!(engine.now(), BEGINS);
    soon(engine.stop(60 * SECOND)).await;
    drop(engine);
    eventually(async || tasks.going() == 0).await;
}

#[tokio::test]
async fn stopped_engine_still_stores_signals() {
    let (store, clock) = ground().await;
    let script = Script::good();
    let (first, _first) = start_killable(store.clone(), &clock, |engine| {
        engine.workflow(desk(|work| work)).action("work", script.action())
    })
    .await;
    let run = first.start(Start::new("desk")).await.unwrap();
    first.settle().await;
    soon(first.stop(SECOND)).await;
    first.signal(run.id(), Signal::new("GO").with(&7)).await.unwrap();
    first.settle().await;
    assert_eq!(script.calls().len(), 0);
    let (second, _second) = start_killable(store, &clock, |engine| {
        engine.workflow(desk(|work| work)).action("work", script.action())
    })
    .await;
    second.settle().await;
    assert_eq!((status(&run).await, script.calls()[0].payload.clone()), (Status::Completed, json!(7)));
}

#[tokio::test]
async fn dropped_engine_releases_its_runs() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let (first, _first) = start_killable(store.clone(), &clock, two_gated(&gate)).await;
    let run = first.start(Start::new("two")).await.unwrap().id();
    first.settle().await;
    drop(first);
    let (second, _second) = start_killable(store, &clock, two_gated(&gate)).await;
    second.settle().await;
    assert_eq!((gate.dropped(), gate.inside()), (1, 1));
    assert_eq!(second.now(), BEGINS);
    gate.open(2);
    second.settle().await;
    assert_eq!(status(&second.run(run)).await, Status::Completed);
}

#[tokio::test]
async fn dropped_engine_ends_its_tasks_and_frees_its_store() {
    let (store, clock) = ground().await;
    let known = Arc::downgrade(&store);
    let gate = Gate::new();
    let (engine, tasks) = start_killable(store, &clock, two_gated(&gate)).await;
    engine.start(Start::new("two")).await.unwrap();
    engine.settle().await;
    drop(engine);
    eventually(async || tasks.going() == 0).await;
    assert!(known.upgrade().is_none(), "the store can be closed and opened again");
}

#[tokio::test]
async fn stopping_engine_renews_its_lease_while_actions_run() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let (first, _first) = start_killable(store.clone(), &clock, two_gated(&gate)).await;
    let run = first.start(Start::new("two")).await.unwrap();
    first.settle().await;
    let script = Script::good();
    let action = script.action();
    let (second, _second) =
        start_killable(store, &clock, |engine| engine.workflow(two()).action("work", action)).await;
    let stopped = stop(&first, Duration::from_millis(4 * LEASE_MS));
    for _ in 0..9 {
        second.advance(Duration::from_millis(LEASE_MS / 3)).await;
        first.settle().await;
    }
    assert_eq!((script.calls().len(), gate.inside()), (0, 1), "its lease is renewed while it works");
    gate.open(1);
    soon(stopped).await.unwrap();
    second.settle().await;
    assert_eq!((status(&run).await, gate.dropped()), (Status::Completed, 0));
    assert_eq!(row(&second, run.id()).await.head.owner, None);
}

#[tokio::test]
async fn stopping_engine_releases_a_run_it_was_claiming() {
    let (inner, clock) = ground().await;
    let store = Arc::new(Faulty::new(inner.clone(), []));
    let (calls, _calls) =
        start_killable(inner.clone(), &clock, |engine| limited(0, &[])(engine.workflow(two()))).await;
    let gate = Gate::new();
    let (engine, _tasks) = start_killable(store.clone(), &clock, two_gated(&gate)).await;
    engine.settle().await;
    // The engine learns what is due, and the answer to its claim is delayed.
    [Fault::None, Fault::DelayAnswer(Duration::from_millis(150))]
        .into_iter()
        .for_each(|fault| store.then(fault));
    let run = calls.start(Start::new("two")).await.unwrap();
    // The store has recorded the claim, but the claiming engine has not received the answer.
    eventually(async || run.view().await.unwrap().owner.is_some()).await;
    soon(engine.stop(60 * SECOND)).await;
    assert_eq!((run.view().await.unwrap().owner, gate.began()), (None, 0));
}

/// Gives one tenant many due runs and another tenant one, in a process with few permits. The runs end if `they_end`.
/// Returns the runs that began, in order, and the other tenant's only run.
async fn begun_of_two_tenants(max_runs: usize, they_end: bool) -> (Vec<RunId>, RunId) {
    let (store, clock) = ground().await;
    let idle = |engine: Builder| {
        let mill = |_: Cx| async { Ok::<_, ActionError>(()) };
        engine.workflow(named("mill")).action("mill", mill).with(|options| options.max_runs = 0)
    };
    let client = TestEngine::start_on(store.clone(), clock.clone(), idle).await.unwrap();
    start(&client, "mill", 6).await;
    let lone = client.for_tenant(other_tenant()).start(Start::new("mill")).await.unwrap();
    let begun = Arc::new(Mutex::new(Vec::new()));
    let seen = begun.clone();
    let build = |engine: Builder| {
        let mill = move |cx: Cx| {
            seen.lock().unwrap().push(cx.run());
            async move {
                match they_end {
                    true => Ok::<_, ActionError>(()),
                    false => std::future::pending().await,
                }
            }
        };
        engine.workflow(named("mill")).action("mill", mill).with(|options| options.max_runs = max_runs)
    };
    let worker = TestEngine::start_on(store, clock, build).await.unwrap();
    settle(&[&client, &worker]).await;
    let begun = begun.lock().unwrap().clone();
    (begun, lone.id())
}

/// Regression: the tenant with the lower id was served until it had no due runs left.
#[tokio::test]
async fn busy_tenant_takes_turns_with_other_tenants() {
    let (begun, lone) = begun_of_two_tenants(1, true).await;
    assert_eq!(begun.len(), 7);
    assert!(begun[..2].contains(&lone), "{lone} started late: {begun:?}");
}

/// Regression: one tenant took every permit and kept them as long as its actions ran.
#[tokio::test]
async fn busy_tenant_does_not_take_every_permit() {
    let (begun, lone) = begun_of_two_tenants(4, false).await;
    assert_eq!(begun.len(), 4);
    assert!(begun.contains(&lone), "{lone} got no permit: {begun:?}");
}
