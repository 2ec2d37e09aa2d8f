//! Actions of remote workers: their tasks are leased, completed once, and owned by no process while in flight.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::catalogue::{CatalogueError, Publish};
use stepwell::core::retry::Retry;
use stepwell::core::spec::{ActionSpec, Transition};
use stepwell::core::{Definition, Failure, Spec};
use stepwell::host::BoxFuture;
use stepwell::remote::TaskState;
use stepwell::store::{HistoryQuery, Status, TenantScope};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{Actor, Command, Engine, EngineError, Grants, Operator, Permission, Poll, RemoteAction, Run};
use stepwell::{Secrets, Signal, Signalled, Start, Task};

use crate::kit::{
    self, after_s, context, error_code, ground, history_actions, other_tenant, places, settle, soon,
    start_killable, status, waits_of,
};
use crate::world::{desk, job, pair, saved};

mod writes;

const SECOND: Duration = Duration::from_secs(1);

/// An engine with this workflow, whose action `work` is run by remote workers.
async fn office(definition: Definition) -> TestEngine {
    office_with(definition, |engine| engine).await
}

async fn office_with(
    definition: Definition,
    build: impl FnOnce(stepwell::Builder) -> stepwell::Builder,
) -> TestEngine {
    let engine = kit::start(build).await.unwrap();
    engine.catalogue().put_action(RemoteAction::new("work")).await.unwrap();
    engine.register(definition).unwrap();
    engine
}

async fn begun(engine: &TestEngine, workflow: &str) -> Run {
    let run = engine.start(Start::new(workflow)).await.unwrap();
    engine.settle().await;
    run
}

fn asks() -> Poll {
    Poll::new("ann", ["work"])
}

/// Leases the only task in the queue.
async fn one(engine: &Engine) -> Task {
    let mut tasks = engine.tasks().poll(asks().max(10)).await.unwrap();
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    tasks.remove(0)
}

async fn none(engine: &Engine) {
    assert_eq!(engine.tasks().poll(asks()).await.unwrap(), []);
}

async fn done(engine: &TestEngine, task: &Task, output: Value) {
    let done = engine.tasks().complete(task.id, task.fence, output).await.unwrap();
    assert_eq!((done.is_new, done.value.error), (true, None));
    engine.settle().await;
}

/// Asserts that every call for the task under this fence is refused.
async fn gone(engine: &Engine, task: &Task) {
    let tasks = engine.tasks();
    let is_gone = |error: EngineError| assert!(matches!(error, EngineError::TaskGone { .. }), "{error}");
    is_gone(tasks.heartbeat(task.id, task.fence, SECOND, None).await.unwrap_err());
    is_gone(tasks.complete(task.id, task.fence, json!("late")).await.unwrap_err());
    is_gone(tasks.fail(task.id, task.fence, Failure::new("late", "late")).await.unwrap_err());
    is_gone(tasks.release(task.id, task.fence).await.unwrap_err());
}

async fn states(engine: &Engine) -> Vec<TaskState> {
    let page = engine.tasks().list(None, 100, None).await.unwrap();
    page.items.into_iter().map(|row| row.state).collect()
}

#[tokio::test]
async fn queued_task_is_leased_and_its_result_is_committed() {
    let engine = office(desk(|work| work)).await;
    let run = begun(&engine, "desk").await;
    none(&engine).await;
    assert_eq!(run.signal(Signal::new("GO").with(&json!({"n": 1}))).await.unwrap(), Signalled::Consumed);
    engine.settle().await;
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.owner, view.wake), (Status::Running, None, None), "no owner while queued");
    let rows = waits_of(&engine, run.id()).await;
    let detail: Value = serde_json::from_slice(&rows[0].wait.detail).unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(detail["task"], json!({"action": "work", "transition": "work", "state": "waiting"}));

    let task = one(&engine).await;
    assert_eq!((task.action.as_str(), task.transition.as_str(), task.attempt), ("work", "work", 1));
    assert_eq!((task.run, task.workflow.as_str(), task.place.as_str()), (run.id(), "desk", "open"));
    assert_eq!(task.idempotency_key, format!("{}-{}", run.id(), task.id.activation));
    assert_eq!(task.lease_until, after_s(30));
    none(&engine).await;
    let row = engine.tasks().list(Some("work".into()), 10, None).await.unwrap().items.remove(0);
    assert_eq!((row.id, row.state, row.worker.as_deref()), (task.id, TaskState::Leased, Some("ann")));
    assert_eq!(run.view().await.unwrap().wake, Some(after_s(30)));

    done(&engine, &task, json!({"sum": 7})).await;
    assert_eq!(run.result().await.unwrap(), json!({"sum": 7}));
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "GO"]);
    assert_eq!((waits_of(&engine, run.id()).await, states(&engine).await), (vec![], vec![]));
    assert_eq!(engine.now(), BEGINS);
}

#[tokio::test]
async fn repeated_worker_report_applies_once() {
    let retry = Retry { attempts: 3, ..Retry::default() };
    let engine = office(job(|work| work.retry(retry))).await;
    let run = begun(&engine, "job").await;
    let task = one(&engine).await;
    let tasks = engine.tasks();
    let failed = || tasks.fail(task.id, task.fence, Failure::new("busy", "no time"));
    assert!(failed().await.unwrap().is_new);
    let again = failed().await.unwrap();
    assert_eq!((again.is_new, again.value.error.unwrap().code.as_str()), (false, "busy"));
    assert_eq!(run.view().await.unwrap().ledger.attempts[0].failed, 1);
    // A different result under the same fence is refused.
    assert!(engine.tasks().complete(task.id, task.fence, json!(1)).await.is_err());
    engine.advance(SECOND).await;
    let task = one(&engine).await;
    done(&engine, &task, json!(1)).await;
    let again = engine.tasks().complete(task.id, task.fence, json!(1)).await.unwrap();
    assert_eq!((again.is_new, again.value.error), (false, None));
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "__auto:work"]);
}

#[tokio::test]
async fn worker_without_heartbeat_loses_its_task() {
    let engine = office(job(|work| work)).await;
    let run = begun(&engine, "job").await;
    let first = one(&engine).await;
    engine.advance(20 * SECOND).await;
    let kept =
        engine.tasks().heartbeat(first.id, first.fence, 30 * SECOND, Some(json!("half"))).await.unwrap();
    assert_eq!(kept, after_s(50));
    engine.advance(29 * SECOND).await;
    assert_eq!(states(&engine).await, [TaskState::Leased]);
    let lease = run.view().await.unwrap().ledger.attempts[0].queued.clone().unwrap().lease.unwrap();
    assert_eq!((lease.note, lease.until), (Some(json!("half")), after_s(50)));
    engine.advance(SECOND).await;
    assert_eq!(states(&engine).await, [TaskState::Waiting]);
    gone(&engine, &first).await;

    let second = one(&engine).await;
    assert!(second.fence > first.fence, "{first:?} {second:?}");
    assert_eq!((second.id, second.attempt), (first.id, 2));
    assert_eq!(second.idempotency_key, first.idempotency_key);
    gone(&engine, &first).await;
    assert_eq!(run.view().await.unwrap().status, Status::Running);
    done(&engine, &second, json!(null)).await;
    assert_eq!(status(&run).await, Status::Completed);
    gone(&engine, &first).await;
}

#[tokio::test]
async fn repeated_worker_losses_stop_the_run() {
    let engine = office_with(job(|work| work), |engine| engine.with(|options| options.max_crashes = 3)).await;
    let run = begun(&engine, "job").await;
    for _ in 0..3 {
        one(&engine).await;
        engine.advance(30 * SECOND).await;
    }
    assert_eq!((status(&run).await, error_code(&run).await.unwrap()), (Status::Failed, "crashed".to_owned()));
    none(&engine).await;
    assert_eq!(states(&engine).await, []);
    engine.operate(run.id(), Command::Retry, &Operator::default()).await.unwrap();
    engine.settle().await;
    let task = one(&engine).await;
    done(&engine, &task, json!(null)).await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn released_task_can_be_leased_again_at_once() {
    let engine = office(job(|work| work)).await;
    let run = begun(&engine, "job").await;
    let first = one(&engine).await;
    engine.tasks().release(first.id, first.fence).await.unwrap();
    gone(&engine, &first).await;
    let second = one(&engine).await;
    assert!(second.fence > first.fence);
    assert_eq!(second.attempt, 1);
    assert_eq!(run.view().await.unwrap().ledger.crashes.len(), 0);
}

#[tokio::test]
async fn worker_of_a_cancelled_run_loses_its_task() {
    let engine = office(job(|work| work)).await;
    let run = begun(&engine, "job").await;
    let task = one(&engine).await;
    engine.cancel(run.id()).await.unwrap();
    engine.settle().await;
    gone(&engine, &task).await;
    assert_eq!((status(&run).await, states(&engine).await), (Status::Cancelled, vec![]));
}

#[tokio::test]
async fn task_times_out_despite_heartbeats() {
    let engine = office(job(|work| work.timeout_ms(10_000))).await;
    let run = begun(&engine, "job").await;
    // The timeout does not run while no worker has the task.
    engine.advance(60 * SECOND).await;
    let task = one(&engine).await;
    assert_eq!((task.deadline, task.lease_until), (Some(after_s(70)), after_s(70)));
    engine.advance(9 * SECOND).await;
    let kept = engine.tasks().heartbeat(task.id, task.fence, 60 * SECOND, None).await.unwrap();
    assert_eq!(kept, after_s(70));
    engine.advance(SECOND).await;
    assert_eq!((status(&run).await, error_code(&run).await.unwrap()), (Status::Failed, "timeout".to_owned()));
    gone(&engine, &task).await;
    assert_eq!(run.view().await.unwrap().ledger.crashes.len(), 0);
}

#[tokio::test]
async fn failed_task_is_retried_by_the_retry_policy() {
    let retry = Retry { attempts: 2, ..Retry::default() };
    let engine = office(job(|work| work.retry(retry))).await;
    let run = begun(&engine, "job").await;
    let first = one(&engine).await;
    engine.tasks().fail(first.id, first.fence, Failure::new("busy", "no time")).await.unwrap();
    engine.settle().await;
    none(&engine).await;
    assert_eq!(run.view().await.unwrap().wake, Some(after_s(1)));
    gone(&engine, &Task { fence: first.fence + 1, ..first.clone() }).await;
    engine.advance(SECOND).await;
    let second = one(&engine).await;
    assert_eq!((second.attempt, second.fence > first.fence), (2, true));
    let last = Failure::new("broken", "never").non_retryable();
    engine.tasks().fail(second.id, second.fence, last).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, error_code(&run).await.unwrap()), (Status::Failed, "broken".to_owned()));
    let failures = run.view().await.unwrap().ledger.failures;
    assert_eq!(
        failures.iter().map(|tried| tried.error.code.as_str()).collect::<Vec<_>>(),
        ["busy", "broken"]
    );
}

#[tokio::test]
async fn run_with_a_remote_action_holds_no_permit() {
    let engine = office_with(job(|work| work), |engine| engine.with(|options| options.max_runs = 1)).await;
    let here = Spec::new("here").step("a").end("b").auto("go", "a", "b").build().unwrap();
    engine.register(here).unwrap();
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(begun(&engine, "job").await);
    }
    let tasks = engine.tasks().poll(asks().max(10)).await.unwrap();
    assert_eq!(tasks.len(), 5);
    let other = begun(&engine, "here").await;
    assert_eq!(status(&other).await, Status::Completed);
    for run in &runs {
        assert_eq!(run.view().await.unwrap().owner, None);
    }
}

#[tokio::test]
async fn leased_task_survives_a_process_crash() {
    let (store, clock) = ground().await;
    let (first, tasks) = start_killable(store.clone(), &clock, |engine| engine).await;
    first.catalogue().put_action(RemoteAction::new("work")).await.unwrap();
    first.register(job(|work| work)).unwrap();
    let run = begun(&first, "job").await;
    let task = one(&first).await;
    tasks.kill().await;
    let (second, _tasks) = start_killable(store, &clock, |engine| engine.workflow(job(|work| work))).await;
    settle(&[&second]).await;
    second.tasks().heartbeat(task.id, task.fence, 600 * SECOND, None).await.unwrap();
    second.advance(20 * SECOND).await;
    let view = second.run(run.id()).view().await.unwrap();
    assert_eq!((view.ledger.crashes.len(), view.ledger.attempts[0].failed, view.owner), (0, 0, None));
    done(&second, &task, json!(null)).await;
    assert_eq!(status(&second.run(run.id())).await, Status::Completed);
}

#[tokio::test]
async fn signals_wait_for_the_task_of_an_earlier_signal() {
    let input = json!({"$expr": "event.n"});
    let save_as = Some("got".to_owned());
    let action = ActionSpec { name: "work".into(), input, save_as, version: None };
    let ask = Transition::new("take", "open", "open").on_signal("GO").action_with(action);
    let spec = Spec::new("loop").step("open").end("done").signal("GO").signal("END").transition(ask);
    let spec = spec.on_signal("leave", "open", "END", "done");
    let engine = office(spec.build().unwrap()).await;
    let run = begun(&engine, "loop").await;
    for n in 1..=2 {
        run.signal(Signal::new("GO").with(&json!({"n": n}))).await.unwrap();
    }
    assert_eq!(run.signal(Signal::new("END")).await.unwrap(), Signalled::Buffered);
    for n in 1..=2 {
        engine.settle().await;
        let task = one(&engine).await;
        assert_eq!(task.input, json!(n));
        done(&engine, &task, json!(n * 10)).await;
        assert_eq!(context(&run).await["got"], json!(n * 10));
    }
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "GO", "GO", "END"]);
}

#[tokio::test]
async fn other_branches_continue_during_a_remote_task() {
    let engine = office(pair().build().unwrap()).await;
    let run = begun(&engine, "pair").await;
    let task = one(&engine).await;
    run.signal(Signal::new("NEXT")).await.unwrap();
    engine.settle().await;
    assert_eq!(states(&engine).await, [TaskState::Leased]);
    done(&engine, &task, json!(null)).await;
    assert_eq!(status(&run).await, Status::Completed);
}

const EACH: &str = "
steps:
  - id: each
    type: control.forEach
    items: { $expr: payload.words }
    parallel: 3
    saveAs: all
    body:
      - id: one
        type: action.call
        action: work
        input: { word: { $expr: item } }
        saveAs: said
    result: { $expr: vars.said }
  - id: done
    type: control.return
    value: { $expr: vars.all }
";

#[tokio::test]
async fn parallel_loop_items_are_concurrent_tasks() {
    let engine = kit::start(|engine| engine).await.unwrap();
    let schema = json!({"type": "object", "required": ["word"], "properties": {"word": {"type": "string"}}});
    engine.catalogue().put_action(RemoteAction::new("work").input(schema)).await.unwrap();
    engine.catalogue().publish("each", Publish::text(EACH).activate()).await.unwrap();
    let start = Start::new("each").input(&json!({"words": ["a", "b", "c", "d"]}));
    let run = engine.start(start).await.unwrap();
    let mut most = 0;
    for _ in 0..4 {
        engine.settle().await;
        let tasks = engine.tasks().poll(asks().max(10)).await.unwrap();
        most = most.max(tasks.len());
        for task in tasks.iter().rev() {
            let word = task.input["word"].as_str().unwrap();
            done(&engine, task, json!(word.to_uppercase())).await;
        }
    }
    assert_eq!(run.result().await.unwrap(), json!(["A", "B", "C", "D"]));
    assert_eq!(most, 3);
}

struct Known;

impl Secrets for Known {
    fn secret(&self, _: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
        let found = (name == "KEY").then(|| "hunter2-hunter2".to_owned());
        Box::pin(async move { Ok(found) })
    }
}

#[tokio::test]
async fn secret_reaches_the_worker_and_is_never_stored() {
    let action = |input| ActionSpec { input, ..saved("work", "got") };
    let go = Transition::new("work", "todo", "done").action_with(action(json!({"key": {"$secret": "KEY"}})));
    let spec = Spec::new("job").step("todo").end("done").transition(go);
    let engine = office_with(spec.build().unwrap(), |engine| engine.secrets(Known)).await;
    let takes = |fields: &[&str]| RemoteAction::new("work").secret_fields(fields.iter().copied());
    engine.catalogue().put_action(takes(&["", "/key"])).await.unwrap();
    let run = begun(&engine, "job").await;
    let task = one(&engine).await;
    assert_eq!(task.input, json!({"key": "hunter2-hunter2"}));
    let note = Some(json!({"using": "hunter2-hunter2"}));
    engine.tasks().heartbeat(task.id, task.fence, Duration::from_secs(60), note).await.unwrap();
    let view = run.view().await.unwrap();
    let ledger = serde_json::to_string(&view.ledger).unwrap();
    assert!(ledger.contains("***") && !ledger.contains("hunter2"), "{ledger}");
    done(&engine, &task, json!({"echo": "with hunter2-hunter2."})).await;
    assert_eq!(context(&run).await["got"], json!({"echo": "with ***."}));
    let again = engine.tasks().complete(task.id, task.fence, json!({"echo": "with hunter2-hunter2."})).await;
    assert!(!again.unwrap().is_new);
    let query = HistoryQuery { run: run.id(), from: 0, with_state: true, limit: 100 };
    for row in engine.store().history(engine.scope(), query).await.unwrap().items {
        let kept = format!("{:?} {:?}", row.entry, row.state);
        assert!(!kept.contains("hunter2"), "{kept}");
    }
    // A missing secret fails the action, and no worker gets a task.
    let go = Transition::new("work", "todo", "done").action_with(action(json!({"$secret": "NONE"})));
    let spec = Spec::new("lost").step("todo").end("done").transition(go);
    engine.register(spec.build().unwrap()).unwrap();
    let run = begun(&engine, "lost").await;
    none(&engine).await;
    engine.settle().await;
    assert_eq!(error_code(&run).await.unwrap(), "secret");
    // A secret that the action does not take, or that does not match its schema, is not revealed in the error.
    for (action, code) in [
        (takes(&["/other"]), "secret"),
        (takes(&["/key"]).input(json!({"properties": {"key": {"enum": ["x"]}}})), "invalidInput"),
    ] {
        engine.catalogue().put_action(action).await.unwrap();
        let run = begun(&engine, "job").await;
        none(&engine).await;
        engine.settle().await;
        assert_eq!(error_code(&run).await.unwrap(), code);
        let view = run.view().await.unwrap();
        assert!(!serde_json::to_string(&view.ledger).unwrap().contains("hunter2"), "{:?}", view.ledger);
    }
}

/// A source whose only secret can be rotated.
#[derive(Clone)]
struct Rotating(std::sync::Arc<std::sync::Mutex<String>>);

impl Secrets for Rotating {
    fn secret(&self, _: TenantScope, _: &str) -> BoxFuture<Result<Option<String>, String>> {
        let secret = self.0.lock().unwrap().clone();
        Box::pin(async move { Ok(Some(secret)) })
    }
}

/// Regression: only the current value of a secret was redacted, although the worker may have got an earlier one.
#[tokio::test]
async fn secret_rotated_during_a_lease_is_redacted() {
    let source = Rotating(std::sync::Arc::new(std::sync::Mutex::new("old-canary".to_owned())));
    let input = ActionSpec { input: json!({"key": {"$secret": "KEY"}}), ..saved("work", "got") };
    let retry = Retry { attempts: 3, ..Retry::default() };
    let go = Transition::new("work", "todo", "done").action_with(input).retry(retry);
    let spec = Spec::new("job").step("todo").end("done").transition(go).build().unwrap();
    let rotated = source.clone();
    let engine = office_with(spec, |engine| engine.secrets(source)).await;
    engine.catalogue().put_action(RemoteAction::new("work").secret_fields(["/key"])).await.unwrap();
    let run = begun(&engine, "job").await;
    let task = one(&engine).await;
    assert_eq!(task.input, json!({"key": "old-canary"}));
    *rotated.0.lock().unwrap() = "new-canary".to_owned();
    let note = Some(json!("old-canary and new-canary"));
    engine.tasks().heartbeat(task.id, task.fence, Duration::from_secs(60), note).await.unwrap();
    let failure = Failure::new("no", "old-canary is wrong");
    engine.tasks().fail(task.id, task.fence, failure).await.unwrap();
    let ledger = serde_json::to_string(&run.view().await.unwrap().ledger).unwrap();
    assert!(ledger.contains("*** is wrong") && !ledger.contains("canary"), "{ledger}");
    engine.advance(SECOND).await;
    let task = one(&engine).await;
    assert_eq!(task.input, json!({"key": "new-canary"}));
    *rotated.0.lock().unwrap() = "newest".to_owned();
    done(&engine, &task, json!({"used": "new-canary", "now": "newest"})).await;
    assert_eq!(context(&run).await["got"], json!({"used": "***", "now": "***"}));
}

/// Regression: once a task was no longer queued, any worker could read its recorded result.
#[tokio::test]
async fn recorded_result_requires_the_action_permission() {
    let engine = office(job(|work| work)).await;
    begun(&engine, "job").await;
    let task = one(&engine).await;
    done(&engine, &task, json!(1)).await;
    let acting =
        |action: &str| engine.acting(Actor::granted("worker", Grants::default().worker(action))).tasks();
    assert!(!acting("work").complete(task.id, task.fence, json!(1)).await.unwrap().is_new);
    let failure = || Failure::new("no", "no");
    for refused in [
        acting("other").complete(task.id, task.fence, json!(1)).await,
        acting("other").fail(task.id, task.fence, failure()).await,
    ] {
        assert!(
            matches!(&refused, Err(EngineError::NotAWorker { action, .. }) if action == "work"),
            "{refused:?}"
        );
    }
    assert!(matches!(
        acting("work").fail(task.id, task.fence, failure()).await,
        Err(EngineError::KeyReused { .. })
    ));
}

#[tokio::test]
async fn worker_is_limited_to_tasks_of_its_actions() {
    let engine = office_with(job(|work| work), |engine| engine).await;
    let acting = |grants: Grants| engine.acting(Actor::granted("somebody", grants)).tasks();
    let run = begun(&engine, "job").await;
    let strangers = [Grants::from(Permission::ALL), Grants::default().worker("other"), Grants::default()];
    let denied =
        |error: EngineError| matches!(error, EngineError::NotAWorker { action, .. } if action == "work");
    for stranger in &strangers {
        assert!(denied(acting(stranger.clone()).poll(asks()).await.unwrap_err()));
    }
    let task = acting(Grants::default().worker("work")).poll(asks()).await.unwrap().remove(0);
    for stranger in &strangers {
        let (id, fence, tasks) = (task.id, task.fence, acting(stranger.clone()));
        let failure = Failure::new("no", "no");
        assert!(denied(tasks.complete(id, fence, json!(1)).await.unwrap_err()));
        assert!(denied(tasks.fail(id, fence, failure).await.unwrap_err()));
        assert!(denied(tasks.release(id, fence).await.unwrap_err()));
        assert!(denied(tasks.heartbeat(id, fence, Duration::from_secs(9), None).await.unwrap_err()));
    }
    acting(Grants::default().worker("*")).complete(task.id, task.fence, json!(1)).await.unwrap();
    engine.settle().await;
    assert_eq!(run.view().await.unwrap().status, Status::Completed);
}

#[tokio::test]
async fn one_of_many_concurrent_polls_gets_the_task() {
    let (store, clock) = ground().await;
    let one = TestEngine::start_on(store.clone(), clock.clone(), |engine| engine).await.unwrap();
    one.catalogue().put_action(RemoteAction::new("work")).await.unwrap();
    let two = TestEngine::start_on(store, clock, |engine| engine.workflow(job(|work| work))).await.unwrap();
    one.register(job(|work| work)).unwrap();
    for _ in 0..5 {
        let run = one.start(Start::new("job")).await.unwrap();
        settle(&[&one, &two]).await;
        let asked = (0..10).map(|number| {
            let engine = if number % 2 == 0 { one.engine().clone() } else { two.engine().clone() };
            tokio::spawn(async move { engine.tasks().poll(asks().max(3)).await.unwrap() })
        });
        let mut given = Vec::new();
        for asked in asked.collect::<Vec<_>>() {
            given.extend(soon(asked).await.unwrap());
        }
        assert_eq!(given.len(), 1, "{given:?}");
        two.tasks().complete(given[0].id, given[0].fence, json!(null)).await.unwrap();
        settle(&[&one, &two]).await;
        assert_eq!(status(&run).await, Status::Completed);
    }
}

#[tokio::test]
async fn long_poll_returns_when_a_task_is_queued() {
    let engine = office(job(|work| work)).await;
    let waits = |engine: Engine| {
        tokio::spawn(async move { engine.tasks().poll(asks().wait(3_600 * SECOND)).await.unwrap() })
    };
    let (first, second) = (waits(engine.engine().clone()), waits(engine.engine().clone()));
    engine.settle().await;
    begun(&engine, "job").await;
    begun(&engine, "job").await;
    // The clock does not advance, so no worker has polled again.
    let (first, second) = (soon(first).await.unwrap(), soon(second).await.unwrap());
    assert_eq!((first.len(), second.len(), first[0].run == second[0].run), (1, 1, false));
    let stopped = engine.tasks().poll_until(asks().wait(3_600 * SECOND), std::future::ready(())).await;
    assert_eq!(soon(async { stopped.unwrap() }).await, []);
}

#[tokio::test]
async fn suspended_runs_tasks_are_not_leased_but_can_complete() {
    let engine = office(pair().build().unwrap()).await;
    let (waiting, leased) = (begun(&engine, "pair").await, begun(&engine, "pair").await);
    let given = engine.tasks().poll(asks().max(2)).await.unwrap();
    let other = given.iter().find(|task| task.run == waiting.id()).unwrap();
    engine.tasks().release(other.id, other.fence).await.unwrap();
    let kept = given.iter().find(|task| task.run == leased.id()).unwrap();
    for run in [&waiting, &leased] {
        engine.operate(run.id(), Command::Suspend, &Operator::default()).await.unwrap();
    }
    engine.settle().await;
    assert_eq!(states(&engine).await, [TaskState::Blocked, TaskState::Leased]);
    none(&engine).await;
    done(&engine, kept, json!(null)).await;
    assert_eq!((status(&leased).await, places(&leased).await.len()), (Status::Suspended, 2));
    engine.operate(waiting.id(), Command::Resume, &Operator::default()).await.unwrap();
    engine.settle().await;
    assert_eq!(one(&engine).await.run, waiting.id());
}

#[tokio::test]
async fn deleted_action_serves_only_tasks_already_queued() {
    let engine = office(job(|work| work)).await;
    let run = begun(&engine, "job").await;
    engine.catalogue().delete_action("work").await.unwrap();
    let new = begun(&engine, "job").await;
    let task = one(&engine).await;
    assert_eq!(task.run, run.id());
    done(&engine, &task, json!(null)).await;
    assert_eq!(status(&run).await, Status::Completed);
    none(&engine).await;
    let view = new.view().await.unwrap();
    assert_eq!((view.status, view.owner, view.ledger.attempts.len()), (Status::Running, None, 0));
    engine.catalogue().put_action(RemoteAction::new("work")).await.unwrap();
    engine.settle().await;
    assert_eq!(one(&engine).await.run, new.id());
    let missing = engine.catalogue().delete_action("wrok").await.unwrap_err();
    assert!(matches!(missing, CatalogueError::NotFound { .. }), "{missing}");
}

#[tokio::test]
async fn schema_mismatch_is_reported_at_publish_and_completion() {
    let engine = kit::start(|engine| engine).await.unwrap();
    let text =
        |input: &str| format!("steps: [{{ id: one, type: action.call, action: work, input: {input} }}]");
    let early = Publish::text(text("{}")).allow_unknown_actions();
    let published = engine.catalogue().publish("it", early).await.unwrap();
    assert_eq!(published.warnings[0].code, "unknownAction");
    let taken = engine.catalogue().put_action(RemoteAction::new("log")).await.unwrap_err();
    assert!(taken.to_string().contains("registered by this program"), "{taken}");
    let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
    let action = RemoteAction::new("work").input(schema.clone()).output(schema);
    engine.catalogue().put_action(action).await.unwrap();
    let refused = engine.catalogue().publish("it", Publish::text(text("{ n: many }"))).await.unwrap_err();
    assert!(refused.to_string().contains("must be integer, not text"), "{refused}");
    let good = text("{ n: { $expr: payload.n } }");
    let published = engine.catalogue().publish("it", Publish::text(good).activate()).await.unwrap();
    assert_eq!(published.warnings, []);

    let wrong = engine.start(Start::new("it").input(&json!({"n": "x"}))).await.unwrap();
    engine.settle().await;
    none(&engine).await;
    engine.settle().await;
    assert_eq!(error_code(&wrong).await.unwrap(), "invalidInput");
    let run = engine.start(Start::new("it").input(&json!({"n": 1}))).await.unwrap();
    engine.settle().await;
    let task = one(&engine).await;
    let finished = engine.tasks().complete(task.id, task.fence, json!({"n": "x"})).await.unwrap();
    assert_eq!(finished.value.error.unwrap().code, "invalidResult");
    engine.settle().await;
    assert_eq!(error_code(&run).await.unwrap(), "invalidResult");
}

#[tokio::test]
async fn tasks_are_isolated_by_tenant_and_permission() {
    let engine = office(job(|work| work)).await;
    begun(&engine, "job").await;
    let other = engine.for_tenant(other_tenant());
    none(&other).await;
    assert_eq!(other.tasks().list(None, 10, None).await.unwrap().items, []);
    assert_eq!(other.catalogue().actions().await.unwrap().items, []);
    let viewer = engine.acting(Actor::new("vera", [Permission::View]));
    assert!(matches!(viewer.tasks().poll(asks()).await, Err(EngineError::NotAWorker { .. })));
    assert_eq!(viewer.tasks().list(None, 10, None).await.unwrap().items.len(), 1);
    let task = one(&engine).await;
    let stranger = other.tasks().complete(task.id, task.fence, json!(null)).await;
    assert!(matches!(stranger, Err(EngineError::TaskGone { .. })), "{stranger:?}");
    for wrong in [asks().max(0), asks().max(11), asks().lease(SECOND / 2), Poll::new("", ["work"])] {
        assert!(matches!(engine.tasks().poll(wrong).await, Err(EngineError::Invalid(_))));
    }
    assert!(engine.tasks().poll(Poll::new("ann", Vec::<&str>::new())).await.is_err());
}

#[tokio::test]
async fn task_list_pages_through_all_actions() {
    let engine = kit::start(|engine| engine).await.unwrap();
    for name in ["work", "work2", "alpha"] {
        engine.catalogue().put_action(RemoteAction::new(name)).await.unwrap();
        let go = Transition::new("go", "todo", "done").action(name);
        let spec = Spec::new(format!("of-{name}")).step("todo").end("done").transition(go);
        engine.register(spec.build().unwrap()).unwrap();
        for _ in 0..3 {
            begun(&engine, &format!("of-{name}")).await;
        }
    }
    let given = engine.tasks().poll(asks()).await.unwrap();
    assert_eq!(given.len(), 1);
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = engine.tasks().list(None, 2, cursor).await.unwrap();
        assert!(page.items.len() <= 2);
        found.extend(page.items.iter().map(|row| (row.state, row.action.to_string(), row.id)));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let count = |state, action: &str| found.iter().filter(|row| row.0 == state && row.1 == action).count();
    assert_eq!(count(TaskState::Leased, "work"), 1);
    assert_eq!([count(TaskState::Waiting, "work"), count(TaskState::Waiting, "work2")], [2, 3]);
    let ids: std::collections::BTreeSet<_> = found.iter().map(|row| row.2).collect();
    assert_eq!((found.len(), ids.len(), count(TaskState::Waiting, "alpha")), (9, 9, 3));
    let page = engine.tasks().list(Some("work".into()), 10, None).await.unwrap();
    assert_eq!(page.items.len(), 3);
    assert!(engine.tasks().list(None, 10, Some("x".to_owned())).await.is_err());
}

#[tokio::test]
async fn migrated_run_queues_its_task_again() {
    let engine = office(job(|work| work)).await;
    let run = begun(&engine, "job").await;
    let first = one(&engine).await;
    let next = crate::world::job_spec(|work| work.timeout_ms(0)).version(2).build().unwrap();
    engine.register(next).unwrap();
    let mapping = stepwell::core::migrate::Mapping::default();
    engine.migrate(run.id(), 2, &mapping, &Operator::default(), false).await.unwrap();
    engine.settle().await;
    gone(&engine, &first).await;
    let second = one(&engine).await;
    assert_eq!((second.deadline, second.fence > first.fence), (None, true));
    done(&engine, &second, json!(null)).await;
    assert_eq!(status(&run).await, Status::Completed);
}
