//! Isolation of tenants inside one process, and protection of the engine's own workflows.

use std::time::Duration;

use serde_json::json;
use stepwell::core::{RunId, Spec};
use stepwell::doctor::FindingKind;
use stepwell::store::{Claim, ProcessId, Record, RecordQuery, Status};
use stepwell::testing::TestEngine;
use stepwell::{
    Actor, Command, Diagnose, Engine, EngineError, Event, Operator, Permission, Run, Schedule, Signal, Start,
};

use crate::kit::{self, after_s, other_tenant, soon, status};
use crate::world::{Gate, desk, job};

const HOUR: Duration = Duration::from_secs(3_600);

/// Regression: a run of tenant A waits, and a run of tenant B with the same id runs for long. Run drivers were keyed by
/// run id alone, so A's run was owned but had no driver until the process restarted.
#[tokio::test]
async fn same_run_id_in_two_tenants_is_two_runs() {
    let gate = Gate::new();
    let engine = kit::start(|engine| {
        let busy = Spec::new("busy").step("todo").end("done");
        let work = stepwell::core::spec::Transition::new("work", "todo", "done").action("wait");
        engine
            .workflow(desk(|work| work))
            .workflow(busy.transition(work).build().unwrap())
            .action("work", async |_: stepwell::Cx| Ok::<_, stepwell::ActionError>(json!("done")))
            .action("wait", gate.action())
    })
    .await
    .unwrap();
    let theirs = engine.for_tenant(other_tenant());
    let id = engine.start(Start::new("desk")).await.unwrap().id();
    engine.settle().await;
    let other = theirs.start(Start::new("busy").id(id)).await.unwrap();
    kit::eventually(async || gate.inside() == 1).await;
    let ours = engine.run(id);
    ours.signal(Signal::new("GO")).await.unwrap();
    assert_eq!(soon(ours.result()).await.unwrap(), json!("done"));
    assert_eq!((status(&ours).await, status(&other).await), (Status::Completed, Status::Running));
    gate.open(1);
    soon(other.result()).await.unwrap();
}

async fn process_of(engine: &Engine) -> ProcessId {
    let query = RecordQuery::Processes { limit: 10 };
    let known = engine.store().records(engine.scope(), query).await.unwrap().items;
    let process = |record| if let Record::Process { process, .. } = record { Some(process) } else { None };
    known.into_iter().find_map(process).unwrap()
}

/// A run that this process owns and does not drive.
pub(crate) async fn undriven(engine: &Engine, theirs: &Engine) -> Run {
    let run = theirs.start(Start::new("job").at(after_s(60))).await.unwrap();
    let by = Some(process_of(engine).await);
    let claim = Claim { by, now: after_s(60), limit: 1, definitions: None, expired: Vec::new() };
    let taken = theirs.store().claim(theirs.scope(), claim).await.unwrap();
    assert_eq!(taken.items.len(), 1);
    run
}

#[tokio::test]
async fn owned_run_without_driver_is_reported_and_recovered() {
    let engine = kit::start(|engine| {
        engine
            .workflow(job(|work| work))
            .action("work", async |_: stepwell::Cx| Ok::<_, stepwell::ActionError>(json!(1)))
            .with(|options| (options.lease_ms, options.maintenance_interval_ms) = (10_000, 600_000))
    })
    .await
    .unwrap();
    let theirs = engine.for_tenant(other_tenant());
    let run = undriven(&engine, &theirs).await;
    engine.advance(Duration::from_secs(5)).await;
    assert!(theirs.diagnose(&Diagnose::default()).await.unwrap().is_healthy(), "its driver may start soon");
    engine.advance(Duration::from_secs(120)).await;
    assert_eq!(status(&run).await, Status::Running);
    let found = theirs.diagnose(&Diagnose::default()).await.unwrap();
    let finding = found.findings.iter().find(|finding| finding.kind == FindingKind::RunsUndriven).unwrap();
    assert_eq!((finding.count, finding.examples[0].run), (1, Some(run.id())));
    assert!(!found.is_healthy());
    engine.advance(Duration::from_secs(600)).await;
    assert_eq!(status(&run).await, Status::Completed);
    assert!(theirs.diagnose(&Diagnose::default()).await.unwrap().is_healthy());
}

/// Regression: after a lost answer a process takes a new name. A run that was stuck under the old name was neither
/// found nor released while another run under that name was driven.
#[tokio::test]
async fn undriven_run_under_a_retired_name_is_released() {
    let (store, clock) = kit::ground().await;
    let (store, gate) = (kit::Watched::new(store), Gate::new());
    let engine = TestEngine::start_on(store.clone(), clock, |engine| {
        let wait = stepwell::core::spec::Transition::new("wait", "todo", "done").action("wait").timeout_ms(0);
        engine
            .workflow(job(|work| work))
            .workflow(Spec::new("long").step("todo").end("done").transition(wait).build().unwrap())
            .action("work", async |_: stepwell::Cx| Ok::<_, stepwell::ActionError>(json!(1)))
            .action("wait", gate.action())
            .with(|options| (options.lease_ms, options.maintenance_interval_ms) = (10_000, 600_000))
    });
    let engine = engine.await.unwrap();
    let theirs = engine.for_tenant(other_tenant());
    let long = engine.start(Start::new("long")).await.unwrap();
    kit::eventually(async || gate.inside() == 1).await;
    let stuck = undriven(&engine, &theirs).await;
    // The caller goes away before its commit is answered, so the process may own a run without knowing it.
    store.rule(|_| kit::Fate::Hangs);
    let call = tokio::time::timeout(Duration::from_millis(200), engine.start(Start::new("job")));
    assert!(call.await.is_err(), "there was an answer");
    store.rule(|_| kit::Fate::Arrives);
    engine.advance(Duration::from_secs(120)).await;
    let query = RecordQuery::Processes { limit: 10 };
    let names = engine.store().records(engine.scope(), query).await.unwrap().items;
    assert_eq!((names.len(), gate.inside()), (2, 1), "the old name is still in use");
    assert_eq!(status(&stuck).await, Status::Running);
    let found = theirs.diagnose(&Diagnose::default()).await.unwrap();
    let finding = found.findings.iter().find(|finding| finding.kind == FindingKind::RunsUndriven).unwrap();
    assert_eq!((finding.count, finding.examples[0].run), (1, Some(stuck.id())));
    engine.advance(Duration::from_secs(600)).await;
    assert_eq!((status(&stuck).await, status(&long).await), (Status::Completed, Status::Running));
    assert_eq!(stuck.view().await.unwrap().ledger.crashes.len(), 0, "no process has crashed");
    gate.open(1);
    soon(long.result()).await.unwrap();
}

/// Regression: maintenance released a run while the answer to the commit that started it was on its way. With the
/// answer this process ran the action without owning the run.
#[tokio::test]
async fn run_with_a_late_answer_is_not_released() {
    let (store, clock) = kit::ground().await;
    let store = kit::Watched::new(store);
    let gate = Gate::new();
    let engine = TestEngine::start_on(store.clone(), clock, |engine| {
        engine
            .workflow(job(|work| work))
            .action("work", gate.action())
            .with(|options| (options.lease_ms, options.maintenance_interval_ms) = (10_000, 600_000))
    });
    let engine = engine.await.unwrap();
    store.rule(|commit| if commit.create.is_empty() { kit::Fate::Arrives } else { kit::Fate::AnswerLate });
    let starting = tokio::spawn({
        let engine = engine.engine().clone();
        async move { engine.start(Start::new("job")).await.unwrap() }
    });
    engine.advance(Duration::from_secs(2_000)).await;
    assert!(engine.maintenance().rounds > 1, "maintenance waited for the answer without end");
    assert_eq!(gate.began(), 0, "the run was released and claimed");
    store.answer_late();
    let run = soon(starting).await.unwrap();
    kit::eventually(async || gate.inside() == 1).await;
    gate.open(1);
    soon(run.result()).await.unwrap();
    assert_eq!(gate.began(), 1, "the action ran twice");
}

fn is_reserved<T: std::fmt::Debug>(refused: Result<T, EngineError>) {
    match refused {
        Err(EngineError::Reserved { .. }) => {}
        other => panic!("it is not refused: {other:?}"),
    }
}

/// An actor with the permissions `Manage`, `View` and `Admin`.
fn manager(engine: &TestEngine) -> Engine {
    engine.acting(Actor::new("manager", [Permission::Manage, Permission::View, Permission::Admin]))
}

async fn own_runs(engine: &TestEngine) -> (RunId, RunId) {
    let schedule = engine.put_schedule(Schedule::new("nightly", "0 3 * * *", "job")).await.unwrap().run;
    let event = engine.emit(Event::new("PAID").source("shop").id("1")).await.unwrap().event;
    engine.settle().await;
    (schedule, event)
}

async fn with_a_job() -> TestEngine {
    let passing = |_: stepwell::Cx| async { Ok::<_, stepwell::ActionError>(json!(1)) };
    kit::start(|engine| engine.workflow(job(|work| work)).action("work", passing)).await.unwrap()
}

#[tokio::test]
async fn reserved_workflows_refuse_callers() {
    let engine = with_a_job().await;
    let (schedule, event) = own_runs(&engine).await;
    for acting in [manager(&engine), engine.engine().clone()] {
        for name in ["stepwell.schedule", "stepwell.event", "stepwell.whatever"] {
            is_reserved(acting.start(Start::new(name)).await);
            is_reserved(acting.start_once(Start::new(name).key("k").input(&json!({}))).await);
            is_reserved(acting.start_or_signal(Start::new(name).key("k"), Signal::new("PUT")).await);
            is_reserved(acting.start_commit(Start::new(name)).await);
            is_reserved(acting.run_stateless(Start::new(name)).await);
        }
        for run in [schedule, event] {
            is_reserved(acting.signal(run, Signal::new("OFF")).await);
            is_reserved(acting.run(run).signal(Signal::new("PUT").with(&json!({}))).await);
            is_reserved(acting.signal_commit(run, Signal::new("OFF")).await);
            let patch = Command::Patch { fields: json!({"fired": 9}) };
            let moved = Command::Move { activation: None, to: "x".into() };
            for command in
                [Command::Cancel, Command::Suspend, Command::Resume, Command::Dismiss, patch, moved]
            {
                is_reserved(acting.operate(run, command, &Operator::default()).await);
            }
            is_reserved(acting.fork(run, 1, &Operator::default()).await);
            is_reserved(acting.migrate(run, 1, &Default::default(), &Operator::default(), true).await);
        }
    }
    let put = engine.put_schedule(Schedule::new("own", "0 3 * * *", "stepwell.event")).await;
    assert!(put.unwrap_err().to_string().contains("reserved for the engine"));
    assert_eq!(engine.schedules().await.unwrap().len(), 1, "no refused call had an effect");
}

#[tokio::test]
async fn step_cannot_start_or_signal_reserved_workflows() {
    let engine = with_a_job().await;
    let (schedule, _) = own_runs(&engine).await;
    let text = format!(
        "
steps:
  - {{ id: begin, type: workflow.start, workflow: stepwell.schedule, input: {{}}, onError: continue }}
  - {{ id: off, type: action.call, action: workflow.signal, input: {{ run: {schedule}, signal: 'OFF' }}, onError: continue }}
  - {{ id: done, type: control.return, value: {{ $expr: '[vars.begin.error.code, vars.off.error.code]' }} }}
"
    );
    let document = stepwell::core::WorkflowSource::read(&text, Some("sly")).unwrap();
    engine.register(document.definition().clone()).unwrap();
    let run = engine.start(Start::new("sly")).await.unwrap();
    engine.settle().await;
    assert_eq!(run.result().await.unwrap(), json!(["cannotStart", "cannotSignal"]));
    let own = "steps: [{ id: fire, type: action.call, action: stepwell.schedule.fire }]";
    let document = stepwell::core::WorkflowSource::read(own, Some("own")).unwrap();
    let refused = engine.register(document.definition().clone()).unwrap_err().to_string();
    assert!(refused.contains("needs action `stepwell.schedule.fire`"), "{refused}");
    assert!(!engine.schedule("nightly").await.unwrap().unwrap().is_off);
}

#[tokio::test]
async fn caller_keys_never_collide_with_engine_keys() {
    let engine = with_a_job().await;
    for key in ["schedule:nightly", "stepwell.event:shop\u{1f}1"] {
        engine.start(Start::new("job").key(key)).await.unwrap();
    }
    engine.settle().await;
    assert!(engine.schedule("nightly").await.unwrap().is_none());
    let (schedule, _) = own_runs(&engine).await;
    assert_eq!(
        engine.put_schedule(Schedule::new("nightly", "0 4 * * *", "job")).await.unwrap().run,
        schedule
    );
    assert!(!engine.emit(Event::new("PAID").source("shop").id("1")).await.unwrap().is_new);
    let mut ids: Vec<_> = kit::runs_of(&engine, "job").await.into_iter().map(|run| run.run).collect();
    ids.dedup();
    assert_eq!(ids.len(), 2);
    engine.advance(HOUR * 24).await;
    assert_eq!(engine.schedule("nightly").await.unwrap().unwrap().fired, 1);
}

/// Regression: a program could register a definition under the name of one of the engine's own workflows.
#[tokio::test]
async fn reserved_names_cannot_be_registered() {
    let own = || Spec::new("stepwell.schedule").step("a").end("b").auto("ab", "a", "b").build().unwrap();
    let refused = kit::start(|engine| engine.workflow(own())).await;
    assert!(matches!(refused, Err(EngineError::Reserved { .. })));
    let engine = with_a_job().await;
    is_reserved(engine.register(own()));
    engine.put_schedule(Schedule::new("nightly", "0 3 * * *", "job")).await.unwrap();
    engine.advance(HOUR * 24).await;
    assert_eq!(engine.schedule("nightly").await.unwrap().unwrap().fired, 1);
}
