//! What one tenant does is nothing to another, also inside one process; and what is the engine's own is nobody else's.

use std::time::Duration;

use serde_json::json;
use stepwell::core::{RunId, Spec};
use stepwell::doctor::Kind;
use stepwell::store::{Claim, ProcessId, Record, RecordQuery, Status};
use stepwell::testing::TestEngine;
use stepwell::{
    Actor, Command, Diagnose, Engine, EngineError, Event, Operator, Permission, Run, Schedule, Signal, Start,
};

use crate::kit::{self, after_s, other_tenant, soon, status};
use crate::world::{Gate, desk, job};

const HOUR: Duration = Duration::from_secs(3_600);

/// A run of tenant A waits; a run of tenant B has the same id and is worked on for long. A's run was owned and worked on by
/// nothing until the process was started again: what a process works on was known by the id of the run alone.
#[tokio::test]
async fn a_run_of_another_tenant_with_the_same_id_is_another_run() {
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

/// A run that is this process's and that nothing in it works on.
async fn undriven(engine: &Engine, theirs: &Engine) -> Run {
    let run = theirs.start(Start::new("job").at(after_s(60))).await.unwrap();
    let by = Some(process_of(engine).await);
    let claim = Claim { by, now: after_s(60), limit: 1, definitions: None, dead: Vec::new() };
    let taken = theirs.store().claim(theirs.scope(), claim).await.unwrap();
    assert_eq!(taken.items.len(), 1);
    run
}

#[tokio::test]
async fn a_run_that_a_process_owns_and_does_not_work_on_is_found_and_goes_on() {
    let engine = kit::start(|engine| {
        engine
            .workflow(job(|work| work))
            .action("work", async |_: stepwell::Cx| Ok::<_, stepwell::ActionError>(json!(1)))
            .with(|options| (options.lease_ms, options.upkeep_ms) = (10_000, 600_000))
    })
    .await
    .unwrap();
    let theirs = engine.for_tenant(other_tenant());
    let run = undriven(&engine, &theirs).await;
    engine.advance(Duration::from_secs(5)).await;
    assert!(theirs.diagnose(&Diagnose::default()).await.unwrap().is_healthy(), "it may be about to");
    engine.advance(Duration::from_secs(120)).await;
    assert_eq!(status(&run).await, Status::Running);
    let found = theirs.diagnose(&Diagnose::default()).await.unwrap();
    let finding = found.findings.iter().find(|finding| finding.kind == Kind::RunsUndriven).unwrap();
    assert_eq!((finding.count, finding.examples[0].run), (1, Some(run.id())));
    assert!(!found.is_healthy());
    engine.advance(Duration::from_secs(600)).await;
    assert_eq!(status(&run).await, Status::Completed);
    assert!(theirs.diagnose(&Diagnose::default()).await.unwrap().is_healthy());
}

fn is_reserved<T: std::fmt::Debug>(refused: Result<T, EngineError>) {
    match refused {
        Err(EngineError::Reserved { .. }) => {}
        other => panic!("it is not refused: {other:?}"),
    }
}

/// Whoever may start and signal runs, and no more.
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
async fn workflows_of_the_engine_are_started_and_moved_by_the_engine_alone() {
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
    assert!(put.unwrap_err().to_string().contains("belongs to the engine"));
    assert_eq!(engine.schedules().await.unwrap().len(), 1, "nothing has become of any of it");
}

#[tokio::test]
async fn a_step_cannot_start_or_signal_what_is_the_engines() {
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
    let document = stepwell::core::Document::read(&text, Some("sly")).unwrap();
    engine.register(document.definition().clone()).unwrap();
    let run = engine.start(Start::new("sly")).await.unwrap();
    engine.settle().await;
    assert_eq!(run.result().await.unwrap(), json!(["cannotStart", "cannotSignal"]));
    let own = "steps: [{ id: fire, type: action.call, action: stepwell.schedule.fire }]";
    let document = stepwell::core::Document::read(own, Some("own")).unwrap();
    let refused = engine.register(document.definition().clone()).unwrap_err().to_string();
    assert!(refused.contains("needs action `stepwell.schedule.fire`"), "{refused}");
    assert!(!engine.schedule("nightly").await.unwrap().unwrap().is_off);
}

#[tokio::test]
async fn a_key_of_a_caller_is_never_one_of_the_engines() {
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
