//! Durable timers: sleeps, wake-ups at an instant, and timeouts of waits; none of them costs anything while it waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::spec::{Place, Quorum, Transition, TransitionTrigger, Wait};
use stepwell::core::{Definition, Name, Spec, Timestamp};
use stepwell::engine::Builder;
use stepwell::store::{Status, Store};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{ActionError, Command, Cx, Operator, Run, Signal, Signalled, Start};

use crate::kit::{
    self, LEASE_MS, Watched, after_s, error_code, ground, history_actions, places, settle, soon,
    start_killable, status, version, waits_of,
};

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A reminder that sleeps for a minute.
fn reminder() -> Definition {
    Spec::new("reminder")
        .step("asleep")
        .end("awake")
        .transition(Transition::new("wake", "asleep", "awake").after_ms(60_000))
        .build()
        .unwrap()
}

/// An alarm that sleeps until the instant its data names, and then rings.
fn alarm() -> Definition {
    Spec::new("alarm")
        .step("asleep")
        .end("awake")
        .transition(
            Transition::new("ring", "asleep", "awake")
                .on(TransitionTrigger::Until("context.at".to_owned()))
                .action("ring"),
        )
        .build()
        .unwrap()
}

/// The number and the instant of each ring.
type Rung = Arc<Mutex<Vec<(u64, Timestamp)>>>;

fn alarms(rung: &Rung) -> impl FnOnce(Builder) -> Builder + use<> {
    let rung = rung.clone();
    let ring = move |cx: Cx| {
        let rung = rung.clone();
        async move {
            let number = cx.state::<Value>()?["number"].as_u64().unwrap_or_default();
            rung.lock().unwrap().push((number, cx.now()));
            Ok::<_, ActionError>(())
        }
    };
    move |builder| builder.workflow(alarm()).action("ring", ring)
}

fn at(number: u64, at: Timestamp) -> Start {
    Start::new("alarm").input(&json!({"number": number, "at": at}))
}

#[tokio::test]
async fn run_sleeps_exactly_as_long_as_declared() {
    let engine = kit::start(|builder| builder.workflow(reminder())).await.unwrap();
    engine.advance(seconds(30)).await;
    let run = engine.start(Start::new("reminder")).await.unwrap();
    engine.advance(Duration::from_millis(59_999)).await;
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.wake), (Status::Waiting, Some(after_s(90))));
    engine.advance(Duration::from_millis(1)).await;
    assert_eq!(status(&run).await, Status::Completed);
    let history = crate::kit::history(&engine, run.id()).await;
    assert_eq!((history[1].0.action.as_str(), history[1].0.at), ("__timer:asleep", after_s(90)));
}

#[tokio::test]
async fn run_sleeps_until_the_instant_in_its_data() {
    let rung = Rung::default();
    let engine = kit::start(alarms(&rung)).await.unwrap();
    let run = engine.start(at(1, after_s(7_200))).await.unwrap();
    engine.advance(seconds(7_199)).await;
    assert_eq!((status(&run).await, rung.lock().unwrap().len()), (Status::Waiting, 0));
    engine.advance(seconds(1)).await;
    assert_eq!(
        (status(&run).await, &**rung.lock().unwrap()),
        (Status::Completed, &[(1, after_s(7_200))][..])
    );
}

#[tokio::test]
async fn past_instant_fires_at_once() {
    let rung = Rung::default();
    let engine = kit::start(alarms(&rung)).await.unwrap();
    engine.advance(seconds(100)).await;
    for passed in [BEGINS, Timestamp::MIN] {
        let run = engine.start(at(1, passed)).await.unwrap();
        engine.settle().await;
        assert_eq!(status(&run).await, Status::Completed);
    }
    assert_eq!(**rung.lock().unwrap(), [(1, after_s(100)), (1, after_s(100))]);
}

#[tokio::test]
async fn start_with_an_invalid_instant_is_refused() {
    let engine = kit::start(alarms(&Rung::default())).await.unwrap();
    let start = Start::new("alarm").input(&json!({"number": 1, "at": "tomorrow"}));
    let error = engine.start(start).await.unwrap_err().to_string();
    assert!(error.contains("`ring`") && error.contains("RFC 3339"), "{error}");
}

#[tokio::test]
async fn invalid_instant_of_a_later_step_stops_the_run_before_it() {
    let definition = Spec::new("way")
        .wait("a", "GO")
        .step("b")
        .end("c")
        .signal("GO")
        .auto("ab", "a", "b")
        .transition(Transition::new("bc", "b", "c").on(TransitionTrigger::Until("context.at".to_owned())))
        .build()
        .unwrap();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    let run = engine.start(Start::new("way").input(&json!({"at": "tomorrow"}))).await.unwrap();
    run.signal(Signal::new("GO")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Failed, vec!["a".into()]));
    // Correcting the data lets the run continue.
    let fields = json!({"at": after_s(60)});
    engine.operate(run.id(), Command::Patch { fields }, &Operator::default()).await.unwrap();
    engine.operate(run.id(), Command::Retry, &Operator::default()).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Waiting, vec!["b".into()]));
    engine.advance(seconds(60)).await;
    assert_eq!(status(&run).await, Status::Completed);
}

/// A question with a timeout of one hour.
fn question() -> Definition {
    Spec::new("question")
        .wait("asked", "ANSWER")
        .end_with("answered", json!({"said": {"$expr": "event"}}))
        .end_with("unanswered", json!({"said": null}))
        .signal("ANSWER")
        .auto("take", "asked", "answered")
        .transition(Transition::new("give_up", "asked", "unanswered").after_ms(3_600_000))
        .build()
        .unwrap()
}

async fn asked() -> (TestEngine, Run) {
    let engine = kit::start(|builder| builder.workflow(question())).await.unwrap();
    let run = engine.start(Start::new("question")).await.unwrap();
    engine.settle().await;
    (engine, run)
}

#[tokio::test]
async fn wait_times_out() {
    let (engine, run) = asked().await;
    let waits = waits_of(&engine, run.id()).await;
    assert_eq!((waits.len(), waits[0].wait.until), (1, Some(after_s(3_600))));
    engine.advance(seconds(3_599)).await;
    assert_eq!(status(&run).await, Status::Waiting);
    engine.advance(seconds(1)).await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"said": null}));
    assert_eq!(waits_of(&engine, run.id()).await, []);
    assert!(run.signal(Signal::new("ANSWER")).await.is_err());
}

#[tokio::test]
async fn answered_wait_does_not_time_out() {
    let (engine, run) = asked().await;
    engine.advance(seconds(3_599)).await;
    assert_eq!(run.signal(Signal::new("ANSWER").with("yes")).await.unwrap(), Signalled::Consumed);
    engine.advance(DAY).await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"said": "yes"}));
    assert_eq!(version(&run).await, 2);
}

/// The run is suspended while signal and timer arrive, so that it finds both when it is resumed.
async fn both_came(signal_s: u64) -> Value {
    let (engine, run) = asked().await;
    engine.operate(run.id(), Command::Suspend, &Operator::default()).await.unwrap();
    engine.advance(seconds(signal_s)).await;
    assert_eq!(run.signal(Signal::new("ANSWER").with("yes")).await.unwrap(), Signalled::Buffered);
    engine.advance(seconds(10_000 - signal_s)).await;
    assert_eq!(status(&run).await, Status::Suspended);
    engine.operate(run.id(), Command::Resume, &Operator::default()).await.unwrap();
    engine.settle().await;
    soon(run.result()).await.unwrap()["said"].clone()
}

#[tokio::test]
async fn earlier_of_timer_and_buffered_signal_wins() {
    assert_eq!(both_came(3_500).await, json!("yes"));
    assert_eq!(both_came(3_700).await, json!(null));
}

/// No process has loaded the run since the timer fell due: the timer still comes first.
#[tokio::test]
async fn signal_does_not_overtake_an_overdue_timer() {
    let (store, clock) = ground().await;
    let build = |builder: Builder| builder.workflow(question()).with(|options| options.max_runs = 0);
    let porter = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
    let run = porter.start(Start::new("question")).await.unwrap();
    porter.advance(seconds(3_700)).await;
    run.signal(Signal::new("ANSWER").with("yes")).await.unwrap();
    let build = |builder: Builder| builder.workflow(question());
    let worker = TestEngine::start_on(store, clock, build).await.unwrap();
    settle(&[&porter, &worker]).await;
    assert_eq!(history_actions(&worker, run.id()).await, ["__start", "__timer:asked"]);
}

#[tokio::test]
async fn earlier_of_two_timers_fires() {
    let definition = Spec::new("way")
        .step("a")
        .end("late")
        .end("early")
        .transition(Transition::new("later", "a", "late").after_ms(2_000).priority(5))
        .transition(Transition::new("sooner", "a", "early").after_ms(1_000))
        .build()
        .unwrap();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    let run = engine.start(Start::new("way")).await.unwrap();
    engine.advance(seconds(10)).await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(crate::kit::history(&engine, run.id()).await[1].0.entered, [Name::from("early")]);
}

#[tokio::test]
async fn timer_rejected_by_its_guard_leaves_the_next_timer() {
    let definition = Spec::new("way")
        .step("a")
        .end("escalated")
        .end("given_up")
        .transition(Transition::new("escalate", "a", "escalated").after_ms(1_000).when("context.urgent"))
        .transition(Transition::new("give_up", "a", "given_up").after_ms(5_000))
        .build()
        .unwrap();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    let run = engine.start(Start::new("way").input(&json!({"urgent": false}))).await.unwrap();
    engine.advance(seconds(4)).await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Waiting, 0));
    engine.advance(seconds(1)).await;
    assert_eq!(crate::kit::history(&engine, run.id()).await[1].0.entered, [Name::from("given_up")]);
}

#[tokio::test]
async fn timers_of_several_branches_fire_on_time() {
    let definition = Spec::new("way")
        .fork("open", ["left", "right"])
        .step("left")
        .step("right")
        .join("both", Quorum::All, ["left", "right"])
        .end("done")
        .transition(Transition::new("from_left", "left", "both").after_ms(9_000))
        .transition(Transition::new("from_right", "right", "both").after_ms(4_000))
        .auto("on", "both", "done")
        .build()
        .unwrap();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    let run = engine.start(Start::new("way")).await.unwrap();
    engine.advance(seconds(20)).await;
    let history = crate::kit::history(&engine, run.id()).await;
    let seen: Vec<_> = history.iter().map(|(entry, _)| (entry.action.as_str(), entry.at)).collect();
    let expected = [
        ("__start", BEGINS),
        ("__timer:right", after_s(4)),
        ("__timer:left", after_s(9)),
        ("__auto:on", after_s(9)),
    ];
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn looping_timer_does_not_drift() {
    let definition = Spec::new("beat")
        .step("a")
        .end("never")
        .transition(Transition::new("again", "a", "a").after_ms(60_000))
        .transition(Transition::new("stop", "a", "never").when("context.stop"))
        .build()
        .unwrap();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    let run = engine.start(Start::new("beat").input(&json!({"stop": false}))).await.unwrap();
    engine.advance(seconds(3_600)).await;
    let history = crate::kit::history(&engine, run.id()).await;
    let times: Vec<_> = history.iter().map(|(entry, _)| entry.at).collect();
    assert_eq!(times, (0..=60).map(|minute| after_s(minute * 60)).collect::<Vec<_>>());
}

#[tokio::test]
async fn many_timers_fire_on_time_and_in_order() {
    let rung = Rung::default();
    let engine = kit::start(alarms(&rung)).await.unwrap();
    // The timers start in another order than they fall due.
    let timers = kit::many(300);
    for step in 0..timers {
        let number = step * 7 % timers;
        engine.start(at(number, after_s(1 + number * 13))).await.unwrap();
    }
    engine.advance(seconds(timers * 13)).await;
    let expected: Vec<_> = (0..timers).map(|number| (number, after_s(1 + number * 13))).collect();
    assert_eq!(*rung.lock().unwrap(), expected);
}

#[tokio::test]
async fn ninety_days_pass_in_one_call() {
    let rung = Rung::default();
    let engine = kit::start(alarms(&rung)).await.unwrap();
    for day in [1_u64, 30, 89, 90] {
        engine.start(at(day, after_s(day * 86_400))).await.unwrap();
    }
    let beyond = engine.start(at(91, after_s(91 * 86_400))).await.unwrap();
    engine.advance(90 * DAY).await;
    let expected: Vec<_> = [1, 30, 89, 90].map(|day| (day, after_s(day * 86_400))).into();
    assert_eq!((*rung.lock().unwrap()).clone(), expected);
    assert_eq!((engine.now(), status(&beyond).await), (after_s(90 * 86_400), Status::Waiting));
}

#[tokio::test]
async fn timer_beyond_the_maximum_time_is_clamped() {
    let definition = Spec::new("reminder")
        .step("asleep")
        .end("awake")
        .transition(Transition::new("wake", "asleep", "awake").after_ms(u64::MAX))
        .build()
        .unwrap();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    let run = engine.start(Start::new("reminder")).await.unwrap();
    engine.advance(50 * DAY).await;
    assert_eq!((status(&run).await, run.view().await.unwrap().wake), (Status::Waiting, Some(Timestamp::MAX)));
}

#[tokio::test]
async fn timers_survive_a_dropped_engine() {
    let (store, clock) = ground().await;
    let rung = Rung::default();
    let a = TestEngine::start_on(store.clone(), clock.clone(), alarms(&rung)).await.unwrap();
    let overdue = a.start(at(1, after_s(60))).await.unwrap().id();
    let later = a.start(at(2, after_s(120))).await.unwrap().id();
    a.settle().await;
    drop(a);
    clock.set(after_s(90));
    let b = TestEngine::start_on(store, clock, alarms(&rung)).await.unwrap();
    b.settle().await;
    assert_eq!(status(&b.run(overdue)).await, Status::Completed);
    b.advance(seconds(60)).await;
    assert_eq!(status(&b.run(later)).await, Status::Completed);
    assert_eq!(**rung.lock().unwrap(), [(1, after_s(90)), (2, after_s(120))]);
}

#[tokio::test]
async fn timer_fires_again_after_a_crash_during_its_action() {
    let (store, clock) = ground().await;
    let dies = |builder: Builder| {
        let builder = builder.workflow(alarm());
        builder.action("ring", |_: Cx| std::future::pending::<Result<(), ActionError>>())
    };
    let (a, tasks) = start_killable(store.clone(), &clock, dies).await;
    let run = a.start(at(1, after_s(60))).await.unwrap().id();
    a.advance(seconds(60)).await;
    assert!(a.run(run).view().await.unwrap().owner.is_some());
    tasks.kill().await;
    let rung = Rung::default();
    let (b, _tasks) = start_killable(store, &clock, alarms(&rung)).await;
    b.advance(Duration::from_millis(2 * LEASE_MS)).await;
    assert_eq!((status(&b.run(run)).await, rung.lock().unwrap().len()), (Status::Completed, 1));
}

#[tokio::test]
async fn timer_ends_an_action_that_is_still_running() {
    let definition = Spec::new("way")
        .step("a")
        .end("done")
        .wait("late", "ANYWAY")
        .signal("ANYWAY")
        .transition(Transition::new("work", "a", "done").action("work"))
        .transition(Transition::new("too_late", "a", "late").after_ms(60_000))
        .auto("end", "late", "done")
        .build()
        .unwrap();
    let over = Arc::new(Mutex::new(None::<Cx>));
    let kept = over.clone();
    let work = move |cx: Cx| {
        *kept.lock().unwrap() = Some(cx);
        std::future::pending::<Result<(), ActionError>>()
    };
    let engine = kit::start(|builder| builder.workflow(definition).action("work", work)).await.unwrap();
    let run = engine.start(Start::new("way")).await.unwrap();
    engine.advance(seconds(59)).await;
    assert_eq!(status(&run).await, Status::Running);
    engine.advance(seconds(1)).await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Waiting, vec!["late".into()]));
    assert!(over.lock().unwrap().as_ref().unwrap().is_over(), "the action has ended too");
    assert_eq!(run.view().await.unwrap().owner, None);
}

#[tokio::test]
async fn timer_due_while_failed_fires_after_retry() {
    let definition = Spec::new("way")
        .fork("open", ["a", "b"])
        .step("a")
        .step("b")
        .join("both", Quorum::All, ["a", "b"])
        .end("done")
        .transition(Transition::new("work", "a", "both").action("work"))
        .transition(Transition::new("sleep", "b", "both").after_ms(60_000))
        .auto("on", "both", "done")
        .build()
        .unwrap();
    let mended = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let works = mended.clone();
    let work = move |_: Cx| {
        let works = works.load(std::sync::atomic::Ordering::SeqCst);
        std::future::ready(works.then_some(()).ok_or_else(|| ActionError::new("broken", "it is broken")))
    };
    let engine = kit::start(|builder| builder.workflow(definition).action("work", work)).await.unwrap();
    let run = engine.start(Start::new("way")).await.unwrap();
    engine.advance(seconds(120)).await;
    assert_eq!(error_code(&run).await.as_deref(), Some("broken"));
    mended.store(true, std::sync::atomic::Ordering::SeqCst);
    engine.operate(run.id(), Command::Retry, &Operator::default()).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn failed_timer_action_is_retried_after_its_delay() {
    let retry = stepwell::core::retry::Retry { attempts: 2, delay_ms: 20_000, ..Default::default() };
    let definition = Spec::new("alarm")
        .step("asleep")
        .end("awake")
        .transition(Transition::new("ring", "asleep", "awake").after_ms(10_000).action("ring").retry(retry))
        .build()
        .unwrap();
    let tried = Arc::new(Mutex::new(Vec::new()));
    let noted = tried.clone();
    let ring = move |cx: Cx| {
        noted.lock().unwrap().push((cx.now(), cx.attempt()));
        let last = cx.attempt() == 3;
        std::future::ready(last.then_some(()).ok_or_else(|| ActionError::new("mute", "it makes no sound")))
    };
    let engine = kit::start(|builder| builder.workflow(definition).action("ring", ring)).await.unwrap();
    let run = engine.start(Start::new("alarm")).await.unwrap();
    engine.advance(seconds(300)).await;
    assert_eq!(*tried.lock().unwrap(), [(after_s(10), 1), (after_s(30), 2), (after_s(60), 3)]);
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "__timer:asleep"]);
}

#[tokio::test]
async fn timer_ends_an_action_in_a_retry_delay() {
    let retry = stepwell::core::retry::Retry { attempts: 9, delay_ms: 30_000, ..Default::default() };
    let definition = Spec::new("way")
        .step("a")
        .end("done")
        .wait("late", "ANYWAY")
        .signal("ANYWAY")
        .transition(Transition::new("work", "a", "done").action("work").retry(retry))
        .transition(Transition::new("too_late", "a", "late").after_ms(45_000))
        .auto("end", "late", "done")
        .build()
        .unwrap();
    let attempts = Arc::new(Mutex::new(0));
    let counted = attempts.clone();
    let work = move |_: Cx| {
        *counted.lock().unwrap() += 1;
        std::future::ready(Err::<(), _>(ActionError::new("broken", "it is broken")))
    };
    let engine = kit::start(|builder| builder.workflow(definition).action("work", work)).await.unwrap();
    let run = engine.start(Start::new("way")).await.unwrap();
    engine.advance(seconds(44)).await;
    assert_eq!((status(&run).await, *attempts.lock().unwrap()), (Status::Running, 2));
    engine.advance(seconds(3_600)).await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Waiting, vec!["late".into()]));
    assert_eq!(run.view().await.unwrap().ledger.attempts, []);
    assert_eq!(*attempts.lock().unwrap(), 2);
}

#[tokio::test]
async fn wait_without_signal_is_resolved_by_its_timer() {
    let definition = Spec::new("way")
        .place("a", Place::Wait(Wait::default()))
        .end("b")
        .transition(Transition::new("ab", "a", "b").after_ms(5_000))
        .build()
        .unwrap();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    let run = engine.start(Start::new("way")).await.unwrap();
    engine.advance(seconds(4)).await;
    assert_eq!(status(&run).await, Status::Waiting);
    engine.advance(seconds(1)).await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn unserved_run_does_not_delay_timers() {
    let (store, clock) = ground().await;
    let a = TestEngine::start_on(store.clone(), clock.clone(), alarms(&Rung::default())).await.unwrap();
    let stranger = a.start(at(1, after_s(10))).await.unwrap().id();
    a.settle().await;
    drop(a);
    // This process does not have the action that rings.
    let b = TestEngine::start_on(store, clock, |builder| builder.workflow(reminder())).await.unwrap();
    b.advance(seconds(20)).await;
    let run = b.start(Start::new("reminder")).await.unwrap();
    let second = b.start(Start::new("reminder").after(seconds(5))).await.unwrap();
    b.advance(seconds(100)).await;
    assert_eq!((status(&run).await, status(&second).await), (Status::Completed, Status::Completed));
    assert_eq!(crate::kit::history(&b, run.id()).await[1].0.at, after_s(80));
    assert_eq!((status(&b.run(stranger)).await, version(&b.run(stranger)).await), (Status::Waiting, 0));
}

#[tokio::test]
async fn single_process_advances_due_runs_without_claiming() {
    for is_alone in [true, false] {
        let (store, clock) = ground().await;
        let only_calls =
            |builder: stepwell::Builder| builder.workflow(reminder()).with(|options| options.max_runs = 0);
        let _other = match is_alone {
            true => None,
            false => Some(TestEngine::start_on(store.clone(), clock.clone(), only_calls).await.unwrap()),
        };
        let build = |builder: stepwell::Builder| builder.workflow(reminder());
        let engine = TestEngine::start_on(store, clock, build).await.unwrap();
        let run = engine.start(Start::new("reminder")).await.unwrap();
        engine.advance(seconds(3_600)).await;
        let head = crate::world::row(&engine, run.id()).await.head;
        assert_eq!((head.status, head.version), (Status::Completed, 1));
        // A claim sets the owner and increments fence and revision.
        let expected = if is_alone { (2, 0) } else { (3, 1) };
        assert_eq!((head.revision, head.fence), expected);
    }
}

/// Thousands of runs sleep; the process has no task for any of them, and wakes up only for the one that is due.
#[tokio::test]
async fn thousands_of_sleeping_runs_cost_no_tasks_or_loads() {
    let runs = kit::many(10_000);
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let rung = Rung::default();
    let (engine, tasks) = start_killable(watched.clone() as Arc<dyn Store>, &clock, |builder| {
        alarms(&rung)(builder).with(|options| options.lease_ms = 3_650 * 86_400_000)
    })
    .await;
    engine.settle().await;
    let before = (tasks.going(), tasks.begun());
    for number in 0..runs {
        engine.start(at(number, after_s(86_400 * (2 + number % 50)))).await.unwrap();
    }
    let due = engine.start(at(runs, after_s(3_600))).await.unwrap();
    engine.settle().await;
    assert_eq!((tasks.going(), tasks.begun()), before);
    watched.loads();
    engine.advance(seconds(7_200)).await;
    assert_eq!(**rung.lock().unwrap(), [(runs, after_s(3_600))]);
    assert_eq!(
        (tasks.going(), tasks.begun()),
        (before.0, before.1 + 1),
        "one task, for the one that was due"
    );
    let loads = watched.loads();
    assert!((1..=2).contains(&loads), "{loads} runs were read");
    assert_eq!(status(&due).await, Status::Completed);
}
