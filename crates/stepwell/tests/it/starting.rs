//! Start and end of runs: once per key, with a signal, delayed, with a deadline; their status meanwhile, and their
//! result.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use stepwell::core::snapshot::RunEnd;
use stepwell::core::spec::{Completion, Quorum, Transition};
use stepwell::core::{Definition, RunId, Spec, Timestamp};
use stepwell::engine::Builder;
use stepwell::store::{RunFilter, RunQuery, Status, Store};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{ActionError, Command, Cx, EngineError, Operator, Run, RunError, Signal, Signalled, Start};
use tokio::sync::Semaphore;

use crate::kit::{
    self, Fate, LEASE_MS, Watched, after_s, audit, children_of, context, error_code, eventually, ground,
    history_actions, other_tenant, places, runs, runs_of, settle, soon, start_killable, status, version,
    waits_of,
};

/// A basket takes `ADD` until it is bought; its result is the list of added items.
fn basket() -> Definition {
    let add = Transition::new("add", "open", "open").on_signal("ADD").action("add");
    Spec::new("basket")
        .step("open")
        .end_with("bought", json!({"items": {"$expr": "context.items"}}))
        .signal_with("ADD", json!({"type": "string"}))
        .signal("BUY")
        .transition(add)
        .on_signal("buy", "open", "BUY", "bought")
        .build()
        .unwrap()
}

async fn add(cx: Cx) -> Result<(), ActionError> {
    let item = cx.payload().clone();
    cx.update_state(|state: &mut Value| {
        state["items"].as_array_mut().into_iter().for_each(|i| i.push(item.clone()));
    })
}

fn shop(builder: Builder) -> Builder {
    builder.workflow(basket()).action("add", add)
}

fn empty() -> Start {
    Start::new("basket").input(&json!({"items": []}))
}

async fn items(run: &Run) -> Value {
    context(run).await["items"].clone()
}

#[tokio::test]
async fn same_key_returns_the_same_run() {
    let engine = kit::start(shop).await.unwrap();
    let first = engine.start_once(empty().key("ada's")).await.unwrap();
    assert!(first.is_new);
    for _ in 0..3 {
        let again = engine.start_once(empty().key("ada's")).await.unwrap();
        assert_eq!((again.is_new, again.run.id()), (false, first.run.id()));
    }
    // The same holds after the run has ended, and with any id in the start.
    first.run.signal(Signal::new("BUY")).await.unwrap();
    engine.settle().await;
    let again = engine.start(empty().key("ada's").id(RunId::nil())).await.unwrap();
    assert_eq!(again.id(), first.run.id());
    let other = engine.start_once(empty().key("bob's")).await.unwrap();
    assert!(other.is_new && other.run.id() != first.run.id());
    assert_eq!(runs_of(&engine, "basket").await.len(), 2);
}

#[tokio::test]
async fn reused_key_with_another_request_is_refused() {
    let other = Spec::new("box").step("a").end("b").auto("ab", "a", "b").build().unwrap();
    let engine = kit::start(|builder| shop(builder).workflow(other)).await.unwrap();
    engine.start(empty().key("ada's")).await.unwrap();
    let input = Start::new("basket").input(&json!({"items": ["tea"]})).key("ada's");
    let workflow = Start::new("box").input(&json!({"items": []})).key("ada's");
    for start in [input, workflow] {
        let error = engine.start(start).await.unwrap_err();
        assert!(matches!(&error, EngineError::KeyReused { key, .. } if key == "ada's"), "{error}");
    }
    assert_eq!(runs(&engine, RunQuery::default()).await.len(), 1);
}

#[tokio::test]
async fn keys_are_scoped_to_a_tenant() {
    let engine = kit::start(shop).await.unwrap();
    let ours = engine.start_once(empty().key("k")).await.unwrap();
    let theirs = engine.for_tenant(other_tenant());
    let run = theirs.start_once(Start::new("basket").input(&json!({"items": [1]})).key("k")).await.unwrap();
    assert!(ours.is_new && run.is_new && ours.run.id() != run.run.id());
}

#[tokio::test]
async fn concurrent_starts_with_one_key_create_one_run() {
    let (store, clock) = ground().await;
    let a = TestEngine::start_on(store.clone(), clock.clone(), shop).await.unwrap();
    let b = TestEngine::start_on(store, clock, shop).await.unwrap();
    let all = (0..40).map(|n| if n % 2 == 0 { &a } else { &b }.start_once(empty().key("one")));
    let all: Vec<_> = join_all(all).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(all.iter().filter(|started| started.is_new).count(), 1);
    assert!(all.iter().all(|started| started.run.id() == all[0].run.id()));
    assert_eq!(runs_of(&a, "basket").await.len(), 1);
}

#[tokio::test]
async fn start_with_a_lost_answer_creates_one_run() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let mut first = true;
    watched.rule(move |_| if std::mem::take(&mut first) { Fate::AnswerLost } else { Fate::Arrives });
    let definition = Spec::new("box").step("a").end_with("b", json!(7)).auto("ab", "a", "b").build().unwrap();
    let build = |builder: Builder| shop(builder).workflow(definition);
    let engine = TestEngine::start_on(watched, clock, build).await.unwrap();
    let run = engine.start(Start::new("box").key("one")).await.unwrap();
    engine.settle().await;
    assert_eq!(soon(run.result()).await.unwrap(), json!(7));
    let again = engine.start_once(Start::new("box").key("one")).await.unwrap();
    assert_eq!((again.is_new, again.run.id()), (false, run.id()));
}

#[tokio::test]
async fn used_run_id_starts_no_second_run() {
    let engine = kit::start(shop).await.unwrap();
    let run = engine.start(empty().id(RunId::nil())).await.unwrap();
    assert_eq!(run.id(), RunId::nil());
    assert!(engine.start(empty().id(RunId::nil())).await.is_err());
    assert_eq!(runs_of(&engine, "basket").await.len(), 1);
}

#[tokio::test]
async fn invalid_start_is_refused_with_the_reason() {
    let schema = json!({"type": "object", "required": ["name"]});
    let strict = Spec::new("strict").context_schema(schema).step("a").end("b").auto("ab", "a", "b");
    let engine = kit::start(|b| shop(b).workflow(strict.build().unwrap())).await.unwrap();
    for (start, says) in [
        (Start::new("baskett"), "no workflow `baskett`"),
        (Start::new("strict").input(&json!({"nam": 1})), "name"),
        (Start::new("basket").input(&json!([1])), "object"),
    ] {
        let error = engine.start(start.key("k")).await.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(runs(&engine, RunQuery::default()).await, []);
    // The refused start has not consumed the key.
    assert!(engine.start_once(empty().key("k")).await.unwrap().is_new);
}

fn item(name: &str) -> Signal {
    Signal::new("ADD").with(name)
}

#[tokio::test]
async fn start_or_signal_creates_run_and_signal_in_one_commit() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let engine = TestEngine::start_on(watched.clone(), clock, shop).await.unwrap();
    watched.commits();
    let started = engine.start_or_signal(empty().key("ada's"), item("tea")).await.unwrap();
    let commits = watched.commits();
    assert_eq!((started.is_new, commits.len()), (true, 1));
    assert_eq!((commits[0].create.len(), commits[0].send.len(), commits[0].keys.len()), (1, 1, 1));
    engine.settle().await;
    assert_eq!(items(&started.run).await, json!(["tea"]));
    let again = engine.start_or_signal(empty().key("ada's"), item("milk")).await.unwrap();
    engine.settle().await;
    assert_eq!((again.is_new, again.run.id()), (false, started.run.id()));
    assert_eq!(items(&started.run).await, json!(["tea", "milk"]));
}

#[tokio::test]
async fn concurrent_start_or_signal_creates_one_run() {
    let (store, clock) = ground().await;
    let a = TestEngine::start_on(store.clone(), clock.clone(), shop).await.unwrap();
    let b = TestEngine::start_on(store, clock, shop).await.unwrap();
    let all = (0..30).map(|number| {
        let engine = if number % 2 == 0 { &a } else { &b };
        engine.start_or_signal(empty().key("one"), item(&format!("{number:02}")))
    });
    let all: Vec<_> = join_all(all).await.into_iter().map(Result::unwrap).collect();
    settle(&[&a, &b]).await;
    assert_eq!(all.iter().filter(|started| started.is_new).count(), 1);
    let mut got: Vec<String> = Vec::deserialize(items(&all[0].run).await).unwrap();
    got.sort();
    assert_eq!(got, (0..30).map(|number| format!("{number:02}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn start_or_signal_with_one_signal_id_signals_once() {
    let engine = kit::start(shop).await.unwrap();
    for _ in 0..3 {
        engine.start_or_signal(empty().key("ada's"), item("tea").id("click 1")).await.unwrap();
        engine.settle().await;
    }
    let run = engine.start_or_signal(empty().key("ada's"), item("milk").id("click 2")).await.unwrap().run;
    engine.settle().await;
    assert_eq!(items(&run).await, json!(["tea", "milk"]));
}

#[tokio::test]
async fn start_finds_the_run_of_start_or_signal() {
    let engine = kit::start(shop).await.unwrap();
    let begun = engine.start_or_signal(empty().key("ada's"), item("tea")).await.unwrap();
    let again = engine.start_once(empty().key("ada's")).await.unwrap();
    assert_eq!((again.is_new, again.run.id()), (false, begun.run.id()));
    // The reverse order gives the same result.
    let begun = engine.start_once(empty().key("bob's")).await.unwrap();
    let again = engine.start_or_signal(empty().key("bob's"), item("tea")).await.unwrap();
    assert_eq!((again.is_new, again.run.id()), (false, begun.run.id()));
}

#[tokio::test]
async fn start_or_signal_with_invalid_signal_starts_nothing() {
    let engine = kit::start(shop).await.unwrap();
    for signal in [Signal::new("ADD").with(&5), Signal::new("ADDD")] {
        let error = engine.start_or_signal(empty().key("k"), signal).await.unwrap_err();
        assert!(matches!(error, EngineError::Refused(_)), "{error}");
    }
    let error = engine.start_or_signal(empty(), item("tea")).await.unwrap_err();
    assert!(error.to_string().contains("needs an idempotency key"), "{error}");
    assert_eq!(runs(&engine, RunQuery::default()).await, []);
}

#[tokio::test]
async fn start_or_signal_on_an_ended_run_is_refused() {
    let engine = kit::start(shop).await.unwrap();
    let run = engine.start_or_signal(empty().key("k"), Signal::new("BUY")).await.unwrap().run;
    engine.settle().await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"items": []}));
    let error = engine.start_or_signal(empty().key("k"), item("tea")).await.unwrap_err();
    assert!(error.to_string().contains("ended"), "{error}");
}

/// An action that records when it is called, and fails while it is broken.
#[derive(Clone, Default)]
struct Work {
    at: Arc<Mutex<Vec<Timestamp>>>,
    broken: Arc<AtomicBool>,
}

impl Work {
    fn times(&self) -> Vec<Timestamp> {
        self.at.lock().unwrap().clone()
    }

    fn build(&self, definition: Definition) -> impl FnOnce(Builder) -> Builder + use<> {
        let work = self.clone();
        let action = move |cx: Cx| {
            work.at.lock().unwrap().push(cx.now());
            let broken = work.broken.load(Ordering::SeqCst);
            std::future::ready(if broken { Err(ActionError::new("broken", "it is broken")) } else { Ok(()) })
        };
        move |builder| builder.workflow(definition).action("work", action)
    }
}

/// A workflow with an action, then a wait, then a sleep of one minute.
fn job() -> Definition {
    Spec::new("job")
        .step("todo")
        .wait("asked", "GO")
        .step("nap")
        .end_with("done", json!("done"))
        .signal("GO")
        .transition(Transition::new("work", "todo", "asked").action("work"))
        .auto("go", "asked", "nap")
        .transition(Transition::new("wake", "nap", "done").after_ms(60_000))
        .build()
        .unwrap()
}

#[tokio::test]
async fn delayed_start_is_pending_and_starts_on_time() {
    let work = Work::default();
    let engine = kit::start(work.build(job())).await.unwrap();
    let at = engine.start(Start::new("job").at(after_s(3_600))).await.unwrap();
    let after = engine.start(Start::new("job").after(Duration::from_secs(7_200))).await.unwrap();
    engine.advance(Duration::from_secs(3_599)).await;
    assert_eq!(
        (status(&at).await, status(&after).await, work.times()),
        (Status::Pending, Status::Pending, vec![])
    );
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!((status(&at).await, status(&after).await), (Status::Waiting, Status::Pending));
    engine.advance(Duration::from_secs(3_600)).await;
    assert_eq!(status(&after).await, Status::Waiting);
    assert_eq!(work.times(), [after_s(3_600), after_s(7_200)]);
}

#[tokio::test]
async fn timers_of_a_delayed_run_count_from_its_start() {
    let definition = Spec::new("reminder")
        .step("asleep")
        .end("awake")
        .transition(Transition::new("wake", "asleep", "awake").after_ms(60_000));
    let engine = kit::start(|b| b.workflow(definition.build().unwrap())).await.unwrap();
    let run = engine.start(Start::new("reminder").after(Duration::from_secs(100))).await.unwrap();
    engine.advance(Duration::from_secs(159)).await;
    assert_eq!(status(&run).await, Status::Waiting);
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn past_start_time_starts_at_once() {
    let work = Work::default();
    let engine = kit::start(work.build(job())).await.unwrap();
    engine.advance(Duration::from_secs(60)).await;
    engine.start(Start::new("job").at(BEGINS)).await.unwrap();
    engine.start(Start::new("job").after(Duration::ZERO)).await.unwrap();
    engine.settle().await;
    assert_eq!(work.times(), [after_s(60), after_s(60)]);
}

#[tokio::test]
async fn signal_to_a_pending_run_is_buffered_until_it_starts() {
    let engine = kit::start(shop).await.unwrap();
    let run = engine.start(empty().after(Duration::from_secs(60))).await.unwrap();
    assert_eq!(run.signal(item("tea")).await.unwrap(), Signalled::Buffered);
    engine.advance(Duration::from_secs(59)).await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Pending, 0));
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!((status(&run).await, items(&run).await), (Status::Waiting, json!(["tea"])));
}

#[tokio::test]
async fn patched_pending_run_stays_pending() {
    let work = Work::default();
    let engine = kit::start(work.build(job())).await.unwrap();
    let run = engine.start(Start::new("job").after(Duration::from_secs(60))).await.unwrap();
    let patch = Command::Patch { fields: json!({"note": 1}) };
    engine.operate(run.id(), patch, &Operator::default()).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, work.times()), (Status::Pending, vec![]));
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!((status(&run).await, work.times()), (Status::Waiting, vec![after_s(60)]));
}

#[tokio::test]
async fn pending_run_starts_in_another_engine() {
    let (store, clock) = ground().await;
    let work = Work::default();
    let a = TestEngine::start_on(store.clone(), clock.clone(), work.build(job())).await.unwrap();
    let run = a.start(Start::new("job").after(Duration::from_secs(60))).await.unwrap().id();
    drop(a);
    let b = TestEngine::start_on(store, clock, work.build(job())).await.unwrap();
    b.advance(Duration::from_secs(60)).await;
    assert_eq!((status(&b.run(run)).await, work.times()), (Status::Waiting, vec![after_s(60)]));
}

async fn at_its_deadline(state: &str) {
    let (engine, work) = (kit::start, Work::default());
    work.broken.store(state == "failed", Ordering::SeqCst);
    let engine = engine(work.build(job())).await.unwrap();
    let start = Start::new("job").within(Duration::from_secs(600));
    let later = state == "pending";
    let start = if later { start.after(Duration::from_secs(900)) } else { start };
    let run = engine.start(start).await.unwrap();
    engine.settle().await;
    if state == "suspended" {
        engine.operate(run.id(), Command::Suspend, &Operator::default()).await.unwrap();
    }
    assert_eq!(status(&run).await.as_str(), state);
    engine.advance(Duration::from_secs(599)).await;
    assert_eq!(status(&run).await.as_str(), state);
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!(status(&run).await, Status::Cancelled, "{state}");
    assert!(matches!(soon(run.result()).await, Err(RunError::Cancelled(_))));
    assert_eq!(history_actions(&engine, run.id()).await.last().unwrap(), "__deadline");
    let view = run.view().await.unwrap();
    assert_eq!((view.wake, view.owner), (None, None));
    assert_eq!(waits_of(&engine, run.id()).await, []);
    engine.advance(Duration::from_secs(3_600)).await;
    assert_eq!(work.times().len(), usize::from(!later), "nothing happens after it");
}

#[tokio::test]
async fn deadline_cancels_a_run_in_any_status() {
    for state in ["waiting", "failed", "suspended", "pending"] {
        at_its_deadline(state).await;
    }
}

#[tokio::test]
async fn deadline_ends_the_running_action() {
    let seen = Arc::new(Mutex::new(None::<Cx>));
    let kept = seen.clone();
    let stays = move |cx: Cx| {
        *kept.lock().unwrap() = Some(cx);
        std::future::pending::<Result<(), ActionError>>()
    };
    let engine = kit::start(|b| b.workflow(job()).action("work", stays)).await.unwrap();
    let run = engine.start(Start::new("job").deadline(after_s(30))).await.unwrap();
    engine.advance(Duration::from_secs(29)).await;
    assert_eq!(status(&run).await, Status::Running);
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Cancelled, 1));
    assert!(seen.lock().unwrap().as_ref().unwrap().is_over());
    assert_eq!(run.view().await.unwrap().owner, None);
}

#[tokio::test]
async fn deadline_cancels_a_run_in_a_retry_delay() {
    let retry = stepwell::core::retry::Retry { attempts: 9, delay_ms: 20_000, ..Default::default() };
    let work = Work::default();
    work.broken.store(true, Ordering::SeqCst);
    let definition = Spec::new("job").step("todo").end("done");
    let tried = Transition::new("work", "todo", "done").action("work").retry(retry);
    let engine = kit::start(work.build(definition.transition(tried).build().unwrap())).await.unwrap();
    let run = engine.start(Start::new("job").within(Duration::from_secs(30))).await.unwrap();
    engine.advance(Duration::from_secs(29)).await;
    assert_eq!(status(&run).await, Status::Running);
    engine.advance(Duration::from_secs(3_600)).await;
    assert_eq!((status(&run).await, work.times()), (Status::Cancelled, vec![BEGINS, after_s(20)]));
    assert_eq!(run.view().await.unwrap().ledger.attempts, []);
}

#[tokio::test]
async fn deadline_during_an_outage_is_applied_afterwards() {
    let (store, clock) = ground().await;
    let work = Work::default();
    let a = TestEngine::start_on(store.clone(), clock.clone(), work.build(job())).await.unwrap();
    let run = a.start(Start::new("job").within(Duration::from_secs(60))).await.unwrap().id();
    a.settle().await;
    drop(a);
    clock.set(after_s(3_600));
    let b = TestEngine::start_on(store, clock, work.build(job())).await.unwrap();
    b.settle().await;
    assert_eq!(status(&b.run(run)).await, Status::Cancelled);
}

#[tokio::test]
async fn deadline_cancels_children_too() {
    let parent = Spec::new("parent")
        .step("todo")
        .wait("later", "CLOSE")
        .end("closed")
        .signal("CLOSE")
        .transition(Transition::new("begin", "todo", "later").action("begin"))
        .auto("close", "later", "closed");
    let begin = |cx: Cx| async move { cx.start_child(Start::new("job")) };
    let build = |builder: Builder| {
        Work::default().build(job())(builder).workflow(parent.build().unwrap()).action("begin", begin)
    };
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("parent").within(Duration::from_secs(60))).await.unwrap();
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!(status(&run).await, Status::Cancelled);
    assert_eq!(children_of(&engine, run.id()).await[0].status, Status::Cancelled);
}

#[tokio::test]
async fn completed_run_ignores_its_deadline() {
    let work = Work::default();
    let engine = kit::start(work.build(job())).await.unwrap();
    let run = engine.start(Start::new("job").within(Duration::from_secs(120))).await.unwrap();
    run.signal(Signal::new("GO")).await.unwrap();
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!(status(&run).await, Status::Completed);
    engine.advance(Duration::from_secs(3_600)).await;
    assert_eq!((status(&run).await, soon(run.result()).await.unwrap()), (Status::Completed, json!("done")));
}

#[tokio::test]
async fn past_deadline_cancels_the_run_at_start() {
    let work = Work::default();
    let engine = kit::start(work.build(job())).await.unwrap();
    let run = engine.start(Start::new("job").within(Duration::ZERO)).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, work.times()), (Status::Cancelled, vec![]));
}

#[tokio::test]
async fn run_passes_through_every_status() {
    let door = Arc::new(Semaphore::new(0));
    let (opens, attempts) = (door.clone(), Arc::new(AtomicUsize::new(0)));
    let work = move |_: Cx| {
        let (door, number) = (opens.clone(), attempts.fetch_add(1, Ordering::SeqCst));
        async move {
            door.acquire().await?.forget();
            if number == 0 { Err(ActionError::new("broken", "it is broken")) } else { Ok(()) }
        }
    };
    let engine = kit::start(|b| b.workflow(job()).action("work", work)).await.unwrap();
    let by = Operator::default();
    let run = engine.start(Start::new("job").after(Duration::from_secs(1))).await.unwrap();
    assert_eq!(status(&run).await, Status::Pending);
    let run_now = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run_now).await, Status::Running);
    door.add_permits(1);
    engine.settle().await;
    assert_eq!(status(&run_now).await, Status::Failed);
    assert!(run_now.view().await.unwrap().has_error());
    engine.operate(run_now.id(), Command::Retry, &by).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run_now).await, Status::Running);
    assert!(!run_now.view().await.unwrap().has_error());
    door.add_permits(1);
    engine.settle().await;
    assert_eq!(status(&run_now).await, Status::Waiting);
    engine.operate(run_now.id(), Command::Suspend, &by).await.unwrap();
    assert_eq!(status(&run_now).await, Status::Suspended);
    engine.operate(run_now.id(), Command::Resume, &by).await.unwrap();
    run_now.signal(Signal::new("GO")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run_now).await, Status::Waiting);
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!(status(&run_now).await, Status::Completed);
    engine.cancel(run.id()).await.unwrap();
    assert_eq!(status(&run).await, Status::Cancelled);
}

/// Covers the action of a timer and the first action of a delayed run.
#[tokio::test]
async fn run_with_an_action_in_progress_is_running() {
    let stays = |_: Cx| std::future::pending::<Result<(), ActionError>>();
    let timed = Spec::new("timed")
        .step("a")
        .end("b")
        .transition(Transition::new("ab", "a", "b").after_ms(60_000).action("work"));
    let build = |b: Builder| b.workflow(job()).workflow(timed.build().unwrap()).action("work", stays);
    let engine = kit::start(build).await.unwrap();
    let timed = engine.start(Start::new("timed")).await.unwrap();
    let late = engine.start(Start::new("job").after(Duration::from_secs(60))).await.unwrap();
    engine.advance(Duration::from_secs(60)).await;
    for run in [timed, late] {
        assert!(run.view().await.unwrap().owner.is_some());
        assert_eq!(status(&run).await, Status::Running);
        let listed = runs(
            &engine,
            RunQuery {
                filter: RunFilter { status: vec![Status::Running], ..RunFilter::default() },
                ..RunQuery::default()
            },
        )
        .await;
        assert!(listed.iter().any(|found| found.run == run.id()));
    }
}

#[tokio::test]
async fn result_of_the_end_place_stays_with_the_run() {
    let (store, clock) = ground().await;
    let a = TestEngine::start_on(store.clone(), clock.clone(), shop).await.unwrap();
    let run = a.start(Start::new("basket").input(&json!({"items": ["tea"]}))).await.unwrap();
    run.signal(Signal::new("BUY")).await.unwrap();
    a.settle().await;
    #[derive(Debug, PartialEq, Deserialize)]
    struct Bought {
        items: Vec<String>,
    }
    let bought: Bought = soon(run.result_as()).await.unwrap();
    assert_eq!(bought, Bought { items: vec!["tea".to_owned()] });
    assert!(matches!(soon(run.result_as::<u32>()).await, Err(RunError::InvalidResult { .. })));
    let id = run.id();
    drop((a, run));
    let b = TestEngine::start_on(store, clock, shop).await.unwrap();
    b.advance(Duration::from_secs(20 * 86_400)).await;
    let run = b.run(id);
    assert_eq!(soon(run.result()).await.unwrap(), json!({"items": ["tea"]}));
    let view = run.view().await.unwrap();
    assert!(matches!(view.snapshot.finished(), Some(RunEnd::Completed { place, .. }) if *place == "bought"));
}

#[tokio::test]
async fn end_place_without_output_returns_null() {
    let definition = Spec::new("box").step("a").end("b").auto("ab", "a", "b").build().unwrap();
    let engine = kit::start(|b| b.workflow(definition)).await.unwrap();
    let run = engine.start(Start::new("box")).await.unwrap();
    engine.settle().await;
    assert_eq!(soon(run.result()).await.unwrap(), Value::Null);
}

#[tokio::test]
async fn result_violating_the_output_schema_stops_the_run() {
    let spec = Spec::new("box")
        .output_schema(
            json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}),
        )
        .wait("a", "GO")
        .end_with("b", json!({"sum": {"$expr": "context.sum"}}))
        .signal("GO")
        .auto("ab", "a", "b");
    let with_action = {
        let mut spec = spec.clone();
        spec.name = "box2".into();
        spec.transitions[0].action = Some(stepwell::core::spec::ActionSpec {
            name: "work".into(),
            input: Value::Null,
            save_as: None,
            version: None,
        });
        spec
    };
    let build =
        |b: Builder| Work::default().build(with_action.build().unwrap())(b).workflow(spec.build().unwrap());
    let engine = kit::start(build).await.unwrap();
    for name in ["box", "box2"] {
        let run = engine.start(Start::new(name).input(&json!({"sum": "much"}))).await.unwrap();
        run.signal(Signal::new("GO")).await.unwrap();
        engine.settle().await;
        // The action is complete, so the run is in the place before its end and does not repeat the action.
        let place = if name == "box" { "a" } else { "b" };
        assert_eq!((status(&run).await, places(&run).await), (Status::Failed, vec![place.into()]), "{name}");
        let Err(RunError::Failed { error, .. }) = soon(run.result()).await else {
            panic!("{name} has a result")
        };
        assert!(error.message.contains("output schema"), "{error}");
        let fields = json!({"sum": 4});
        engine.operate(run.id(), Command::Patch { fields }, &Operator::default()).await.unwrap();
        engine.operate(run.id(), Command::Retry, &Operator::default()).await.unwrap();
        engine.settle().await;
        assert_eq!(soon(run.result()).await.unwrap(), json!({"sum": 4}), "{name}");
    }
}

#[tokio::test]
async fn awaited_result_arrives_when_the_run_ends() {
    let engine = kit::start(shop).await.unwrap();
    let run = engine.start(empty()).await.unwrap();
    let waits = {
        let run = run.clone();
        tokio::spawn(async move { run.result().await })
    };
    engine.settle().await;
    assert!(!waits.is_finished());
    run.signal(Signal::new("BUY")).await.unwrap();
    assert_eq!(soon(waits).await.unwrap().unwrap(), json!({"items": []}));
}

#[tokio::test]
async fn second_engine_returns_the_result_of_ended_runs_at_once() {
    let (store, clock) = ground().await;
    let work = Work::default();
    work.broken.store(true, Ordering::SeqCst);
    let build = |work: &Work| {
        let work = work.build(job());
        |builder: Builder| work(shop(builder))
    };
    let a = TestEngine::start_on(store.clone(), clock.clone(), build(&work)).await.unwrap();
    let b = TestEngine::start_on(store, clock, build(&work)).await.unwrap();
    let (bought, cancelled) = (a.start(empty()).await.unwrap(), a.start(empty()).await.unwrap());
    let failed = a.start(Start::new("job")).await.unwrap();
    bought.signal(Signal::new("BUY")).await.unwrap();
    a.cancel(cancelled.id()).await.unwrap();
    settle(&[&a, &b]).await;
    assert_eq!(soon(b.run(bought.id()).result()).await.unwrap(), json!({"items": []}));
    assert!(matches!(soon(b.run(cancelled.id()).result()).await, Err(RunError::Cancelled(_))));
    let Err(RunError::Failed { error, .. }) = soon(b.run(failed.id()).result()).await else { panic!() };
    assert_eq!(error.code, "broken");
    let missing = soon(b.run(RunId::nil()).result()).await;
    assert_eq!(missing, Err(RunError::Engine(EngineError::NoRun(RunId::nil()))));
}

#[tokio::test]
async fn second_engine_receives_an_awaited_result() {
    let (store, clock) = ground().await;
    let a = TestEngine::start_on(store.clone(), clock.clone(), shop).await.unwrap();
    let build = |builder: Builder| {
        shop(builder).with(|options| {
            options.max_runs = 0;
            options.poll_ms = 1_000;
        })
    };
    let b = TestEngine::start_on(store, clock, build).await.unwrap();
    let run = a.start(empty()).await.unwrap();
    let seen = b.run(run.id());
    let waits = tokio::spawn(async move { seen.result().await });
    settle(&[&a, &b]).await;
    run.signal(Signal::new("BUY")).await.unwrap();
    a.advance(Duration::from_secs(2)).await;
    assert_eq!(soon(waits).await.unwrap().unwrap(), json!({"items": []}));
}

#[tokio::test]
async fn run_retried_by_another_engine_is_no_longer_failed() {
    let (store, clock) = ground().await;
    let work = Work::default();
    work.broken.store(true, Ordering::SeqCst);
    let a = TestEngine::start_on(store.clone(), clock.clone(), work.build(job())).await.unwrap();
    let b = TestEngine::start_on(store, clock, work.build(job())).await.unwrap();
    let run = a.start(Start::new("job")).await.unwrap();
    settle(&[&a, &b]).await;
    assert!(matches!(soon(run.result()).await, Err(RunError::Failed { .. })));
    work.broken.store(false, Ordering::SeqCst);
    b.operate(run.id(), Command::Retry, &Operator::default()).await.unwrap();
    settle(&[&a, &b]).await;
    b.signal(run.id(), Signal::new("GO")).await.unwrap();
    b.advance(Duration::from_secs(60)).await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(soon(run.result()).await.unwrap(), json!("done"));
}

#[tokio::test]
async fn retried_run_can_be_awaited_again() {
    let work = Work::default();
    work.broken.store(true, Ordering::SeqCst);
    let engine = kit::start(work.build(job())).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    assert!(matches!(soon(run.result()).await, Err(RunError::Failed { .. })));
    work.broken.store(false, Ordering::SeqCst);
    engine.operate(run.id(), Command::Retry, &Operator::default()).await.unwrap();
    let waits = tokio::spawn({
        let run = run.clone();
        async move { run.result().await }
    });
    engine.settle().await;
    assert!(!waits.is_finished());
    run.signal(Signal::new("GO")).await.unwrap();
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!(soon(waits).await.unwrap().unwrap(), json!("done"));
}

/// Two branches, each of which waits for its signal and then ends.
fn branches(completion: Completion) -> Definition {
    Spec::new("pair")
        .completion(completion)
        .fork("open", ["left", "right"])
        .wait("left", "LEFT")
        .wait("right", "RIGHT")
        .end_with("left_end", json!("left"))
        .end_with("right_end", json!("right"))
        .signal("LEFT")
        .signal("RIGHT")
        .auto("from_left", "left", "left_end")
        .auto("from_right", "right", "right_end")
        .build()
        .unwrap()
}

#[tokio::test]
async fn completion_rule_decides_which_end_completes_the_run() {
    for completion in [Completion::FirstEnd, Completion::AllBranches] {
        let engine = kit::start(|b| b.workflow(branches(completion))).await.unwrap();
        let run = engine.start(Start::new("pair")).await.unwrap();
        run.signal(Signal::new("RIGHT")).await.unwrap();
        engine.settle().await;
        if completion == Completion::FirstEnd {
            assert_eq!(soon(run.result()).await.unwrap(), json!("right"));
            assert!(run.signal(Signal::new("LEFT")).await.is_err());
        } else {
            assert_eq!((status(&run).await, places(&run).await), (Status::Waiting, vec!["left".into()]));
            run.signal(Signal::new("LEFT")).await.unwrap();
            engine.settle().await;
            assert_eq!(soon(run.result()).await.unwrap(), json!("left"));
        }
        assert_eq!(waits_of(&engine, run.id()).await, []);
    }
}

#[tokio::test]
async fn completion_rule_decides_if_other_branches_finish() {
    for completion in [Completion::FirstEnd, Completion::AllBranches] {
        let door = Arc::new(Semaphore::new(0));
        let (opens, seen) = (door.clone(), Arc::new(Mutex::new(None::<Cx>)));
        let kept = seen.clone();
        let work = move |cx: Cx| {
            *kept.lock().unwrap() = Some(cx);
            let door = opens.clone();
            async move { door.acquire().await.map(tokio::sync::SemaphorePermit::forget) }
        };
        let definition = Spec::new("pair")
            .completion(completion)
            .fork("open", ["left", "right"])
            .step("left")
            .wait("right", "RIGHT")
            .end("left_end")
            .end("right_end")
            .signal("RIGHT")
            .transition(Transition::new("from_left", "left", "left_end").action("work"))
            .auto("from_right", "right", "right_end");
        let build = |b: Builder| b.workflow(definition.build().unwrap()).action("work", work);
        let engine = kit::start(build).await.unwrap();
        let run = engine.start(Start::new("pair")).await.unwrap();
        engine.settle().await;
        run.signal(Signal::new("RIGHT")).await.unwrap();
        engine.settle().await;
        let ends = completion == Completion::FirstEnd;
        assert_eq!(seen.lock().unwrap().as_ref().unwrap().is_over(), ends);
        assert_eq!(status(&run).await, if ends { Status::Completed } else { Status::Running });
        door.add_permits(1);
        engine.settle().await;
        assert_eq!(status(&run).await, Status::Completed);
    }
}

#[tokio::test]
async fn failed_branch_keeps_the_run_failed_until_retry() {
    let work = Work::default();
    work.broken.store(true, Ordering::SeqCst);
    let definition = Spec::new("pair")
        .fork("open", ["left", "right"])
        .step("left")
        .wait("right", "RIGHT")
        .join("both", Quorum::All, ["left", "right"])
        .end("done")
        .signal("RIGHT")
        .transition(Transition::new("from_left", "left", "both").action("work"))
        .auto("from_right", "right", "both")
        .auto("on", "both", "done");
    let engine = kit::start(work.build(definition.build().unwrap())).await.unwrap();
    let run = engine.start(Start::new("pair")).await.unwrap();
    engine.settle().await;
    assert_eq!(run.signal(Signal::new("RIGHT")).await.unwrap(), Signalled::Buffered);
    engine.settle().await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("broken")));
    assert_eq!(audit(&engine).await, []);
    work.broken.store(false, Ordering::SeqCst);
    engine.operate(run.id(), Command::Retry, &Operator::default()).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn new_run_is_taken_over_after_an_immediate_crash() {
    let (store, clock) = ground().await;
    let stays = |_: Cx| std::future::pending::<Result<(), ActionError>>();
    let (a, tasks) =
        start_killable(store.clone() as Arc<dyn Store>, &clock, |b| b.workflow(job()).action("work", stays))
            .await;
    let run = a.start(Start::new("job").key("one")).await.unwrap().id();
    tasks.kill().await;
    let work = Work::default();
    let (b, _tasks) = start_killable(store, &clock, work.build(job())).await;
    b.advance(Duration::from_millis(2 * LEASE_MS)).await;
    assert_eq!((status(&b.run(run)).await, work.times().len()), (Status::Waiting, 1));
    assert_eq!(b.start(Start::new("job").key("one")).await.unwrap().id(), run);
}

/// Runs twelve runs under the concurrency limit that `build` sets.
async fn crowded(build: impl FnOnce(Builder) -> Builder) {
    let work = Work::default();
    let definition = Spec::new("quick").step("todo").end("done");
    let definition =
        definition.transition(Transition::new("work", "todo", "done").action("work")).build().unwrap();
    let engine = kit::start(|builder| build(work.build(definition)(builder))).await.unwrap();
    for _ in 0..12 {
        engine.start(Start::new("quick")).await.unwrap();
    }
    soon(engine.settle()).await;
    assert_eq!(work.times().len(), 12);
    let done = runs_of(&engine, "quick").await.into_iter().filter(|run| run.status == Status::Completed);
    assert_eq!(done.count(), 12);
}

#[tokio::test]
async fn runs_above_max_runs_start_when_permits_are_free() {
    crowded(|builder| builder.with(|options| options.max_runs = 5)).await;
}

#[tokio::test]
async fn runs_above_a_workflow_limit_start_when_permits_are_free() {
    crowded(|builder| builder.with(|options| options.max_runs_per_workflow = [("quick".into(), 2)].into()))
        .await;
}

#[tokio::test]
async fn full_workflow_neither_spins_nor_blocks_others() {
    let door = Arc::new(Semaphore::new(0));
    let opens = door.clone();
    let stays = move |_: Cx| {
        let door = opens.clone();
        async move { door.acquire().await.map(tokio::sync::SemaphorePermit::forget) }
    };
    let slow = Spec::new("slow").step("todo").end("done");
    let slow = slow.transition(Transition::new("work", "todo", "done").action("stay")).build().unwrap();
    let quick = Spec::new("quick").step("todo").end("done").auto("work", "todo", "done").build().unwrap();
    let build = |builder: Builder| {
        let builder = builder.workflow(slow).workflow(quick).action("stay", stays);
        builder.with(|options| options.max_runs_per_workflow = [("slow".into(), 1)].into())
    };
    let engine = kit::start(build).await.unwrap();
    for _ in 0..3 {
        engine.start(Start::new("slow")).await.unwrap();
    }
    soon(engine.settle()).await;
    let quick = engine.start(Start::new("quick")).await.unwrap();
    soon(engine.settle()).await;
    assert_eq!(status(&quick).await, Status::Completed);
    for done in 1..=3 {
        door.add_permits(1);
        soon(engine.settle()).await;
        let found = runs_of(&engine, "slow").await.into_iter().filter(|run| run.status == Status::Completed);
        assert_eq!(found.count(), done);
    }
}

#[tokio::test]
async fn dropped_engine_frees_its_store() {
    for stops in [false, true] {
        let (store, clock) = ground().await;
        let left = Arc::downgrade(&store);
        let engine = TestEngine::start_on(store, clock, shop).await.unwrap();
        let run = engine.start(empty()).await.unwrap();
        run.signal(item("tea")).await.unwrap();
        engine.settle().await;
        if stops {
            engine.stop(Duration::from_secs(1)).await;
        }
        drop((engine, run));
        eventually(async || left.strong_count() == 0).await;
    }
}
