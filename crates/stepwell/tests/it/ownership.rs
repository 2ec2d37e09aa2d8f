//! Ownership: every process may decide, only the owner runs actions, and runs of crashed processes get a new owner. A
//! process that cannot serve a run leaves it alone.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::core::spec::{Guard, Join, Place, Quorum, Transition};
use stepwell::core::{Definition, RunId, Spec};
use stepwell::engine::Builder;
use stepwell::store::{Fault, Faulty, Status, Store};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{ActionError, Command, Cx, EngineError, ManualClock, Operator, Signal, Signalled, Start};
use stepwell_sqlite::SqliteStore;

use crate::kit::{
    self, Fate, LEASE_MS, Watched, context, error_code, eventually, ground, history_actions, places, settle,
    soon, start_killable, status, version,
};
use crate::world::{Gate, Script, cell, desk, freezable, increment, job, pair, row, saved};

const SECOND: Duration = Duration::from_secs(1);
/// The time after which a crashed process has certainly been detected.
const NOTICED: Duration = Duration::from_millis(LEASE_MS + LEASE_MS / 3);

fn worker(definition: Definition, script: &Script) -> impl FnOnce(Builder) -> Builder + use<> {
    let action = script.action();
    move |engine| engine.workflow(definition).action("work", action)
}

fn gated(definition: Definition, gate: &Gate) -> impl FnOnce(Builder) -> Builder + use<> {
    let action = gate.action();
    move |engine| engine.workflow(definition).action("work", action)
}

/// Three steps, each of which runs `work` and saves its output in a field named after its place.
fn three() -> Definition {
    let step = |id: &str, from: &str, to: &str| {
        Transition::new(id, from, to).action_with(saved("work", &format!("after_{from}")))
    };
    Spec::new("three")
        .step("a")
        .step("b")
        .step("c")
        .end("d")
        .transition(step("ab", "a", "b"))
        .transition(step("bc", "b", "c"))
        .transition(step("cd", "c", "d"))
        .build()
        .unwrap()
}

/// Adds 1 to a cell and returns the id of the transition.
async fn note(cx: Cx) -> Result<Value, ActionError> {
    cx.write(increment("count"))?;
    Ok(json!(cx.transition()))
}

async fn is_whole(engine: &TestEngine, run: RunId) {
    let run = engine.run(run);
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(cell(engine, "count").await, Some(json!(3)), "each step is written once");
    assert_eq!(context(&run).await, json!({"after_a": "ab", "after_b": "bc", "after_c": "cd"}));
    assert_eq!(history_actions(engine, run.id()).await, ["__start", "__auto:ab", "__auto:bc", "__auto:cd"]);
}

// After a crash.

#[tokio::test]
async fn another_process_continues_after_a_crash_in_an_action() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    gate.open(1);
    let (first, tasks) = start_killable(store.clone(), &clock, gated(three(), &gate)).await;
    let run = first.start(Start::new("three")).await.unwrap().id();
    first.settle().await;
    assert_eq!((gate.inside(), version(&first.run(run)).await), (1, 1));
    let key = format!("{run}-2");
    tasks.kill().await;
    assert_eq!(gate.dropped(), 1);
    let script = Script::good();
    let (second, _tasks) = start_killable(store, &clock, worker(three(), &script)).await;
    second.advance(Duration::from_millis(LEASE_MS - 1)).await;
    assert_eq!(script.calls(), [], "the first process may still be alive");
    second.advance(Duration::from_millis(LEASE_MS / 3 + 1)).await;
    let calls = script.calls();
    let tried: Vec<_> = calls.iter().map(|call| (call.transition.as_str(), call.attempt)).collect();
    assert_eq!(tried, [("bc", 2), ("cd", 1)], "committed steps are not repeated");
    assert_eq!(calls[0].key, key, "every attempt has the same key");
    assert_eq!(status(&second.run(run)).await, Status::Completed);
}

/// A process crashes at one of its commits: the commit never arrives, or its answer is lost.
async fn dies_at(commit: usize, fate: Fate) {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner.clone());
    let (first, tasks) =
        start_killable(store.clone(), &clock, |engine| engine.workflow(three()).action("work", note)).await;
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
    let run = first.start(Start::new("three")).await.unwrap().id();
    first.settle().await;
    tasks.kill().await;
    let (second, _tasks) =
        start_killable(inner, &clock, |engine| engine.workflow(three()).action("work", note)).await;
    second.advance(NOTICED).await;
    is_whole(&second, run).await;
}

#[tokio::test]
async fn crash_at_any_commit_applies_each_step_once() {
    for commit in 1..=3 {
        dies_at(commit, Fate::Hangs).await;
        dies_at(commit, Fate::AnswerLost).await;
    }
}

#[tokio::test]
async fn lost_commit_answer_is_looked_up_and_not_repeated() {
    for lost in 0..=3_usize {
        let (inner, clock) = ground().await;
        let store = Watched::new(inner);
        let (engine, _tasks) =
            start_killable(store.clone(), &clock, |engine| engine.workflow(three()).action("work", note))
                .await;
        let mut left = lost;
        store.rule(move |_| {
            left = left.wrapping_sub(1);
            if left == usize::MAX { Fate::AnswerLost } else { Fate::Arrives }
        });
        let run = engine.start(Start::new("three")).await.unwrap().id();
        engine.advance(SECOND).await;
        is_whole(&engine, run).await;
    }
}

#[tokio::test]
async fn crash_during_a_retry_delay_does_not_delay_the_retry() {
    let (store, clock) = ground().await;
    let definition = || job(|work| work.retry(Retry { attempts: 1, delay_ms: 2_000, ..Retry::default() }));
    let (first, tasks) = start_killable(store.clone(), &clock, worker(definition(), &Script::bad())).await;
    let run = first.start(Start::new("job")).await.unwrap().id();
    first.settle().await;
    tasks.kill().await;
    let script = Script::good();
    let (second, _tasks) = start_killable(store, &clock, worker(definition(), &script)).await;
    second.advance(2 * SECOND).await;
    assert_eq!(status(&second.run(run)).await, Status::Completed);
    let call = script.calls()[0].clone();
    assert_eq!((call.at, call.attempt), (BEGINS.plus_ms(2_000), 2));
}

#[tokio::test]
async fn timer_fires_in_another_process_after_a_crash() {
    let (store, clock) = ground().await;
    let definition = || {
        let ring = Transition::new("ring", "asleep", "awake").after_ms(60_000).action("work");
        Spec::new("alarm").step("asleep").end("awake").transition(ring).build().unwrap()
    };
    let (first, tasks) = start_killable(store.clone(), &clock, worker(definition(), &Script::bad())).await;
    let run = first.start(Start::new("alarm")).await.unwrap().id();
    first.settle().await;
    tasks.kill().await;
    let script = Script::good();
    let (second, _tasks) = start_killable(store, &clock, worker(definition(), &script)).await;
    second.advance(60 * SECOND).await;
    assert_eq!(
        (status(&second.run(run)).await, script.calls()[0].at),
        (Status::Completed, BEGINS.plus_ms(60_000))
    );
}

/// Wraps a store so that a test can make its next calls fail.
fn faulty(store: &Arc<dyn Store>) -> Arc<Faulty<Arc<dyn Store>>> {
    Arc::new(Faulty::new(store.clone(), []))
}

#[tokio::test]
async fn store_outage_delays_a_result_and_loses_nothing() {
    for fault in [Fault::Before, Fault::After] {
        let (inner, clock) = ground().await;
        let store = faulty(&inner);
        let gate = Gate::new();
        let (engine, _tasks) = start_killable(store.clone(), &clock, gated(job(|work| work), &gate)).await;
        let run = engine.start(Start::new("job")).await.unwrap();
        engine.settle().await;
        // The commit of the result, and the lookups after it.
        (0..3).for_each(|_| store.then(fault));
        gate.open(1);
        engine.advance(5 * SECOND).await;
        assert_eq!((status(&run).await, gate.began(), version(&run).await), (Status::Completed, 1, 1));
    }
}

/// Drops a call after 200 ms and asserts that it had no answer by then.
async fn goes_away<T>(call: impl Future<Output = T>) {
    assert!(tokio::time::timeout(Duration::from_millis(200), call).await.is_err(), "there was an answer");
}

#[tokio::test]
async fn run_continues_when_the_start_call_is_dropped() {
    let (inner, clock) = ground().await;
    let store = faulty(&inner);
    let script = Script::good();
    let (engine, _tasks) = start_killable(store.clone(), &clock, worker(job(|work| work), &script)).await;
    engine.settle().await;
    let id = stepwell::new_run_id();
    // The first call resolves the name.
    [Fault::None, Fault::LoseAnswer].into_iter().for_each(|fault| store.then(fault));
    goes_away(engine.start(Start::new("job").id(id))).await;
    engine.advance(NOTICED).await;
    assert_eq!((status(&engine.run(id)).await, script.calls().len()), (Status::Completed, 1));
}

#[tokio::test]
async fn run_continues_when_the_signal_call_is_dropped() {
    let (inner, clock) = ground().await;
    let store = faulty(&inner);
    let script = Script::good();
    let (engine, _tasks) = start_killable(store.clone(), &clock, worker(desk(|work| work), &script)).await;
    let run = engine.start(Start::new("desk")).await.unwrap();
    engine.settle().await;
    store.then(Fault::LoseAnswer);
    goes_away(run.signal(Signal::new("GO").with(&7))).await;
    engine.advance(NOTICED).await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Completed, 1));
    assert_eq!(script.calls()[0].payload, json!(7));
}

#[tokio::test]
async fn run_continues_when_the_retry_call_is_dropped() {
    let (inner, clock) = ground().await;
    let store = faulty(&inner);
    let script = Script::failing(1);
    let (engine, _tasks) = start_killable(store.clone(), &clock, worker(job(|work| work), &script)).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Failed);
    [Fault::None, Fault::LoseAnswer].into_iter().for_each(|fault| store.then(fault));
    goes_away(engine.operate(run.id(), Command::Retry, &Operator::named("ada"))).await;
    engine.advance(NOTICED).await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Completed, 2));
}

#[tokio::test]
async fn run_continues_when_its_sqlite_file_is_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let clock = ManualClock::new(BEGINS);
    let gate = Gate::new();
    gate.open(1);
    let act = {
        let gate = gate.clone();
        move |cx: Cx| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                note(cx).await
            }
        }
    };
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).unwrap());
    let (first, tasks) =
        start_killable(store, &clock, |engine| engine.workflow(three()).action("work", act)).await;
    let run = first.start(Start::new("three")).await.unwrap().id();
    eventually(async || gate.inside() == 1 && gate.began() == 2).await;
    tasks.kill().await;
    drop(first);
    eventually(async || SqliteStore::open(&path).is_ok()).await;
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).unwrap());
    let (second, _tasks) =
        start_killable(store, &clock, |engine| engine.workflow(three()).action("work", note)).await;
    eventually(async || status(&second.run(run)).await == Status::Completed).await;
    is_whole(&second, run).await;
    assert_eq!(second.now(), BEGINS, "the file has no other owner, so no lease is awaited");
}

// Every process may decide, only the owner runs actions.

#[tokio::test]
async fn signal_to_another_branch_keeps_the_running_action() {
    let gate = Gate::new();
    let engine = kit::start(gated(pair().build().unwrap(), &gate)).await.unwrap();
    let run = engine.start(Start::new("pair")).await.unwrap();
    engine.settle().await;
    let owner = run.view().await.unwrap().owner;
    assert!(owner.is_some());
    assert_eq!(run.signal(Signal::new("NEXT")).await.unwrap(), Signalled::Consumed);
    engine.settle().await;
    assert_eq!((version(&run).await, gate.dropped(), gate.inside()), (1, 0, 1));
    assert_eq!(run.view().await.unwrap().owner, owner, "a decision does not change the owner");
    gate.open(1);
    engine.settle().await;
    assert_eq!((status(&run).await, gate.began()), (Status::Completed, 1));
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "NEXT", "__auto:work", "__auto:finish"]);
}

#[tokio::test]
async fn another_process_can_decide_while_the_owner_acts() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let definition = Spec::new("pair")
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .step("later")
        .join("both", Quorum::All, ["left", "later"])
        .end("done")
        .signal("NEXT")
        .transition(Transition::new("l", "left", "both").action("work"))
        .on_signal("next", "right", "NEXT", "later")
        .transition(Transition::new("r", "later", "both").action("other"))
        .auto("finish", "both", "done")
        .build()
        .unwrap();
    let (mine, theirs) = (Script::good(), Script::good());
    let first = gated(definition.clone(), &gate);
    let (mine_too, theirs_too) = (mine.action(), theirs.action());
    let (first, _first) =
        start_killable(store.clone(), &clock, |engine| first(engine).action("other", mine_too)).await;
    let second = gated(definition, &gate);
    let (second, _second) =
        start_killable(store, &clock, |engine| second(engine).action("other", theirs_too)).await;
    let run = first.start(Start::new("pair")).await.unwrap();
    first.settle().await;
    assert_eq!(second.signal(run.id(), Signal::new("NEXT")).await.unwrap(), Signalled::Consumed);
    settle(&[&first, &second]).await;
    assert_eq!(
        (mine.calls().len(), theirs.calls().len()),
        (1, 0),
        "the owner runs actions that others have decided on"
    );
    gate.open(1);
    settle(&[&first, &second]).await;
    assert_eq!((status(&run).await, gate.began()), (Status::Completed, 1));
}

#[tokio::test]
async fn each_action_runs_in_one_of_many_processes() {
    let (store, clock) = ground().await;
    let act = |cx: Cx| async move {
        tokio::task::yield_now().await;
        cx.write(increment("count"))
    };
    let mut engines = Vec::new();
    for _ in 0..3 {
        let build = |engine: Builder| engine.workflow(job(|work| work)).action("work", act);
        engines.push(start_killable(store.clone(), &clock, build).await);
    }
    let mut runs = Vec::new();
    for number in 0..60 {
        runs.push(engines[number % 3].0.start(Start::new("job").after(SECOND)).await.unwrap());
    }
    engines[0].0.advance(SECOND).await;
    let all: Vec<_> = engines.iter().map(|(engine, _)| engine).collect();
    settle(&all).await;
    for run in &runs {
        assert_eq!((status(run).await, version(run).await), (Status::Completed, 1));
    }
    assert_eq!(cell(all[0], "count").await, Some(json!(60)));
}

#[tokio::test]
async fn action_of_a_cancelled_run_is_dropped() {
    let gate = Gate::new();
    let act = gate.and(|cx| {
        cx.write(increment("count"))?;
        Ok(Value::Null)
    });
    let engine = kit::start(|engine| engine.workflow(job(|work| work)).action("work", act)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    engine.cancel(run.id()).await.unwrap();
    engine.settle().await;
    assert_eq!((gate.inside(), gate.dropped()), (0, 1));
    gate.open(5);
    engine.settle().await;
    assert_eq!((status(&run).await, cell(&engine, "count").await), (Status::Cancelled, None));
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "__operator:cancel"]);
}

#[tokio::test]
async fn cancel_in_another_process_drops_the_owners_action() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let (first, _first) = start_killable(store.clone(), &clock, gated(job(|work| work), &gate)).await;
    let (second, _second) = start_killable(store, &clock, gated(job(|work| work), &gate)).await;
    let run = first.start(Start::new("job")).await.unwrap();
    first.settle().await;
    second.cancel(run.id()).await.unwrap();
    settle(&[&first, &second]).await;
    assert_eq!((gate.began(), gate.dropped(), status(&run).await), (1, 1, Status::Cancelled));
}

#[tokio::test]
async fn action_is_dropped_when_another_branch_ends_the_run() {
    let gate = Gate::new();
    let definition =
        pair().end("over").signal("OVER").on_signal("over", "right", "OVER", "over").build().unwrap();
    let engine = kit::start(gated(definition, &gate)).await.unwrap();
    let run = engine.start(Start::new("pair")).await.unwrap();
    engine.settle().await;
    run.signal(Signal::new("OVER")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, gate.dropped()), (Status::Completed, 1));
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "OVER"]);
}

#[tokio::test]
async fn action_of_a_cancelled_branch_is_dropped() {
    let gate = Gate::new();
    let act = gate.and(|cx| {
        cx.write(increment("count"))?;
        Ok(Value::Null)
    });
    let first_of = |of: [&str; 2]| {
        Place::Join(Join {
            of: of.map(Into::into).into(),
            quorum: Quorum::Any,
            cancel_rest: true,
            ..Join::default()
        })
    };
    let definition = Spec::new("race")
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .place("first", first_of(["left", "right"]))
        .wait("then", "DONE")
        .end("done")
        .signal("NEXT")
        .signal("DONE")
        .transition(Transition::new("l", "left", "first").action("work"))
        .on_signal("r", "right", "NEXT", "first")
        .auto("on", "first", "then")
        .auto("finish", "then", "done")
        .build()
        .unwrap();
    let engine = kit::start(|engine| engine.workflow(definition).action("work", act)).await.unwrap();
    let run = engine.start(Start::new("race")).await.unwrap();
    engine.settle().await;
    run.signal(Signal::new("NEXT")).await.unwrap();
    engine.settle().await;
    assert_eq!((gate.inside(), gate.dropped()), (0, 1));
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.owner, places(&run).await), (Status::Waiting, None, vec!["then".into()]));
    run.signal(Signal::new("DONE")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, cell(&engine, "count").await), (Status::Completed, None));
}

#[tokio::test]
async fn action_of_a_moved_activation_is_dropped() {
    let gate = Gate::new();
    let definition = crate::world::job_spec(|work| work).wait("aside", "GO").signal("GO");
    let definition = definition.auto("back", "aside", "todo").on_signal("aside", "todo", "GO", "aside");
    let engine = kit::start(gated(definition.build().unwrap(), &gate)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    let aside = Command::Move { activation: None, to: "aside".into() };
    engine.operate(run.id(), aside, &Operator::named("ada")).await.unwrap();
    engine.settle().await;
    assert_eq!((gate.began(), gate.dropped(), status(&run).await), (1, 1, Status::Waiting));
    run.signal(Signal::new("GO")).await.unwrap();
    engine.settle().await;
    assert_eq!(gate.inside(), 1, "it is another activation of the same place: a new action");
    gate.open(1);
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn suspended_run_keeps_the_result_of_its_action() {
    let gate = Gate::new();
    let engine = kit::start(gated(three(), &gate)).await.unwrap();
    let run = engine.start(Start::new("three")).await.unwrap();
    engine.settle().await;
    engine.operate(run.id(), Command::Suspend, &Operator::named("ada")).await.unwrap();
    engine.settle().await;
    assert_eq!((gate.inside(), status(&run).await), (1, Status::Suspended));
    gate.open(3);
    engine.settle().await;
    assert_eq!((status(&run).await, version(&run).await, gate.began()), (Status::Suspended, 1, 1));
    engine.operate(run.id(), Command::Resume, &Operator::named("ada")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, gate.began()), (Status::Completed, 3));
}

/// Two processes and a run whose action waits at a gate in each. The first process is frozen, and the second has taken
/// over.
async fn taken_over() -> (TestEngine, TestEngine, crate::world::Ice, RunId, Gate, Gate) {
    let (store, clock) = ground().await;
    let (old, new) = (Gate::new(), Gate::new());
    let says = |gate: &Gate, who: &'static str| {
        let act = gate.and(move |cx| {
            cx.write(increment("count"))?;
            Ok(json!(who))
        });
        let work = Transition::new("work", "todo", "done").action_with(saved("work", "by"));
        let definition = Spec::new("job").step("todo").end("done").transition(work).build().unwrap();
        move |engine: Builder| engine.workflow(definition).action("work", act)
    };
    let (first, ice) = freezable(store.clone(), &clock, says(&old, "old")).await;
    let run = first.start(Start::new("job")).await.unwrap().id();
    first.settle().await;
    let (second, _ice) = freezable(store, &clock, says(&new, "new")).await;
    ice.freeze();
    second.advance(NOTICED).await;
    assert_eq!((old.inside(), new.inside()), (1, 1), "the old owner has not noticed the takeover");
    (first, second, ice, run, old, new)
}

#[tokio::test]
async fn result_of_an_owner_past_its_lease_is_discarded() {
    let (first, second, ice, run, old, new) = taken_over().await;
    new.open(1);
    second.settle().await;
    assert_eq!(status(&second.run(run)).await, Status::Completed);
    old.open(1);
    ice.thaw();
    settle(&[&first, &second]).await;
    assert_eq!(context(&second.run(run)).await, json!({"by": "new"}));
    assert_eq!(cell(&second, "count").await, Some(json!(1)));
    assert_eq!(
        (history_actions(&second, run).await.len(), old.inside()),
        (2, 0),
        "the old action has stopped"
    );
}

#[tokio::test]
async fn thawed_owner_is_fenced_before_the_new_owner_finishes() {
    let (first, second, ice, run, old, new) = taken_over().await;
    old.open(1);
    ice.thaw();
    settle(&[&first, &second]).await;
    assert_eq!((old.inside(), new.inside(), new.dropped()), (0, 1, 0));
    assert_eq!((version(&second.run(run)).await, cell(&second, "count").await), (0, None));
    new.open(1);
    settle(&[&first, &second]).await;
    assert_eq!(context(&second.run(run)).await, json!({"by": "new"}));
    assert_eq!(cell(&second, "count").await, Some(json!(1)));
    old.open(1);
    let again = first.start(Start::new("job")).await.unwrap();
    settle(&[&first, &second]).await;
    assert_eq!(status(&again).await, Status::Completed, "it continues as another process");
}

#[tokio::test]
async fn owner_frozen_within_its_lease_loses_nothing() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let (first, ice) = freezable(store.clone(), &clock, gated(job(|work| work), &gate)).await;
    let run = first.start(Start::new("job")).await.unwrap();
    first.settle().await;
    let (second, _ice) = freezable(store, &clock, gated(job(|work| work), &gate)).await;
    ice.freeze();
    second.advance(Duration::from_millis(LEASE_MS - 1)).await;
    ice.thaw();
    gate.open(1);
    settle(&[&first, &second]).await;
    second.advance(NOTICED).await;
    assert_eq!((status(&run).await, gate.began(), gate.dropped()), (Status::Completed, 1, 0));
}

// Only runs that the process can serve.

fn unrelated() -> Definition {
    let tick = Transition::new("tick", "a", "b").after_ms(10_000);
    Spec::new("unrelated").step("a").end("b").transition(tick).build().unwrap()
}

/// A store with a run whose process has crashed.
async fn orphan(definition: Definition) -> (Arc<dyn Store>, ManualClock, RunId) {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let build = gated(definition.clone(), &gate);
    let build = |engine: Builder| build(engine).guard("open", |_| async { true });
    let (engine, tasks) = start_killable(store.clone(), &clock, build).await;
    let run = engine.start(Start::new(definition.name().clone())).await.unwrap().id();
    engine.settle().await;
    tasks.kill().await;
    (store, clock, run)
}

#[tokio::test]
async fn unserved_run_is_neither_loaded_nor_changed() {
    let guarded = |work: Transition| work.guard(Guard::named("open"));
    for (definition, has_action) in [(job(|work| work), false), (job(guarded), true)] {
        let (inner, clock, run) = orphan(definition).await;
        let store = Watched::new(inner);
        let (engine, _tasks) = start_killable(store.clone(), &clock, |engine| {
            let engine = engine.workflow(unrelated()).with(|options| options.poll_ms = 1_000);
            if has_action {
                engine.action("work", |_: Cx| async { Ok::<_, ActionError>(()) })
            } else {
                engine
            }
        })
        .await;
        let before = row(&engine, run).await;
        store.commits();
        store.loads();
        soon(engine.settle()).await;
        soon(engine.advance(60 * SECOND)).await;
        assert_eq!((store.loads(), store.commits().len()), (0, 0));
        assert_eq!(row(&engine, run).await, before);
        assert!(!engine.run(run).view().await.unwrap().has_error());
    }
}

#[tokio::test]
async fn engine_with_the_action_takes_the_unserved_run() {
    let (store, clock, run) = orphan(job(|work| work)).await;
    let (without, _without) =
        start_killable(store.clone(), &clock, |engine| engine.workflow(unrelated())).await;
    without.advance(NOTICED).await;
    assert_eq!(version(&without.run(run)).await, 0);
    let script = Script::good();
    let (with, _with) = start_killable(store, &clock, worker(job(|work| work), &script)).await;
    settle(&[&without, &with]).await;
    assert_eq!((status(&with.run(run)).await, script.calls().len()), (Status::Completed, 1));
}

#[tokio::test]
async fn stored_definition_is_served_by_engines_with_its_actions() {
    let (store, clock, run) = orphan(job(|work| work)).await;
    let script = Script::good();
    let action = script.action();
    let (engine, _tasks) = start_killable(store, &clock, |engine| engine.action("work", action)).await;
    engine.advance(NOTICED).await;
    assert_eq!((status(&engine.run(run)).await, script.calls().len()), (Status::Completed, 1));
    let unknown = engine.start(Start::new("job")).await;
    assert!(
        matches!(unknown, Err(EngineError::UnknownWorkflow { .. })),
        "it is known for existing runs only"
    );
}

#[tokio::test]
async fn definition_stored_later_is_served_too() {
    let (store, clock) = ground().await;
    let script = Script::good();
    let action = script.action();
    let (engine, _tasks) = start_killable(store.clone(), &clock, |engine| {
        engine.action("work", action).with(|options| options.poll_ms = 1_000)
    })
    .await;
    engine.settle().await;
    let (calls, _calls) = start_killable(store, &clock, |engine| {
        engine.workflow(job(|work| work)).with(|options| options.max_runs = 0)
    })
    .await;
    let run = calls.start(Start::new("job")).await.unwrap();
    engine.advance(2 * SECOND).await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Completed, 1));
}

#[tokio::test]
async fn engine_refuses_to_start_with_missing_actions() {
    let definition = job(|work| work.guard(Guard::named("open")));
    let refused = kit::start(|engine| engine.workflow(definition)).await;
    let Err(EngineError::Invalid(why)) = refused.map(|_| ()) else { panic!("it started") };
    assert!(["`job`", "`work`", "`open`"].iter().all(|name| why.contains(name)), "{why}");
}

#[tokio::test]
async fn signal_through_a_process_without_the_action_works() {
    let (store, clock) = ground().await;
    let script = Script::good();
    let (with, _with) = start_killable(store.clone(), &clock, worker(desk(|work| work), &script)).await;
    let run = with.start(Start::new("desk")).await.unwrap();
    with.settle().await;
    let (without, _without) = start_killable(store, &clock, |engine| engine.workflow(unrelated())).await;
    without.signal(run.id(), Signal::new("GO").with(&7)).await.unwrap();
    settle(&[&without, &with]).await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Completed, 1));
    assert_eq!(script.calls()[0].payload, json!(7));
}

#[tokio::test]
async fn command_through_a_process_without_the_action_works() {
    let (store, clock) = ground().await;
    let script = Script::failing(1);
    let (with, _with) = start_killable(store.clone(), &clock, worker(job(|work| work), &script)).await;
    let run = with.start(Start::new("job")).await.unwrap();
    with.settle().await;
    assert_eq!(status(&run).await, Status::Failed);
    let (without, _without) = start_killable(store, &clock, |engine| engine.workflow(unrelated())).await;
    without.operate(run.id(), Command::Retry, &Operator::named("ada")).await.unwrap();
    settle(&[&without, &with]).await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Completed, 2));
}

#[tokio::test]
async fn unserved_run_does_not_delay_others() {
    let (store, clock, _run) = orphan(job(|work| work)).await;
    let (engine, _tasks) = start_killable(store, &clock, |engine| engine.workflow(unrelated())).await;
    engine.advance(NOTICED).await;
    let timer = engine.start(Start::new("unrelated")).await.unwrap();
    engine.settle().await;
    // Another start makes the engine search for work before the timer is due.
    engine.start(Start::new("unrelated").after(SECOND)).await.unwrap();
    engine.advance(10 * SECOND).await;
    assert_eq!(status(&timer).await, Status::Completed);
}

// Crashes are counted.

/// Starts processes that crash during the action, one after the other.
async fn die_under(
    store: &Arc<dyn Store>,
    clock: &ManualClock,
    times: usize,
    build: impl Fn() -> Definition,
) {
    for _ in 0..times {
        let gate = Gate::new();
        let (engine, tasks) = start_killable(store.clone(), clock, gated(build(), &gate)).await;
        engine.advance(NOTICED).await;
        assert_eq!(gate.inside(), 1, "the action is attempted");
        tasks.kill().await;
    }
}

#[tokio::test]
async fn five_crashes_in_one_transition_stop_the_run() {
    let (store, clock, run) = orphan(job(|work| work)).await;
    die_under(&store, &clock, 4, || job(|work| work)).await;
    let script = Script::good();
    let (engine, _tasks) = start_killable(store, &clock, worker(job(|work| work), &script)).await;
    engine.advance(NOTICED).await;
    let run = engine.run(run);
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("crashed")));
    assert_eq!((script.calls().len(), version(&run).await), (0, 0), "it is not attempted again");
    let error = run.view().await.unwrap().ledger.stopped.unwrap().error;
    assert!(error.message.contains("5 times") && error.message.contains("`work`"), "{error}");
    engine.operate(run.id(), Command::Retry, &Operator::named("ada")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Completed, 1));
}

#[tokio::test]
async fn fewer_crashes_than_allowed_do_not_stop_a_run() {
    let (store, clock, run) = orphan(job(|work| work)).await;
    die_under(&store, &clock, 3, || job(|work| work)).await;
    let script = Script::good();
    let (engine, _tasks) = start_killable(store, &clock, worker(job(|work| work), &script)).await;
    engine.advance(NOTICED).await;
    assert_eq!((status(&engine.run(run)).await, script.calls()[0].attempt), (Status::Completed, 5));
}

#[tokio::test]
async fn crash_limit_is_configurable() {
    let (store, clock, run) = orphan(job(|work| work)).await;
    let script = Script::good();
    let build = worker(job(|work| work), &script);
    let (engine, _tasks) =
        start_killable(store, &clock, |engine| build(engine).with(|options| options.max_crashes = 1)).await;
    engine.advance(NOTICED).await;
    let run = engine.run(run);
    assert_eq!((error_code(&run).await.as_deref(), script.calls().len()), (Some("crashed"), 0));
}

#[tokio::test]
async fn manual_retry_resets_the_crash_count() {
    let (store, clock, run) = orphan(job(|work| work)).await;
    let allowed = |engine: Builder| engine.with(|options| options.max_crashes = 2);
    die_under(&store, &clock, 1, || job(|work| work)).await;
    let gate = Gate::new();
    let build = gated(job(|work| work), &gate);
    let (engine, tasks) = start_killable(store.clone(), &clock, |engine| allowed(build(engine))).await;
    engine.advance(NOTICED).await;
    assert_eq!(error_code(&engine.run(run)).await.as_deref(), Some("crashed"));
    engine.operate(run, Command::Retry, &Operator::named("ada")).await.unwrap();
    engine.settle().await;
    assert_eq!(gate.inside(), 1);
    tasks.kill().await;
    let script = Script::good();
    let build = worker(job(|work| work), &script);
    let (engine, _tasks) = start_killable(store, &clock, |engine| allowed(build(engine))).await;
    engine.advance(NOTICED).await;
    assert_eq!((status(&engine.run(run)).await, script.calls().len()), (Status::Completed, 1));
}

#[tokio::test]
async fn crashes_are_counted_while_another_branch_advances() {
    let (store, clock) = ground().await;
    let definition = || {
        let other = Transition::new("other", "right", "right").on_signal("OTHER");
        pair().signal("OTHER").transition(other).build().unwrap()
    };
    let mut run = None;
    for death in 0..5 {
        let gate = Gate::new();
        let (engine, tasks) = start_killable(store.clone(), &clock, gated(definition(), &gate)).await;
        let id = match run {
            None => engine.start(Start::new("pair")).await.unwrap().id(),
            Some(run) => run,
        };
        run = Some(id);
        engine.advance(NOTICED).await;
        assert_eq!(gate.inside(), 1, "after {death} crashes the action is attempted");
        engine.signal(id, Signal::new("OTHER")).await.unwrap();
        engine.settle().await;
        tasks.kill().await;
    }
    let script = Script::good();
    let (engine, _tasks) = start_killable(store, &clock, worker(definition(), &script)).await;
    engine.advance(NOTICED).await;
    let run = engine.run(run.unwrap());
    assert_eq!((error_code(&run).await.as_deref(), script.calls().len()), (Some("crashed"), 0));
    assert_eq!(version(&run).await, 5);
}

#[tokio::test]
async fn crashes_are_counted_per_transition() {
    let (store, clock, run) = orphan(three()).await;
    die_under(&store, &clock, 3, three).await;
    let gate = Gate::new();
    gate.open(1);
    let (engine, tasks) = start_killable(store.clone(), &clock, gated(three(), &gate)).await;
    engine.advance(NOTICED).await;
    assert_eq!((version(&engine.run(run)).await, gate.inside()), (1, 1));
    tasks.kill().await;
    die_under(&store, &clock, 3, three).await;
    let script = Script::good();
    let (engine, _tasks) = start_killable(store, &clock, worker(three(), &script)).await;
    engine.advance(NOTICED).await;
    assert_eq!((status(&engine.run(run)).await, script.calls().len()), (Status::Completed, 2));
}

#[tokio::test]
async fn crashes_do_not_use_up_retries() {
    let retry = || job(|work| work.retry(Retry { attempts: 1, ..Retry::default() }));
    let (store, clock, run) = orphan(retry()).await;
    die_under(&store, &clock, 2, retry).await;
    let script = Script::failing(1);
    let (engine, _tasks) = start_killable(store, &clock, worker(retry(), &script)).await;
    engine.advance(NOTICED).await;
    assert_eq!((status(&engine.run(run)).await, script.pauses()), (Status::Completed, vec![1_000]));
}
