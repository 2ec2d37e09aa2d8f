//! Signals: consumed, buffered or refused, in order of arrival, and never lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::core::spec::{Guard, Place, Transition, Wait};
use stepwell::core::{Definition, Limits, Refusal, Spec};
use stepwell::store::{
    Commit, CommitId, Fault, Faulty, NewMessage, OnMissingRun, SendMessage, Status, Store, TenantScope,
    WaitFilter, WaitQuery,
};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{ActionError, Command, Cx, EngineError, ManualClock, Operator, Run, Signal, Signalled, Start};

use crate::kit::{
    self, LEASE_MS, Watched, audit, eventually, ground, history, history_actions, places, settle, soon,
    start_killable, status, store_within, version,
};
use crate::world::{Gate, Script, desk, desk_spec, row};

const DAY: Duration = Duration::from_secs(24 * 3_600);
const SECOND: Duration = Duration::from_secs(1);

/// `a --OPEN--> b --GO--> b`, and `STOP` leads from `b` to the end. The payload of `GO` is a number.
fn counter() -> Definition {
    counter_that(|go| go)
}

fn counter_that(goes: impl FnOnce(Transition) -> Transition) -> Definition {
    Spec::new("counter")
        .step("a")
        .step("b")
        .end("c")
        .signal("OPEN")
        .signal("STOP")
        .signal_with("GO", json!({"type": "integer"}))
        .on_signal("open", "a", "OPEN", "b")
        .transition(goes(Transition::new("go", "b", "b").on_signal("GO")))
        .on_signal("stop", "b", "STOP", "c")
        .build()
        .unwrap()
}

async fn with(definition: Definition) -> TestEngine {
    kit::start(|engine| engine.workflow(definition)).await.unwrap()
}

async fn does(engine: &TestEngine, run: &Run, command: Command) {
    engine.operate(run.id(), command, &Operator::named("ada")).await.unwrap();
    engine.settle().await;
}

fn go(number: i64) -> Signal {
    Signal::new("GO").with(&number)
}

/// The payloads of the signals that a run has taken, in order.
async fn taken(engine: &TestEngine, run: &Run) -> Vec<Value> {
    let entries = history(engine, run.id()).await.into_iter();
    entries.filter(|(entry, _)| entry.action == "GO").filter_map(|(entry, _)| entry.payload).collect()
}

/// An open counter that has received its first number, before it was opened or after.
async fn going(engine: &TestEngine, first_is_kept: bool) -> Run {
    let run = engine.start(Start::new("counter")).await.unwrap();
    let open = Signal::new("OPEN");
    for signal in if first_is_kept { [go(1), open] } else { [open, go(1)] } {
        run.signal(signal).await.unwrap();
    }
    run
}

fn is_refused(result: &Result<Signalled, EngineError>, wanted: fn(&Refusal) -> bool) -> bool {
    matches!(result, Err(EngineError::Refused(refusal)) if wanted(refusal))
}

// A waiting run costs nothing, and its signal may come at any time.

#[tokio::test]
async fn waiting_run_has_no_task_or_owner_and_is_not_loaded() {
    let (store, clock) = ground().await;
    let store = Watched::new(store);
    let (engine, tasks) = start_killable(store.clone(), &clock, |engine| engine.workflow(counter())).await;
    engine.settle().await;
    let before = tasks.going();
    let mut runs = Vec::new();
    for _ in 0..200 {
        runs.push(engine.start(Start::new("counter")).await.unwrap());
    }
    engine.settle().await;
    assert_eq!(tasks.going(), before, "no task waits for a run");
    for run in &runs {
        let view = run.view().await.unwrap();
        assert_eq!((view.status, view.owner, view.wake), (Status::Waiting, None, None));
    }
    store.loads();
    store.commits();
    engine.advance(60 * SECOND).await;
    assert_eq!((store.loads(), store.commits().len()), (0, 0), "a waiting run is not loaded");
}

/// A wait for `ANSWER`; the action after it sees the payload.
fn question() -> Definition {
    Spec::new("question")
        .wait("asked", "ANSWER")
        .end("done")
        .signal("ANSWER")
        .transition(Transition::new("note", "asked", "done").action("work"))
        .build()
        .unwrap()
}

#[tokio::test]
async fn signal_weeks_later_delivers_its_payload() {
    let script = Script::good();
    let build = |engine: stepwell::Builder| engine.workflow(question()).action("work", script.action());
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("question")).await.unwrap();
    engine.advance(60 * DAY).await;
    assert_eq!(status(&run).await, Status::Waiting);
    let answer = json!({"yes": true});
    assert_eq!(run.signal(Signal::new("ANSWER").with(&answer)).await.unwrap(), Signalled::Consumed);
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    let call = script.calls()[0].clone();
    assert_eq!((call.payload, call.at), (answer, BEGINS.plus_ms(60 * 24 * 3_600_000)));
}

#[tokio::test]
async fn signal_reaches_a_run_whose_process_is_gone() {
    let (store, clock) = ground().await;
    let script = Script::good();
    let build = |engine: stepwell::Builder| engine.workflow(question()).action("work", script.action());
    let first = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
    let run = first.start(Start::new("question")).await.unwrap().id();
    first.settle().await;
    drop(first);
    clock.set(BEGINS.plus_ms(21 * 24 * 3_600_000));
    let build = |engine: stepwell::Builder| engine.workflow(question()).action("work", script.action());
    let second = TestEngine::start_on(store, clock, build).await.unwrap();
    assert_eq!(second.signal(run, Signal::new("ANSWER").with(&7)).await.unwrap(), Signalled::Consumed);
    second.settle().await;
    assert_eq!(
        (status(&second.run(run)).await, script.calls()[0].payload.clone()),
        (Status::Completed, json!(7))
    );
}

#[tokio::test]
async fn action_can_signal_another_run() {
    let script = Script::good();
    let tells = Spec::new("teller").step("a").end("b");
    let tells = tells.transition(Transition::new("ab", "a", "b").action("tell")).build().unwrap();
    let tell = |cx: Cx| async move {
        let to = cx.snapshot().context()["to"].as_str().and_then(|to| to.parse().ok());
        cx.signal(to.unwrap(), "ANSWER", &"from another run")
    };
    let engine = kit::start(|engine| {
        let engine = engine.workflow(question()).workflow(tells);
        engine.action("work", script.action()).action("tell", tell)
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("question")).await.unwrap();
    engine.start(Start::new("teller").input(&json!({"to": run.id()}))).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(script.calls()[0].payload, json!("from another run"));
}

// Refused signals.

#[tokio::test]
async fn invalid_payload_is_refused_and_changes_nothing() {
    let engine = with(counter()).await;
    let pending = engine.start(Start::new("counter").after(DAY)).await.unwrap();
    let early = engine.start(Start::new("counter")).await.unwrap();
    let open = engine.start(Start::new("counter")).await.unwrap();
    open.signal(Signal::new("OPEN")).await.unwrap();
    let suspended = engine.start(Start::new("counter")).await.unwrap();
    does(&engine, &suspended, Command::Suspend).await;
    for run in [pending, early, open, suspended] {
        let before = row(&engine, run.id()).await;
        for signal in
            [Signal::new("GO").with("seven"), Signal::new("GO").with("seven").strict(), Signal::new("GO")]
        {
            let refused = run.signal(signal).await;
            let unfit = |refusal: &Refusal| matches!(refusal, Refusal::InvalidPayload { .. });
            assert!(is_refused(&refused, unfit), "{refused:?}");
        }
        engine.settle().await;
        assert_eq!(row(&engine, run.id()).await, before);
    }
    assert_eq!(audit(&engine).await.len(), 1, "only the suspension is on record");
}

#[tokio::test]
async fn unknown_signal_is_refused_with_a_suggestion() {
    let engine = with(counter()).await;
    let run = engine.start(Start::new("counter")).await.unwrap();
    let before = row(&engine, run.id()).await;
    let refused = run.signal(Signal::new("OPAN")).await;
    assert!(is_refused(&refused, |refusal| matches!(refusal, Refusal::UnknownSignal { .. })));
    assert!(refused.unwrap_err().to_string().contains("OPEN"));
    assert_eq!(row(&engine, run.id()).await, before);
}

#[tokio::test]
async fn ended_or_unknown_run_refuses_signals() {
    let engine = with(counter()).await;
    let run = engine.start(Start::new("counter")).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    run.signal(Signal::new("STOP")).await.unwrap();
    let before = row(&engine, run.id()).await;
    for signal in [go(1), go(1).strict(), go(1).id("one")] {
        let refused = run.signal(signal).await;
        assert!(is_refused(&refused, |refusal| *refusal == Refusal::Terminal), "{refused:?}");
    }
    assert_eq!(row(&engine, run.id()).await, before);
    let nobody = engine.run(stepwell::new_run_id());
    assert_eq!(nobody.signal(go(1)).await, Err(EngineError::NoRun(nobody.id())));
}

#[tokio::test]
async fn strict_signal_needs_an_active_source() {
    let engine = with(counter()).await;
    let run = engine.start(Start::new("counter")).await.unwrap();
    let before = row(&engine, run.id()).await;
    let refused = run.signal(go(1).strict()).await;
    assert!(is_refused(&refused, |refusal| matches!(refusal, Refusal::NoActiveSource { .. })), "{refused:?}");
    assert_eq!(row(&engine, run.id()).await, before);
    run.signal(Signal::new("OPEN")).await.unwrap();
    assert_eq!(run.signal(go(2).strict()).await.unwrap(), Signalled::Consumed);
    engine.settle().await;
    assert_eq!(taken(&engine, &run).await, [json!(2)]);
}

#[tokio::test]
async fn pending_suspended_or_failed_run_refuses_strict_signal() {
    let script = Script::bad();
    let engine = kit::start(|engine| engine.workflow(desk(|work| work)).action("work", script.action()));
    let engine = engine.await.unwrap();
    let pending = engine.start(Start::new("desk").after(DAY)).await.unwrap();
    let suspended = engine.start(Start::new("desk")).await.unwrap();
    does(&engine, &suspended, Command::Suspend).await;
    let failed = engine.start(Start::new("desk")).await.unwrap();
    failed.signal(Signal::new("GO")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&failed).await, Status::Failed);
    for run in [pending, suspended, failed] {
        let before = row(&engine, run.id()).await;
        let refused = run.signal(Signal::new("GO").strict()).await;
        assert!(refused.is_err(), "{} run: {refused:?}", before.head.status);
        assert_eq!(row(&engine, run.id()).await, before);
    }
}

#[tokio::test]
async fn strict_signal_is_refused_while_its_transition_runs() {
    let gate = Gate::new();
    let engine = kit::start(|engine| engine.workflow(desk(|work| work)).action("work", gate.action()));
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("desk")).await.unwrap();
    run.signal(Signal::new("GO")).await.unwrap();
    engine.settle().await;
    let refused = run.signal(Signal::new("GO").strict()).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(row(&engine, run.id()).await.inbox.len(), 0);
}

/// `GO` leads to the end only if its payload is greater than `more_than` in the context.
fn guarded() -> Definition {
    Spec::new("counter")
        .step("a")
        .step("b")
        .end("c")
        .signal("OPEN")
        .signal_with("GO", json!({"type": "integer"}))
        .on_signal("open", "a", "OPEN", "b")
        .transition(Transition::new("go", "b", "c").on_signal("GO").when("event > context.more_than"))
        .build()
        .unwrap()
}

#[tokio::test]
async fn signal_rejected_by_a_guard_is_not_buffered() {
    let engine = with(guarded()).await;
    let run = engine.start(Start::new("counter").input(&json!({"more_than": 10}))).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.settle().await;
    let before = row(&engine, run.id()).await;
    for signal in [go(10), go(10).strict(), go(10).id("ten")] {
        let refused = run.signal(signal).await;
        assert!(
            is_refused(&refused, |refusal| matches!(refusal, Refusal::GuardRejected { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(row(&engine, run.id()).await, before);
    assert_eq!(run.signal(go(11).id("ten")).await.unwrap(), Signalled::Consumed, "a refused id was not used");
}

// Buffered signals.

#[tokio::test]
async fn signal_without_active_source_is_buffered() {
    let engine = with(counter()).await;
    let run = engine.start(Start::new("counter")).await.unwrap();
    assert_eq!(run.signal(go(1)).await.unwrap(), Signalled::Buffered);
    engine.settle().await;
    assert_eq!((version(&run).await, run.view().await.unwrap().buffered_signals), (0, 1));
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.settle().await;
    assert_eq!((taken(&engine, &run).await, run.view().await.unwrap().buffered_signals), (vec![json!(1)], 0));
}

#[tokio::test]
async fn buffered_signals_are_consumed_in_order_of_arrival() {
    let engine = with(counter()).await;
    let run = engine.start(Start::new("counter")).await.unwrap();
    for number in [3, 1, 2] {
        run.signal(go(number)).await.unwrap();
        engine.advance(SECOND).await;
    }
    run.signal(Signal::new("STOP")).await.unwrap();
    run.signal(go(4)).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.settle().await;
    let names = history_actions(&engine, run.id()).await;
    assert_eq!(names, ["__start", "OPEN", "GO", "GO", "GO", "STOP"]);
    assert_eq!(taken(&engine, &run).await, [json!(3), json!(1), json!(2)]);
}

#[tokio::test]
async fn new_signal_does_not_overtake_a_buffered_one() {
    // No engine drives the run between the two calls: this engine has no permits.
    let build = |engine: stepwell::Builder| engine.workflow(counter()).with(|options| options.max_runs = 0);
    let (store, clock) = ground().await;
    let calls = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
    let run = calls.start(Start::new("counter")).await.unwrap();
    run.signal(go(1)).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    run.signal(go(2)).await.unwrap();
    let worker = TestEngine::start_on(store, clock, |engine| engine.workflow(counter())).await.unwrap();
    settle(&[&calls, &worker]).await;
    assert_eq!(taken(&worker, &run).await, [json!(1), json!(2)]);
}

#[tokio::test]
async fn new_signal_does_not_overtake_one_the_owner_is_taking() {
    let (inner, clock) = ground().await;
    let store = Arc::new(Faulty::new(inner.clone(), []));
    let acts = |engine: stepwell::Builder| {
        let script = Script::good();
        engine.workflow(counter_that(|go| go.action("work"))).action("work", script.action())
    };
    let first = TestEngine::start_on(store.clone(), clock.clone(), acts).await.unwrap();
    // The second engine accepts calls and runs nothing.
    let second = |engine| acts(engine).with(|options| options.max_runs = 0);
    let second = TestEngine::start_on(inner, clock, second).await.unwrap();
    let run = first.start(Start::new("counter")).await.unwrap();
    run.signal(go(1)).await.unwrap();
    settle(&[&first, &second]).await;
    // The answer to the commit that moves the run is delayed: the first engine owns the run by then.
    store.then(Fault::DelayAnswer(Duration::from_millis(150)));
    let open = tokio::spawn({
        let run = run.clone();
        async move { run.signal(Signal::new("OPEN")).await }
    });
    eventually(async || version(&second.run(run.id())).await == 1).await;
    second.signal(run.id(), go(2)).await.unwrap();
    open.await.unwrap().unwrap();
    settle(&[&first, &second]).await;
    assert_eq!(taken(&first, &run).await, [json!(1), json!(2)]);
}

/// A signal reaches the inbox between the decision on a newer one and its commit.
#[tokio::test]
async fn new_signal_does_not_overtake_one_arriving_meanwhile() {
    let (inner, clock) = ground().await;
    let watched = Watched::new(inner.clone());
    let engine = TestEngine::start_on(watched.clone(), clock, |engine| engine.workflow(counter()));
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("counter")).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.settle().await;
    let body = json!({"kind": "signal", "name": "GO", "payload": 1}).to_string().into();
    let message = NewMessage { topic: "signal:GO".to_owned(), body, expires_at: None, counts: true };
    let mut older = Commit::new(CommitId(uuid::Uuid::from_u128(7)), BEGINS);
    older.send = vec![SendMessage { to: run.id(), message, missing: OnMissingRun::Refuse }];
    watched.first(async move {
        inner.commit(TenantScope::single(), older).await.unwrap();
    });
    run.signal(go(2)).await.unwrap();
    engine.settle().await;
    assert_eq!(taken(&engine, &run).await, [json!(1), json!(2)]);
}

#[tokio::test]
async fn buffered_signal_rejected_by_a_guard_blocks_no_other() {
    let engine = with(guarded()).await;
    let run = engine.start(Start::new("counter").input(&json!({"more_than": 10}))).await.unwrap();
    run.signal(go(5)).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.settle().await;
    assert_eq!((places(&run).await, run.view().await.unwrap().buffered_signals), (vec!["b".into()], 1));
    let other = engine.start(Start::new("counter").input(&json!({"more_than": 10}))).await.unwrap();
    for number in [5, 6, 20] {
        other.signal(go(number)).await.unwrap();
    }
    other.signal(Signal::new("OPEN")).await.unwrap();
    engine.settle().await;
    assert_eq!(taken(&engine, &other).await, [json!(20)], "rejected signals do not block others");
    does(&engine, &run, Command::Patch { fields: json!({"more_than": 4}) }).await;
    assert_eq!(taken(&engine, &run).await, [json!(5)], "it is offered again when the run becomes idle");
}

#[tokio::test]
async fn buffered_signal_waits_for_a_named_guard() {
    let open = Arc::new(AtomicBool::new(false));
    let definition = Spec::new("counter")
        .step("a")
        .step("b")
        .end("c")
        .signal("OPEN")
        .signal("GO")
        .on_signal("open", "a", "OPEN", "b")
        .transition(Transition::new("go", "b", "c").on_signal("GO").guard(Guard::named("open")))
        .build()
        .unwrap();
    let guard = {
        let open = open.clone();
        move |_| std::future::ready(open.load(Ordering::SeqCst))
    };
    let engine = kit::start(|engine| engine.workflow(definition).guard("open", guard)).await.unwrap();
    let run = engine.start(Start::new("counter")).await.unwrap();
    run.signal(go(1)).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.settle().await;
    assert_eq!(run.view().await.unwrap().buffered_signals, 1);
    assert!(is_refused(&run.signal(go(2)).await, |refusal| matches!(refusal, Refusal::GuardRejected { .. })));
    open.store(true, Ordering::SeqCst);
    does(&engine, &run, Command::Patch { fields: json!({"any": 1}) }).await;
    assert_eq!((status(&run).await, taken(&engine, &run).await), (Status::Completed, vec![json!(1)]));
}

#[tokio::test]
async fn full_inbox_refuses_signals_until_some_are_consumed() {
    let store = store_within(Limits { inbox: 3, ..Limits::default() }).await;
    let engine = TestEngine::start_on(store, ManualClock::new(BEGINS), |engine| engine.workflow(counter()))
        .await
        .unwrap();
    let (run, other) = (
        engine.start(Start::new("counter")).await.unwrap(),
        engine.start(Start::new("counter")).await.unwrap(),
    );
    for number in 1..=3 {
        assert_eq!(run.signal(go(number)).await.unwrap(), Signalled::Buffered);
    }
    engine.settle().await;
    let before = row(&engine, run.id()).await;
    let full = run.signal(go(4).id("four")).await;
    assert_eq!(full, Err(EngineError::InboxFull { run: run.id(), max: 3 }));
    assert_eq!(row(&engine, run.id()).await, before);
    assert_eq!(other.signal(go(1)).await.unwrap(), Signalled::Buffered, "each run has its own inbox");
    assert_eq!(
        run.signal(Signal::new("OPEN")).await.unwrap(),
        Signalled::Consumed,
        "a consumed signal needs no inbox space"
    );
    engine.settle().await;
    assert_eq!(run.signal(go(4).id("four")).await.unwrap(), Signalled::Consumed);
    assert_eq!(taken(&engine, &run).await.len(), 4);
}

#[tokio::test]
async fn buffered_signal_is_offered_until_it_expires() {
    let engine = with(counter()).await;
    let run = engine.start(Start::new("counter")).await.unwrap();
    run.signal(go(1).ttl(10 * SECOND)).await.unwrap();
    engine.advance(Duration::from_millis(9_999)).await;
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.advance(DAY).await;
    assert_eq!(taken(&engine, &run).await, [json!(1)]);
    assert_eq!(audit(&engine).await, []);
}

#[tokio::test]
async fn expired_signal_is_removed_and_audited() {
    let engine = with(counter()).await;
    let run = engine.start(Start::new("counter")).await.unwrap();
    run.signal(go(1).ttl(10 * SECOND)).await.unwrap();
    run.signal(go(2)).await.unwrap();
    engine.advance(10 * SECOND).await;
    assert_eq!(
        (run.view().await.unwrap().buffered_signals, version(&run).await),
        (1, 0),
        "expired by itself"
    );
    let trail = audit(&engine).await;
    let [(_, expired)] = &trail[..] else { panic!("{trail:?}") };
    assert_eq!((expired.operation.as_str(), expired.subject.as_str()), ("signal.expired", "GO"));
    assert_eq!(expired.run, Some(run.id()));
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.settle().await;
    assert_eq!(taken(&engine, &run).await, [json!(2)]);
}

#[tokio::test]
async fn signals_are_buffered_for_seven_days_by_default() {
    let engine = with(counter()).await;
    let run = engine.start(Start::new("counter")).await.unwrap();
    run.signal(go(1)).await.unwrap();
    engine.advance(7 * DAY - SECOND).await;
    assert_eq!(run.view().await.unwrap().buffered_signals, 1);
    engine.advance(SECOND).await;
    assert_eq!((run.view().await.unwrap().buffered_signals, audit(&engine).await.len()), (0, 1));
}

#[tokio::test]
async fn signals_of_inactive_runs_expire_and_are_audited() {
    let script = Script::bad();
    let engine = kit::start(|engine| engine.workflow(desk(|work| work)).action("work", script.action()));
    let engine = engine.await.unwrap();
    let pending = engine.start(Start::new("desk").after(30 * DAY)).await.unwrap();
    let suspended = engine.start(Start::new("desk")).await.unwrap();
    does(&engine, &suspended, Command::Suspend).await;
    let failed = engine.start(Start::new("desk")).await.unwrap();
    failed.signal(Signal::new("GO")).await.unwrap();
    engine.settle().await;
    let before = audit(&engine).await.len();
    for run in [&pending, &suspended, &failed] {
        assert_eq!(run.signal(Signal::new("GO").ttl(SECOND)).await.unwrap(), Signalled::Buffered);
    }
    engine.advance(DAY).await;
    for run in [&pending, &suspended, &failed] {
        assert_eq!(run.view().await.unwrap().buffered_signals, 0, "{}", status(run).await);
    }
    assert_eq!(audit(&engine).await.len() - before, 3);
}

#[tokio::test]
async fn signals_to_suspended_and_pending_runs_are_buffered() {
    let engine = with(counter()).await;
    let suspended = engine.start(Start::new("counter")).await.unwrap();
    does(&engine, &suspended, Command::Suspend).await;
    let pending = engine.start(Start::new("counter").after(60 * SECOND)).await.unwrap();
    for run in [&suspended, &pending] {
        let before = (status(run).await, version(run).await);
        assert_eq!(run.signal(Signal::new("OPEN")).await.unwrap(), Signalled::Buffered);
        assert_eq!(run.signal(go(1)).await.unwrap(), Signalled::Buffered);
        engine.settle().await;
        assert_eq!((status(run).await, version(run).await), before);
    }
    engine.advance(60 * SECOND).await;
    assert_eq!(history_actions(&engine, pending.id()).await, ["__start", "OPEN", "GO"]);
    assert_eq!((status(&suspended).await, version(&suspended).await), (Status::Suspended, 0));
    does(&engine, &suspended, Command::Resume).await;
    assert_eq!(history_actions(&engine, suspended.id()).await, ["__start", "OPEN", "GO"]);
}

// Signals with an id are idempotent.

#[tokio::test]
async fn same_signal_id_is_consumed_once() {
    let engine = with(counter()).await;
    let run = engine.start(Start::new("counter")).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    for time in 0..3 {
        let sent = engine.signal_once(run.id(), go(1).id("one")).await.unwrap();
        assert_eq!((sent.value, sent.is_new), (Signalled::Consumed, time == 0));
        engine.settle().await;
    }
    run.signal(go(1).id("two")).await.unwrap();
    run.signal(go(1)).await.unwrap();
    run.signal(go(1)).await.unwrap();
    engine.settle().await;
    assert_eq!(taken(&engine, &run).await.len(), 4);
    let other = engine.start(Start::new("counter")).await.unwrap();
    other.signal(Signal::new("OPEN")).await.unwrap();
    assert_eq!(other.signal(go(1).id("one")).await.unwrap(), Signalled::Consumed, "ids belong to their run");
    assert_eq!(taken(&engine, &other).await.len(), 1);
}

#[tokio::test]
async fn buffered_signal_with_an_id_is_consumed_once() {
    let engine = with(counter()).await;
    let run = engine.start(Start::new("counter")).await.unwrap();
    for time in 0..3 {
        let sent = engine.signal_once(run.id(), go(1).id("one")).await.unwrap();
        assert_eq!((sent.value, sent.is_new), (Signalled::Buffered, time == 0));
    }
    assert_eq!(run.view().await.unwrap().buffered_signals, 1);
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.settle().await;
    run.signal(go(1).id("one")).await.unwrap();
    engine.settle().await;
    assert_eq!(taken(&engine, &run).await, [json!(1)]);
}

#[tokio::test]
async fn reused_signal_id_with_other_content_is_refused() {
    let engine = with(counter()).await;
    let run = engine.start(Start::new("counter")).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    run.signal(go(1).id("one")).await.unwrap();
    let before = row(&engine, run.id()).await;
    for signal in [go(2).id("one"), Signal::new("STOP").id("one"), Signal::new("OPEN").id("one")] {
        let refused = run.signal(signal).await;
        assert!(matches!(refused, Err(EngineError::KeyReused { .. })), "{refused:?}");
    }
    assert_eq!(row(&engine, run.id()).await, before);
}

#[tokio::test]
async fn repeated_signal_is_replayed_even_if_refused_now() {
    let engine = with(guarded()).await;
    let run = engine.start(Start::new("counter").input(&json!({"more_than": 10}))).await.unwrap();
    let open = || Signal::new("OPEN").id("open").strict();
    assert_eq!(run.signal(open()).await.unwrap(), Signalled::Consumed);
    assert_eq!(run.signal(open()).await.unwrap(), Signalled::Consumed, "no transition accepts it any more");
    let last = || go(11).id("last");
    assert_eq!(run.signal(last()).await.unwrap(), Signalled::Consumed);
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(run.signal(last()).await.unwrap(), Signalled::Consumed, "the signal has ended the run");
    assert_eq!(taken(&engine, &run).await.len(), 1);
}

#[tokio::test]
async fn used_signal_id_does_not_bypass_validation() {
    let engine = with(guarded()).await;
    let run = engine.start(Start::new("counter").input(&json!({"more_than": 10}))).await.unwrap();
    run.signal(Signal::new("OPEN").id("open")).await.unwrap();
    for signal in
        [Signal::new("GO").with("no number").id("open"), go(3).id("open"), Signal::new("NONE").id("open")]
    {
        let refused = run.signal(signal).await;
        assert!(refused.is_err(), "{refused:?}");
    }
    run.signal(go(11).id("last")).await.unwrap();
    for signal in [go(12).id("last"), Signal::new("GO").with("no number").id("last"), go(11).id("open")] {
        let refused = run.signal(signal).await;
        assert!(refused.is_err(), "{refused:?}");
    }
    assert_eq!(taken(&engine, &run).await, [json!(11)]);
}

// Signals whose transition has an action.

#[tokio::test]
async fn buffered_signal_stays_in_the_inbox_until_its_action_ends() {
    let gate = Gate::new();
    let definition = desk_spec(|work| work).step("before").initial("before").signal("OPEN");
    let definition = definition.on_signal("begin", "before", "OPEN", "open").build().unwrap();
    let engine = kit::start(|engine| engine.workflow(definition).action("work", gate.action()));
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("desk")).await.unwrap();
    run.signal(Signal::new("GO").with(&7)).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.settle().await;
    assert_eq!((gate.inside(), row(&engine, run.id()).await.inbox.len()), (1, 1));
    gate.open(1);
    engine.settle().await;
    assert_eq!((status(&run).await, row(&engine, run.id()).await.inbox.len()), (Status::Completed, 0));
}

#[tokio::test]
async fn signal_waits_for_the_running_action_of_its_place() {
    let gate = Gate::new();
    let definition = counter_that(|go| go.action("work"));
    let engine = kit::start(|engine| engine.workflow(definition).action("work", gate.action()));
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("counter")).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    assert_eq!(run.signal(go(1)).await.unwrap(), Signalled::Consumed);
    engine.settle().await;
    assert_eq!(run.signal(go(2)).await.unwrap(), Signalled::Buffered);
    assert_eq!(run.signal(go(3)).await.unwrap(), Signalled::Buffered);
    engine.settle().await;
    assert_eq!((gate.began(), gate.most()), (1, 1));
    gate.open(3);
    engine.settle().await;
    assert_eq!((taken(&engine, &run).await, gate.most()), (vec![json!(1), json!(2), json!(3)], 1));
}

#[tokio::test]
async fn signal_without_action_waits_for_earlier_signals() {
    for first_is_kept in [false, true] {
        let gate = Gate::new();
        let definition = counter_that(|go| go.action("work"));
        let engine = kit::start(|engine| engine.workflow(definition).action("work", gate.action()));
        let engine = engine.await.unwrap();
        let run = going(&engine, first_is_kept).await;
        engine.settle().await;
        assert_eq!(gate.inside(), 1);
        run.signal(go(2)).await.unwrap();
        assert_eq!(run.signal(Signal::new("STOP")).await.unwrap(), Signalled::Buffered);
        assert!(matches!(
            run.signal(Signal::new("STOP").strict()).await,
            Err(EngineError::WrongStatus { .. })
        ));
        engine.settle().await;
        assert_eq!(status(&run).await, Status::Running);
        gate.open(2);
        engine.settle().await;
        assert_eq!(taken(&engine, &run).await, [json!(1), json!(2)]);
        assert_eq!(status(&run).await, Status::Completed);
    }
}

#[tokio::test]
async fn signal_without_action_waits_for_an_earlier_retry() {
    for first_is_kept in [false, true] {
        let script = Script::failing(1);
        let retry = Retry { attempts: 3, delay_ms: 10_000, ..Retry::default() };
        let definition = counter_that(|go| go.action("work").retry(retry));
        let engine = kit::start(|engine| engine.workflow(definition).action("work", script.action()));
        let engine = engine.await.unwrap();
        let run = going(&engine, first_is_kept).await;
        engine.advance(5 * SECOND).await;
        assert_eq!(run.signal(Signal::new("STOP")).await.unwrap(), Signalled::Buffered);
        engine.advance(4 * SECOND).await;
        assert_eq!((status(&run).await, script.calls().len()), (Status::Running, 1));
        engine.advance(2 * SECOND).await;
        assert_eq!(taken(&engine, &run).await, [json!(1)]);
        assert_eq!(status(&run).await, Status::Completed);
    }
}

/// A place with a signal and a timer, one of which has an action.
fn rivals(signal_acts: bool) -> Definition {
    let acts = |transition: Transition, does: bool| if does { transition.action("work") } else { transition };
    Spec::new("rivals")
        .step("asked")
        .end_with("answered", json!("answered"))
        .end_with("late", json!("late"))
        .signal("GO")
        .transition(acts(Transition::new("answer", "asked", "answered").on_signal("GO"), signal_acts))
        .transition(acts(Transition::new("expire", "asked", "late").after_ms(60_000), !signal_acts))
        .build()
        .unwrap()
}

#[tokio::test]
async fn signal_and_timer_are_handled_in_order_of_arrival() {
    for signal_acts in [true, false] {
        let gate = Gate::new();
        let engine = kit::start(|engine| engine.workflow(rivals(signal_acts)).action("work", gate.action()));
        let engine = engine.await.unwrap();
        let run = engine.start(Start::new("rivals")).await.unwrap();
        engine.advance(59 * SECOND).await;
        if signal_acts {
            run.signal(Signal::new("GO")).await.unwrap();
        }
        engine.advance(2 * SECOND).await;
        assert_eq!((gate.inside(), status(&run).await), (1, Status::Running));
        if !signal_acts {
            assert_eq!(run.signal(Signal::new("GO")).await.unwrap(), Signalled::Buffered);
            engine.settle().await;
        }
        assert_eq!(status(&run).await, Status::Running);
        gate.open(1);
        engine.settle().await;
        let expected = if signal_acts { "answered" } else { "late" };
        assert_eq!(soon(run.result()).await.unwrap(), json!(expected));
    }
}

#[tokio::test]
async fn concurrent_signals_are_all_consumed() {
    let script = Script::good();
    let definition = counter_that(|go| go.action("work"));
    let engine = kit::start(|engine| engine.workflow(definition).action("work", script.action()));
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("counter")).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    let sends: Vec<_> = (0..20)
        .map(|number| {
            let run = run.clone();
            tokio::spawn(async move { run.signal(go(number)).await.unwrap() })
        })
        .collect();
    for send in sends {
        send.await.unwrap();
    }
    engine.settle().await;
    let mut all: Vec<_> = taken(&engine, &run).await.iter().filter_map(Value::as_i64).collect();
    all.sort_unstable();
    assert_eq!(all, (0..20).collect::<Vec<_>>());
    assert_eq!(run.view().await.unwrap().buffered_signals, 0);
}

/// Two attempts of the first signal's action, and a second signal in the delay between them.
async fn second_in_the_pause(first_is_kept: bool) -> Vec<Value> {
    let script = Script::failing(1);
    let retry = Retry { attempts: 3, delay_ms: 10_000, ..Retry::default() };
    let definition = counter_that(|go| go.action("work").retry(retry));
    let engine = kit::start(|engine| engine.workflow(definition).action("work", script.action()));
    let engine = engine.await.unwrap();
    let run = going(&engine, first_is_kept).await;
    engine.advance(5 * SECOND).await;
    assert_eq!(run.signal(go(2)).await.unwrap(), Signalled::Buffered);
    engine.advance(60 * SECOND).await;
    assert_eq!(run.view().await.unwrap().buffered_signals, 0);
    taken(&engine, &run).await
}

#[tokio::test]
async fn signal_does_not_overtake_one_in_a_retry_delay() {
    assert_eq!(second_in_the_pause(false).await, [json!(1), json!(2)]);
}

#[tokio::test]
async fn signal_does_not_overtake_a_buffered_one_in_a_retry_delay() {
    assert_eq!(second_in_the_pause(true).await, [json!(1), json!(2)]);
}

/// A process crashes during a signal's action; the next process continues with the signal's payload.
async fn dies_under_a_signal(kept: bool) {
    let (store, clock) = ground().await;
    let definition = desk_spec(|work| work).step("before").initial("before").signal("OPEN");
    let definition = definition.on_signal("begin", "before", "OPEN", "open").build().unwrap();
    let gate = Gate::new();
    let (first, tasks) = start_killable(store.clone(), &clock, |engine| {
        engine.workflow(definition.clone()).action("work", gate.action())
    })
    .await;
    let run = first.start(Start::new("desk")).await.unwrap().id();
    let signals = [Signal::new("GO").with(&json!({"order": 7})), Signal::new("OPEN")];
    let [go, open] = signals;
    for signal in if kept { [go, open] } else { [open, go] } {
        first.signal(run, signal).await.unwrap();
    }
    first.settle().await;
    assert_eq!(gate.inside(), 1);
    tasks.kill().await;
    let script = Script::new([Ok(json!("done"))]);
    let (second, _tasks) =
        start_killable(store, &clock, |engine| engine.workflow(definition).action("work", script.action()))
            .await;
    second.settle().await;
    assert_eq!(script.calls().len(), 0, "the first process may still be alive");
    second.advance(Duration::from_millis(LEASE_MS + 10_000)).await;
    assert_eq!(soon(second.run(run).result()).await.unwrap(), json!("done"));
    let call = script.calls()[0].clone();
    assert_eq!((call.payload, call.attempt), (json!({"order": 7}), 2));
    assert_eq!(row(&second, run).await.inbox.len(), 0);
}

#[tokio::test]
async fn signal_survives_a_crash_during_its_action() {
    dies_under_a_signal(false).await;
}

#[tokio::test]
async fn buffered_signal_survives_a_crash_during_its_action() {
    dies_under_a_signal(true).await;
}

#[tokio::test]
async fn signal_is_durable_before_it_is_acknowledged() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let (first, tasks) = start_killable(store.clone(), &clock, |engine| {
        engine.workflow(desk(|work| work)).action("work", gate.action())
    })
    .await;
    let run = first.start(Start::new("desk")).await.unwrap().id();
    assert_eq!(first.signal(run, Signal::new("GO").with(&7)).await.unwrap(), Signalled::Consumed);
    // The process crashes before the action has started.
    tasks.kill().await;
    assert_eq!(gate.began(), 0);
    let act = |cx: Cx| async move { Ok::<_, ActionError>(cx.payload().clone()) };
    let (second, _tasks) =
        start_killable(store, &clock, |engine| engine.workflow(desk(|work| work)).action("work", act)).await;
    second.advance(Duration::from_millis(LEASE_MS + 10_000)).await;
    assert_eq!(soon(second.run(run).result()).await.unwrap(), json!(7));
}

/// G3: an answer belongs to the wait it was shown for.
#[tokio::test]
async fn second_answer_to_a_wait_is_refused() {
    let spec = Spec::new("asks twice").wait("a", "SAY").wait("b", "SAY").end("c").signal("SAY");
    let definition = spec.auto("ab", "a", "b").auto("bc", "b", "c").build().unwrap();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    let run = engine.start(Start::new("asks twice")).await.unwrap();
    engine.settle().await;
    let open = async || {
        let query = WaitQuery { of: WaitFilter::Run(run.id()), limit: 9, cursor: None };
        let waits = engine.store().waits(engine.scope(), query).await.unwrap().items;
        waits.into_iter().map(|row| row.wait.activation).collect::<Vec<_>>()
    };
    let first = open().await;
    let answer = |text: &str| Signal::new("SAY").with(text).answering(first[0]);
    assert_eq!(run.signal(answer("yes")).await.unwrap(), Signalled::Consumed);
    engine.settle().await;
    let second = open().await;
    assert_eq!((first.len(), second.len(), first == second), (1, 1, false));

    let again = engine.signal_once(run.id(), answer("yes")).await.unwrap();
    assert_eq!((again.value, again.is_new), (Signalled::Consumed, false), "the same answer once more");
    match run.signal(answer("no")).await.unwrap_err() {
        EngineError::AlreadyAnswered { wait, first: known, .. } => {
            assert_eq!((wait, known.signal.as_str(), known.at), (first[0], "SAY", engine.now()));
        }
        other => panic!("{other}"),
    }
    let kept = answer("no").ttl(Duration::from_secs(9));
    assert!(matches!(run.signal(kept).await, Err(EngineError::Invalid(_))));
    assert!(run.signal(Signal::new("SAY").answering(77)).await.is_err());
    let start = Start::new("asks twice").key("k");
    assert!(matches!(engine.start_or_signal(start, answer("no")).await, Err(EngineError::Invalid(_))));
    engine.settle().await;
    assert_eq!(
        (open().await, run.view().await.unwrap().buffered_signals),
        (second.clone(), 0),
        "nothing was buffered"
    );
    run.signal(Signal::new("SAY").answering(second[0])).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

/// A past bug: the signal was refused because its process did not know of the first answer yet.
#[tokio::test]
async fn signal_after_an_answer_elsewhere_reaches_the_next_wait() {
    let ask = || {
        let form = Some(json!({"type": "integer"}));
        Place::Wait(Wait { signal: Some("SAY".into()), form, ..Wait::default() })
    };
    let twice = Spec::new("twice").place("one", ask()).place("two", ask()).end("done").signal("SAY");
    let twice = twice.initial("one").auto("next", "one", "two").auto("end", "two", "done").build().unwrap();
    let (store, clock) = ground().await;
    let engine = async || {
        let definition = twice.clone();
        TestEngine::start_on(store.clone(), clock.clone(), |engine| engine.workflow(definition))
            .await
            .unwrap()
    };
    let (one, other) = (engine().await, engine().await);
    let run = one.start(Start::new("twice")).await.unwrap();
    one.settle().await;
    assert_eq!(places(&run).await, [stepwell::core::Name::from("one")]);
    other.signal(run.id(), Signal::new("SAY").with(&1)).await.unwrap();
    other.settle().await;
    assert_eq!(one.signal(run.id(), Signal::new("SAY").with(&2)).await.unwrap(), Signalled::Consumed);
    settle(&[&one, &other]).await;
    assert_eq!(status(&run).await, Status::Completed);
}
