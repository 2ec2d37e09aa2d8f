//! Child workflows: they start with their transition, their ends are counted exactly once, and a tree is cancelled
//! whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use stepwell::core::spec::{ChildRule, Place, Transition, Wait};
use stepwell::core::{Definition, Name, RunId, Spec};
use stepwell::engine::Builder;
use stepwell::store::{CellKey, CellOp, CellWrite, Commit, Precondition, RunSummary, Space, Status};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Command, Cx, Operator, Run, RunError, Signal, Start};
use tokio::sync::Semaphore;

use crate::kit::{
    self, Fate, LEASE_MS, Watched, children_of, error_code, ground, history_actions, other_tenant, places,
    runs_of, settle, soon, start_killable, status, version,
};

/// A parcel is packed as its data says: automatically, by hand, or by a machine that breaks.
fn parcel() -> Definition {
    let way = |id: &str, to: &str, how: &str| {
        Transition::new(id, "ordered", to).when(format!("context.how = '{how}'"))
    };
    Spec::new("parcel")
        .step("ordered")
        .wait("table", "PACKED")
        .end_with("packed", json!({"number": {"$expr": "context.number"}}))
        .signal("PACKED")
        .transition(way("alone", "packed", "alone"))
        .transition(way("lay_out", "table", "by hand"))
        .transition(way("machine", "packed", "by machine").action("machine"))
        .auto("put", "table", "packed")
        .build()
        .unwrap()
}

/// An order waits for the parcels it is split into. Its result is the list of their ends.
fn order_with(wait: Wait) -> Spec {
    Spec::new("order")
        .step("open")
        .place("packing", Place::Wait(wait))
        .end_with("sent", json!({"ends": {"$expr": "event.children"}}))
        .transition(Transition::new("split", "open", "packing").action("split"))
        .auto("send", "packing", "sent")
}

fn order(rule: ChildRule) -> Definition {
    order_with(Wait { children: Some(rule), ..Wait::default() }).build().unwrap()
}

#[derive(Deserialize)]
struct Order {
    parcels: Vec<String>,
    #[serde(default)]
    patient: bool,
}

async fn split(cx: Cx) -> Result<(), ActionError> {
    let order: Order = cx.state()?;
    for (number, how) in order.parcels.iter().enumerate() {
        let start = Start::new("parcel").input(&json!({"number": number, "how": how}));
        cx.start_child(if order.patient { start.wait_on_failure() } else { start })?;
    }
    Ok(())
}

/// A machine that fails until it is repaired.
#[derive(Clone, Default)]
struct Machine(Arc<AtomicBool>);

impl Machine {
    fn mend(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn works(&self) -> impl Fn(Cx) -> std::future::Ready<Result<(), ActionError>> + Send + Sync + use<> {
        let mended = self.0.clone();
        move |_| {
            let broken = || ActionError::new("broken", "the machine is broken");
            std::future::ready(mended.load(Ordering::SeqCst).then_some(()).ok_or_else(broken))
        }
    }
}

fn shop(machine: &Machine, order: Definition) -> impl FnOnce(Builder) -> Builder + use<> {
    let machine = machine.works();
    move |builder| {
        builder.workflow(parcel()).workflow(order).action("split", split).action("machine", machine)
    }
}

async fn open(rule: ChildRule, parcels: &[&str]) -> (TestEngine, Run, Machine) {
    let machine = Machine::default();
    let engine = kit::start(shop(&machine, order(rule))).await.unwrap();
    let run = engine.start(Start::new("order").input(&json!({"parcels": parcels}))).await.unwrap();
    engine.settle().await;
    (engine, run, machine)
}

async fn pack(engine: &TestEngine, child: &RunSummary) {
    engine.signal(child.run, Signal::new("PACKED")).await.unwrap();
    engine.settle().await;
}

fn completed(child: usize) -> Value {
    json!({"child": child, "end": {"status": "completed", "output": {"number": child}}})
}

fn failed(child: usize) -> Value {
    let error = json!({"code": "broken", "message": "the machine is broken", "final": false});
    json!({"child": child, "end": {"status": "failed", "error": error}})
}

async fn retry(engine: &TestEngine, run: RunId) {
    engine.operate(run, Command::Retry, &Operator::named("ada")).await.unwrap();
    engine.settle().await;
}

#[tokio::test]
async fn results_of_all_children_reach_the_parent() {
    let (engine, run, _) = open(ChildRule::All, &["alone", "by hand", "alone"]).await;
    assert_eq!(status(&run).await, Status::Waiting);
    let children = children_of(&engine, run.id()).await;
    assert_eq!(children.iter().map(|child| child.status).collect::<Vec<_>>(), {
        [Status::Completed, Status::Waiting, Status::Completed]
    });
    pack(&engine, &children[1]).await;
    let result = soon(run.result()).await.unwrap();
    assert_eq!(result, json!({"ends": [completed(0), completed(1), completed(2)]}));
}

#[tokio::test]
async fn action_after_the_wait_sees_how_children_ended() {
    let note = stepwell::core::spec::ActionSpec {
        name: "note".into(),
        input: json!({"$expr": "event.children[1].end.output.number"}),
        save_as: Some("second".to_owned()),
        version: None,
    };
    let mut spec = order_with(Wait { children: Some(ChildRule::All), ..Wait::default() });
    spec.transitions[1].action = Some(note);
    let noted = |cx: Cx, number: i64| async move {
        assert_eq!(cx.payload()["children"].as_array().map(Vec::len), Some(2));
        Ok::<_, ActionError>(number)
    };
    let build = shop(&Machine::default(), spec.build().unwrap());
    let engine = kit::start(|builder| build(builder).action("note", noted)).await.unwrap();
    let run = engine.start(Start::new("order").input(&json!({"parcels": ["alone", "alone"]}))).await.unwrap();
    engine.settle().await;
    soon(run.result()).await.unwrap();
    assert_eq!(run.view().await.unwrap().snapshot.context()["second"], json!(1));
}

#[tokio::test]
async fn children_start_in_the_commit_of_their_transition() {
    let (engine, run, _) = open(ChildRule::All, &["by hand", "alone", "by machine"]).await;
    let history = crate::kit::history(&engine, run.id()).await;
    let (entry, commit) = &history[1];
    assert_eq!((entry.version, entry.action.as_str()), (1, "__auto:split"));
    let children = children_of(&engine, run.id()).await;
    assert_eq!(children.len(), 3);
    for (number, child) in children.iter().enumerate() {
        let parent = child.parent.clone().unwrap();
        assert_eq!((parent.run, parent.child), (run.id(), number as u32));
        assert_eq!(crate::kit::history(&engine, child.run).await[0].1, *commit);
    }
}

/// Starts children and then fails to commit in the way its data says.
async fn split_badly(cx: Cx) -> Result<(), ActionError> {
    split(cx.clone()).await?;
    match cx.state::<Value>()?["wrong"].as_str() {
        Some("action") => Err(ActionError::new("torn", "the list was torn")),
        Some("workflow") => cx.start_child(Start::new("letter")),
        Some("input") => cx.start_child(Start::new("parcel").input(&json!([1, 2]))),
        Some("commit") => cx.write(CellWrite {
            key: CellKey { space: Space::Kv, owner: "stock".to_owned(), key: "boxes".to_owned() },
            op: CellOp::Check,
            expect: Precondition::Exactly(7),
            initial: None,
            by: None,
        }),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn uncommitted_transition_starts_no_children() {
    for (wrong, code) in
        [("action", "torn"), ("workflow", "cannotStart"), ("input", "cannotStart"), ("commit", "conflict")]
    {
        let build = shop(&Machine::default(), order(ChildRule::All));
        let engine = kit::start(|builder| build(builder).action("split", split_badly)).await.unwrap();
        let input = json!({"parcels": ["alone", "by hand"], "wrong": wrong});
        let run = engine.start(Start::new("order").input(&input)).await.unwrap();
        engine.settle().await;
        assert_eq!(error_code(&run).await.as_deref(), Some(code));
        assert_eq!((status(&run).await, version(&run).await), (Status::Failed, 0));
        assert_eq!(runs_of(&engine, "parcel").await, [], "{wrong}");
    }
}

#[tokio::test]
async fn run_cancelled_during_its_action_starts_no_children() {
    let gate = Arc::new(Semaphore::new(0));
    let waits = {
        let gate = gate.clone();
        move |cx: Cx| {
            let gate = gate.clone();
            async move {
                split(cx).await?;
                gate.acquire().await.map(drop).map_err(ActionError::from)
            }
        }
    };
    let build = shop(&Machine::default(), order(ChildRule::All));
    let engine = kit::start(|builder| build(builder).action("split", waits)).await.unwrap();
    let run = engine.start(Start::new("order").input(&json!({"parcels": ["alone"]}))).await.unwrap();
    engine.settle().await;
    engine.cancel(run.id()).await.unwrap();
    gate.add_permits(1);
    engine.settle().await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Cancelled, 1));
    assert_eq!(runs_of(&engine, "parcel").await, []);
}

#[tokio::test]
async fn one_transition_starts_at_most_a_thousand_children() {
    let (engine, run, _) = open(ChildRule::All, &["by hand"; 1_001]).await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Failed, 0));
    let error = run.view().await.unwrap().ledger.stopped.unwrap().error;
    assert!(error.message.contains("at most 1000"), "{error}");
    assert_eq!(runs_of(&engine, "parcel").await, []);
    let (engine, run, _) = open(ChildRule::All, &["by hand"; 1_000]).await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Waiting, 1));
    assert_eq!(children_of(&engine, run.id()).await.len(), 1_000);
}

/// Each child starts in four places at once and waits in each of them.
#[tokio::test]
async fn thousand_children_with_several_places_each_can_start() {
    let mut spec = Spec::new("parcel").fork("ordered", ["a", "b", "c", "d"]).end("packed").signal("PACKED");
    for place in ["a", "b", "c", "d"] {
        spec = spec.wait(place, "PACKED").auto(format!("{place}_on"), place, "packed");
    }
    let build = |builder: Builder| {
        let builder = builder.workflow(spec.build().unwrap()).workflow(order(ChildRule::All));
        builder.action("split", split)
    };
    let engine = kit::start(build).await.unwrap();
    let parcels = vec!["by hand"; 1_000];
    let run = engine.start(Start::new("order").input(&json!({"parcels": parcels}))).await.unwrap();
    engine.settle().await;
    assert_eq!(run.view().await.unwrap().ledger.stopped, None);
    assert_eq!(children_of(&engine, run.id()).await.len(), 1_000);
}

#[tokio::test]
async fn wait_for_all_fails_with_the_first_failed_child() {
    let (engine, run, _) = open(ChildRule::All, &["by hand", "by machine", "by hand"]).await;
    assert_eq!(status(&run).await, Status::Failed);
    assert_eq!(error_code(&run).await.as_deref(), Some("childrenFailed"));
    assert_eq!(places(&run).await, [Name::from("packing")]);
    // The other children continue: the parent workflow decides what to do with them.
    let children = children_of(&engine, run.id()).await;
    assert_eq!(children.iter().map(|child| child.status).collect::<Vec<_>>(), {
        [Status::Waiting, Status::Failed, Status::Waiting]
    });
}

#[tokio::test]
async fn unsatisfiable_child_rule_leads_to_the_error_place() {
    let error_place = Some("talk".into());
    let spec = order_with(Wait { children: Some(ChildRule::N(2)), error_place, ..Wait::default() });
    let definition = spec
        .wait("talk", "AGREED")
        .end("settled")
        .signal("AGREED")
        .auto("agree", "talk", "settled")
        .build()
        .unwrap();
    let engine = kit::start(shop(&Machine::default(), definition)).await.unwrap();
    let parcels = json!({"parcels": ["by machine", "by hand", "by machine"]});
    let run = engine.start(Start::new("order").input(&parcels)).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Waiting, vec!["talk".into()]));
    let view = run.view().await.unwrap();
    assert_eq!(view.snapshot.activations()[0].locals["error"]["code"], json!("childrenFailed"));
    // The remaining child ends later and changes nothing.
    let before = version(&run).await;
    pack(&engine, &children_of(&engine, run.id()).await[1]).await;
    assert_eq!((version(&run).await, run.view().await.unwrap().buffered_signals), (before, 0));
}

#[tokio::test]
async fn wait_for_any_resolves_with_the_first_completed_child() {
    let (engine, run, _) = open(ChildRule::Any, &["by machine", "by hand", "by hand"]).await;
    assert_eq!(status(&run).await, Status::Waiting);
    let children = children_of(&engine, run.id()).await;
    pack(&engine, &children[2]).await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"ends": [failed(0), completed(2)]}));
    // A child of a completed parent continues.
    let (left, before) = (engine.run(children[1].run), version(&run).await);
    assert_eq!(status(&left).await, Status::Waiting);
    pack(&engine, &children[1]).await;
    assert_eq!(soon(left.result()).await.unwrap(), json!({"number": 1}));
    assert_eq!(version(&run).await, before);
}

#[tokio::test]
async fn wait_for_n_resolves_when_n_children_completed() {
    let (engine, run, _) = open(ChildRule::N(2), &["by machine", "by hand", "by hand", "by hand"]).await;
    let children = children_of(&engine, run.id()).await;
    pack(&engine, &children[3]).await;
    assert_eq!(status(&run).await, Status::Waiting);
    pack(&engine, &children[1]).await;
    let result = soon(run.result()).await.unwrap();
    assert_eq!(result, json!({"ends": [failed(0), completed(1), completed(3)]}));
}

#[tokio::test]
async fn wait_for_all_settled_resolves_when_every_child_ended() {
    let (engine, run, _) = open(ChildRule::AllSettled, &["by machine", "by hand", "by hand", "alone"]).await;
    let children = children_of(&engine, run.id()).await;
    engine.cancel(children[1].run).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Waiting);
    pack(&engine, &children[2]).await;
    let cancelled = json!({"child": 1, "end": {"status": "cancelled"}});
    let result = soon(run.result()).await.unwrap();
    assert_eq!(result, json!({"ends": [failed(0), cancelled, completed(2), completed(3)]}));
}

#[tokio::test]
async fn wait_for_all_of_zero_children_resolves_at_once() {
    let (_engine, run, _) = open(ChildRule::All, &[]).await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"ends": []}));
}

#[tokio::test]
async fn each_of_200_children_is_counted_exactly_once() {
    let (store, clock) = ground().await;
    let machine = Machine::default();
    let a = TestEngine::start_on(store.clone(), clock.clone(), shop(&machine, order(ChildRule::All)));
    let b = TestEngine::start_on(store, clock, shop(&machine, order(ChildRule::All)));
    let (a, b) = (a.await.unwrap(), b.await.unwrap());
    let parcels = ["alone", "by hand"].repeat(100);
    let run = a.start(Start::new("order").input(&json!({"parcels": parcels}))).await.unwrap();
    settle(&[&a, &b]).await;
    let children = children_of(&a, run.id()).await;
    assert_eq!(children.len(), 200);
    let manual = children.iter().filter(|child| child.status == Status::Waiting).enumerate();
    let told = manual.map(|(index, child)| {
        let engine = if index % 2 == 0 { &a } else { &b };
        engine.signal(child.run, Signal::new("PACKED"))
    });
    assert!(join_all(told).await.iter().all(Result::is_ok));
    settle(&[&a, &b]).await;
    let run = a.run(run.id());
    let ends: Vec<_> = (0..200).map(completed).collect();
    assert_eq!(soon(run.result()).await.unwrap(), json!({ "ends": ends }));
    let mut count = BTreeMap::<String, usize>::new();
    history_actions(&a, run.id()).await.into_iter().for_each(|word| *count.entry(word).or_default() += 1);
    let expected =
        [("__start", 1), ("__auto:split", 1), ("__child:packing", 199), ("__resolve_wait:packing", 1)];
    let expected = expected.into_iter().chain([("__auto:send", 1)]);
    assert_eq!(count, expected.map(|(word, count)| (word.to_owned(), count)).collect());
}

fn tells_a_child_s_end(commit: &Commit) -> bool {
    commit.send.iter().any(|send| send.message.topic == "child")
}

#[tokio::test]
async fn child_end_is_reported_once_if_its_answer_is_lost() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let mut lost = 0;
    watched.rule(move |commit| match tells_a_child_s_end(commit) {
        true if lost < 3 => {
            lost += 1;
            Fate::AnswerLost
        }
        _ => Fate::Arrives,
    });
    let build = shop(&Machine::default(), order(ChildRule::All));
    let engine = TestEngine::start_on(watched.clone(), clock, build).await.unwrap();
    let run = engine.start(Start::new("order").input(&json!({"parcels": vec!["alone"; 5]}))).await.unwrap();
    engine.settle().await;
    let mut ends = 0;
    for commit in watched.commits().iter().filter(|commit| tells_a_child_s_end(commit)) {
        let recorded = engine.store().outcome(engine.scope(), commit.reference()).await.unwrap();
        ends += usize::from(recorded.is_some());
    }
    assert_eq!(ends, 5, "each end is committed once");
    assert_eq!(soon(run.result()).await.unwrap()["ends"].as_array().map(Vec::len), Some(5));
    let told =
        history_actions(&engine, run.id()).await.iter().filter(|word| *word == "__child:packing").count();
    assert_eq!(told, 4);
}

#[tokio::test]
async fn children_are_recovered_after_their_process_crashes() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store.clone());
    // Every commit after the one that starts the children hangs.
    let mut split = false;
    watched.rule(move |commit| {
        let fate = if split { Fate::Hangs } else { Fate::Arrives };
        split |= commit.step.is_some() && commit.create.len() == 3;
        fate
    });
    let machine = Machine::default();
    let (a, tasks) = start_killable(watched, &clock, shop(&machine, order(ChildRule::All))).await;
    let run = a.start(Start::new("order").input(&json!({"parcels": vec!["alone"; 3]}))).await.unwrap();
    a.settle().await;
    tasks.kill().await;
    let (b, _tasks) = start_killable(store, &clock, shop(&machine, order(ChildRule::All))).await;
    b.advance(Duration::from_millis(2 * LEASE_MS)).await;
    let run = b.run(run.id());
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(children_of(&b, run.id()).await.len(), 3);
    assert_eq!(history_actions(&b, run.id()).await.len(), 1 + 1 + 3 + 1);
}

#[tokio::test]
async fn children_are_counted_once_across_a_crash() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store.clone());
    let machine = Machine::default();
    let (a, tasks) = start_killable(watched.clone(), &clock, shop(&machine, order(ChildRule::All))).await;
    let run = a.start(Start::new("order").input(&json!({"parcels": vec!["alone"; 100]}))).await.unwrap().id();
    // After the parent has counted thirty ends, every commit of this process hangs.
    let mut taken = 0;
    watched.rule(move |commit| {
        let ours = commit.step.as_ref().filter(|step| step.head.run == run);
        let fate = if taken > 30 && ours.is_some() { Fate::Hangs } else { Fate::Arrives };
        taken += ours.map_or(0, |step| step.take.len());
        fate
    });
    a.settle().await;
    let so_far = version(&a.run(run)).await;
    assert!((30..=60).contains(&so_far), "{so_far}");
    tasks.kill().await;
    let (b, _tasks) = start_killable(store, &clock, shop(&machine, order(ChildRule::All))).await;
    b.advance(Duration::from_millis(2 * LEASE_MS)).await;
    let run = b.run(run);
    let ends: Vec<_> = (0..100).map(completed).collect();
    assert_eq!(soon(run.result()).await.unwrap(), json!({ "ends": ends }));
    assert_eq!(version(&run).await, 1 + 100 + 1);
}

#[tokio::test]
async fn children_start_once_if_the_commit_answer_is_lost() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let mut first = true;
    watched.rule(move |commit| match commit.create.len() {
        3 if std::mem::take(&mut first) => Fate::AnswerLost,
        _ => Fate::Arrives,
    });
    let build = shop(&Machine::default(), order(ChildRule::All));
    let engine = TestEngine::start_on(watched, clock, build).await.unwrap();
    let run = engine.start(Start::new("order").input(&json!({"parcels": vec!["alone"; 3]}))).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, children_of(&engine, run.id()).await.len()), (Status::Completed, 3));
}

#[tokio::test]
async fn children_ending_after_their_wait_change_nothing() {
    let spec = order_with(Wait { children: Some(ChildRule::All), ..Wait::default() })
        .wait("talk", "AGREED")
        .signal("AGREED")
        .transition(Transition::new("too_late", "packing", "talk").after_ms(60_000))
        .auto("agree", "talk", "sent");
    let mut spec = spec;
    spec.places.insert("sent".into(), Place::End { output: None, error_place: None });
    let engine = kit::start(shop(&Machine::default(), spec.build().unwrap())).await.unwrap();
    let run =
        engine.start(Start::new("order").input(&json!({"parcels": ["by hand", "alone"]}))).await.unwrap();
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!((places(&run).await, version(&run).await), (vec!["talk".into()], 3));
    pack(&engine, &children_of(&engine, run.id()).await[0]).await;
    let view = run.view().await.unwrap();
    assert_eq!((view.snapshot.version(), view.buffered_signals, view.status), (3, 0, Status::Waiting));
}

/// An order with one parcel that the machine fails to pack and one packed by hand, on a watched store.
async fn half_broken() -> (TestEngine, Run, Machine, Arc<Watched>) {
    let (store, clock) = ground().await;
    let (watched, machine) = (Watched::new(store), Machine::default());
    let build = shop(&machine, order(ChildRule::AllSettled));
    let engine = TestEngine::start_on(watched.clone(), clock, build).await.unwrap();
    let parcels = json!({"parcels": ["by machine", "by hand"]});
    let run = engine.start(Start::new("order").input(&parcels)).await.unwrap();
    engine.settle().await;
    assert_eq!(watched.commits().iter().filter(|commit| tells_a_child_s_end(commit)).count(), 1);
    (engine, run, machine, watched)
}

#[tokio::test]
async fn failed_child_is_reported_once_despite_retries() {
    let (engine, run, machine, watched) = half_broken().await;
    let children = children_of(&engine, run.id()).await;
    let child = engine.run(children[0].run);
    assert_eq!((status(&child).await, version(&run).await), (Status::Failed, 2));
    retry(&engine, child.id()).await;
    assert_eq!(status(&child).await, Status::Failed);
    machine.mend();
    retry(&engine, child.id()).await;
    assert_eq!(soon(child.result()).await.unwrap(), json!({"number": 0}));
    assert!(!watched.commits().iter().any(tells_a_child_s_end));
    let view = run.view().await.unwrap();
    assert_eq!((view.snapshot.version(), view.buffered_signals, view.status), (2, 0, Status::Waiting));
    pack(&engine, &children[1]).await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"ends": [failed(0), completed(1)]}));
}

#[tokio::test]
async fn failed_child_is_not_reported_again_when_cancelled() {
    let (engine, run, _, watched) = half_broken().await;
    let children = children_of(&engine, run.id()).await;
    engine.cancel(children[0].run).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&engine.run(children[0].run)).await, Status::Cancelled);
    assert!(!watched.commits().iter().any(tells_a_child_s_end));
    let view = run.view().await.unwrap();
    assert_eq!((view.snapshot.version(), view.buffered_signals), (2, 0));
    pack(&engine, &children[1]).await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"ends": [failed(0), completed(1)]}));
}

async fn open_patiently(parcels: &[&str]) -> (TestEngine, Run, Machine) {
    let machine = Machine::default();
    let engine = kit::start(shop(&machine, order(ChildRule::AllSettled))).await.unwrap();
    let input = json!({"parcels": parcels, "patient": true});
    let run = engine.start(Start::new("order").input(&input)).await.unwrap();
    engine.settle().await;
    (engine, run, machine)
}

#[tokio::test]
async fn wait_on_failure_reports_only_the_completion() {
    let (engine, run, machine) = open_patiently(&["by machine"]).await;
    let child = children_of(&engine, run.id()).await.remove(0);
    assert_eq!((child.status, version(&run).await), (Status::Failed, 1));
    machine.mend();
    retry(&engine, child.run).await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"ends": [completed(0)]}));
}

#[tokio::test]
async fn wait_on_failure_reports_the_cancellation() {
    let (engine, run, _) = open_patiently(&["by machine"]).await;
    let child = children_of(&engine, run.id()).await.remove(0);
    assert_eq!((child.status, version(&run).await), (Status::Failed, 1));
    engine.cancel(child.run).await.unwrap();
    engine.settle().await;
    let result = soon(run.result()).await.unwrap();
    assert_eq!(result, json!({"ends": [{"child": 0, "end": {"status": "cancelled"}}]}));
}

/// Starts an order with two parcels that run the given workflow.
async fn with_parcel(parcel: Spec) -> (TestEngine, Run) {
    let build = |builder: Builder| {
        let builder = builder.workflow(parcel.build().unwrap()).workflow(order(ChildRule::AllSettled));
        builder.action("split", split)
    };
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("order").input(&json!({"parcels": ["alone", "alone"]}))).await.unwrap();
    engine.settle().await;
    (engine, run)
}

#[tokio::test]
async fn children_that_complete_at_start_are_reported() {
    let output = json!({"number": {"$expr": "context.number"}});
    let (_engine, run) = with_parcel(Spec::new("parcel").end_with("packed", output)).await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(soon(run.result()).await.unwrap(), json!({"ends": [completed(0), completed(1)]}));
}

#[tokio::test]
async fn children_that_fail_at_start_are_reported() {
    // It waits for any one of zero children, which can never be fulfilled.
    let hopeless = Place::Wait(Wait { children: Some(ChildRule::Any), ..Wait::default() });
    let spec = Spec::new("parcel").place("hopeless", hopeless).end("packed").auto("on", "hopeless", "packed");
    let (engine, run) = with_parcel(spec).await;
    let children = children_of(&engine, run.id()).await;
    assert!(children.iter().all(|child| child.status == Status::Failed));
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn suspended_parent_counts_children_after_resume() {
    let (engine, run, _) = open(ChildRule::All, &["by hand", "by hand"]).await;
    let ada = Operator::named("ada");
    engine.operate(run.id(), Command::Suspend, &ada).await.unwrap();
    for child in children_of(&engine, run.id()).await {
        pack(&engine, &child).await;
    }
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.snapshot.version(), view.buffered_signals), (Status::Suspended, 1, 2));
    engine.operate(run.id(), Command::Resume, &ada).await.unwrap();
    engine.settle().await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"ends": [completed(0), completed(1)]}));
}

#[tokio::test]
async fn failed_parent_counts_children_after_retry() {
    let spec = Spec::new("order")
        .fork("open", ["list", "till"])
        .step("list")
        .place("packing", Place::Wait(Wait { children: Some(ChildRule::All), ..Wait::default() }))
        .step("till")
        .join("both", stepwell::core::spec::Quorum::All, ["packing", "till"])
        .end("sent")
        .transition(Transition::new("split", "list", "packing").action("split"))
        .auto("packed", "packing", "both")
        .transition(Transition::new("pay", "till", "both").action("machine"))
        .auto("send", "both", "sent");
    let machine = Machine::default();
    let engine = kit::start(shop(&machine, spec.build().unwrap())).await.unwrap();
    let run =
        engine.start(Start::new("order").input(&json!({"parcels": ["by hand", "alone"]}))).await.unwrap();
    engine.settle().await;
    assert_eq!(error_code(&run).await.as_deref(), Some("broken"));
    pack(&engine, &children_of(&engine, run.id()).await[0]).await;
    assert_eq!(status(&run).await, Status::Failed);
    machine.mend();
    retry(&engine, run.id()).await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn two_waits_of_one_run_count_their_own_children() {
    let spec = Spec::new("order")
        .fork("open", ["left", "right"])
        .step("left")
        .step("right")
        .place("at_left", Place::Wait(Wait { children: Some(ChildRule::All), ..Wait::default() }))
        .place("at_right", Place::Wait(Wait { children: Some(ChildRule::Any), ..Wait::default() }))
        .join("both", stepwell::core::spec::Quorum::All, ["at_left", "at_right"])
        .end("sent")
        .transition(Transition::new("split_left", "left", "at_left").action("split"))
        .transition(Transition::new("split_right", "right", "at_right").action("split"))
        .auto("left_done", "at_left", "both")
        .auto("right_done", "at_right", "both")
        .auto("send", "both", "sent");
    let engine = kit::start(shop(&Machine::default(), spec.build().unwrap())).await.unwrap();
    let run =
        engine.start(Start::new("order").input(&json!({"parcels": ["by hand", "by hand"]}))).await.unwrap();
    engine.settle().await;
    let snapshot = run.view().await.unwrap().snapshot;
    let activation = |place: &str| snapshot.activations().iter().find(|a| a.place == *place).unwrap().id;
    let (left, right) = (activation("at_left"), activation("at_right"));
    let children = children_of(&engine, run.id()).await;
    let of = |wait: u64| children.iter().filter(move |c| c.parent.as_ref().unwrap().activation == wait);
    assert_eq!((of(left).count(), of(right).count()), (2, 2));
    pack(&engine, of(right).next().unwrap()).await;
    assert_eq!(places(&run).await, [Name::from("at_left"), Name::from("both")]);
    for child in of(left) {
        pack(&engine, child).await;
    }
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn unawaited_children_are_cancelled_with_their_parent() {
    let spec = Spec::new("order")
        .step("open")
        .wait("later", "CLOSE")
        .end("closed")
        .signal("CLOSE")
        .transition(Transition::new("split", "open", "later").action("split"))
        .auto("close", "later", "closed");
    let engine = kit::start(shop(&Machine::default(), spec.build().unwrap())).await.unwrap();
    let parcels = json!({"parcels": ["alone", "by hand"]});
    let run = engine.start(Start::new("order").input(&parcels)).await.unwrap();
    engine.settle().await;
    let children = children_of(&engine, run.id()).await;
    assert_eq!([children[0].status, children[1].status], [Status::Completed, Status::Waiting]);
    let view = run.view().await.unwrap();
    assert_eq!((view.snapshot.version(), view.buffered_signals), (1, 0));
    engine.cancel(run.id()).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&engine.run(children[1].run)).await, Status::Cancelled);
}

#[tokio::test]
async fn children_belong_to_their_parents_tenant() {
    let machine = Machine::default();
    let engine = kit::start(shop(&machine, order(ChildRule::All))).await.unwrap();
    let theirs = engine.for_tenant(other_tenant());
    let run =
        theirs.start(Start::new("order").input(&json!({"parcels": ["alone", "by hand"]}))).await.unwrap();
    engine.settle().await;
    assert_eq!(runs_of(&engine, "parcel").await, []);
    let children = children_of(&theirs, run.id()).await;
    assert_eq!(children.len(), 2);
    assert!(engine.signal(children[1].run, Signal::new("PACKED")).await.is_err());
    theirs.signal(children[1].run, Signal::new("PACKED")).await.unwrap();
    engine.settle().await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"ends": [completed(0), completed(1)]}));
}

/// Starts one child with the options in its data.
async fn split_specially(cx: Cx) -> Result<(), ActionError> {
    let order: Value = cx.state()?;
    let start = Start::new("parcel").input(&json!({"number": 0, "how": order["how"]}));
    match order["start"].as_str() {
        Some("soon over") => cx.start_child(start.within(Duration::from_secs(60))),
        Some("later") => cx.start_child(start.after(Duration::from_secs(60))),
        Some("keyed") => cx.start_child(start.key("the parcel")),
        Some("keyed on its own") => cx.start(start.key("the parcel")).map(drop),
        Some("once") => cx.start_once(start.key("the parcel")).await.map(drop),
        Some("with an id") => cx.start_child(start.id(RunId::nil())),
        other => panic!("{other:?}"),
    }
}

async fn special(how: &str, start: &str) -> (TestEngine, Run) {
    let build = shop(&Machine::default(), order(ChildRule::AllSettled));
    let engine = kit::start(|builder| build(builder).action("split", split_specially)).await.unwrap();
    let input = json!({"parcels": [], "how": how, "start": start});
    let run = engine.start(Start::new("order").input(&input)).await.unwrap();
    engine.settle().await;
    (engine, run)
}

#[tokio::test]
async fn child_past_its_deadline_is_reported_as_cancelled() {
    let (engine, run) = special("by hand", "soon over").await;
    engine.advance(Duration::from_secs(59)).await;
    assert_eq!(status(&run).await, Status::Waiting);
    engine.advance(Duration::from_secs(1)).await;
    let result = soon(run.result()).await.unwrap();
    assert_eq!(result, json!({"ends": [{"child": 0, "end": {"status": "cancelled"}}]}));
}

#[tokio::test]
async fn child_can_start_later() {
    let (engine, run) = special("alone", "later").await;
    assert_eq!(children_of(&engine, run.id()).await[0].status, Status::Pending);
    engine.advance(Duration::from_secs(60)).await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"ends": [completed(0)]}));
}

#[tokio::test]
async fn child_timer_fires_on_time() {
    let sleeper = Spec::new("parcel")
        .step("asleep")
        .end_with("packed", json!({"number": {"$expr": "context.number"}}))
        .transition(Transition::new("wake", "asleep", "packed").after_ms(60_000));
    let (engine, run) = with_parcel(sleeper).await;
    engine.advance(Duration::from_secs(59)).await;
    assert_eq!(status(&run).await, Status::Waiting);
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"ends": [completed(0), completed(1)]}));
}

#[tokio::test]
async fn child_gets_the_requested_id() {
    let (engine, run) = special("alone", "with an id").await;
    assert_eq!(children_of(&engine, run.id()).await[0].run, RunId::nil());
}

#[tokio::test]
async fn key_on_a_staged_start_is_refused() {
    for start in ["keyed", "keyed on its own"] {
        let (engine, run) = special("by hand", start).await;
        assert_eq!(error_code(&run).await.as_deref(), Some("invalidStart"), "{start}");
        assert_eq!(runs_of(&engine, "parcel").await, []);
    }
}

/// An engine with an order that starts a parcel under a key, twice in one action, and returns the ids it received.
async fn starting_once() -> TestEngine {
    let save = stepwell::core::spec::ActionSpec {
        name: "begin".into(),
        input: json!({"$expr": "context.how"}),
        save_as: Some("parcels".to_owned()),
        version: None,
    };
    let spec = Spec::new("order")
        .step("open")
        .end_with("sent", json!({"$expr": "context.parcels"}))
        .transition(Transition::new("begin", "open", "sent").action_with(save));
    let begin = |cx: Cx, how: String| async move {
        let start = Start::new("parcel").input(&json!({"number": 0, "how": how})).key("the parcel");
        let first = cx.start_once(start.clone()).await?;
        tokio::task::yield_now().await;
        Ok::<_, ActionError>([first, cx.start_once(start).await?])
    };
    let build = shop(&Machine::default(), spec.build().unwrap());
    kit::start(|builder| build(builder).action("begin", begin)).await.unwrap()
}

#[tokio::test]
async fn start_once_in_an_action_returns_the_run_of_its_key() {
    let engine = starting_once().await;
    let order = || engine.start(Start::new("order").input(&json!({"how": "by hand"})));
    // Two orders at once, and one later.
    let (first, second) = (order().await.unwrap(), order().await.unwrap());
    engine.settle().await;
    let third = order().await.unwrap();
    engine.settle().await;
    let parcels = runs_of(&engine, "parcel").await;
    let [parcel] = &parcels[..] else { panic!("{parcels:?}") };
    for run in [first, second, third] {
        assert_eq!(soon(run.result()).await.unwrap(), json!([parcel.run, parcel.run]));
    }
    // A start with the same key from outside finds the same run.
    let start = Start::new("parcel").input(&json!({"number": 0, "how": "by hand"})).key("the parcel");
    assert_eq!(engine.start(start).await.unwrap().id(), parcel.run);
}

#[tokio::test]
async fn start_once_in_an_action_refuses_a_reused_key() {
    let engine = starting_once().await;
    for (how, expected) in [("by hand", Status::Completed), ("alone", Status::Failed)] {
        let run = engine.start(Start::new("order").input(&json!({"how": how}))).await.unwrap();
        engine.settle().await;
        assert_eq!(status(&run).await, expected);
    }
    assert_eq!(runs_of(&engine, "parcel").await.len(), 1);
}

/// Three levels: a region has depots, a depot has vans, and a van waits for its tour.
fn levels() -> [Definition; 3] {
    let level = |name: &str| {
        Spec::new(name)
            .step("open")
            .place("below", Place::Wait(Wait { children: Some(ChildRule::AllSettled), ..Wait::default() }))
            .end("closed")
            .transition(Transition::new("begin", "open", "below").action(format!("begin_{name}")))
            .auto("close", "below", "closed")
            .build()
            .unwrap()
    };
    let van = Spec::new("van").wait("parked", "TOUR").end("back").signal("TOUR").auto("go", "parked", "back");
    [level("region"), level("depot"), van.build().unwrap()]
}

async fn begin_region(cx: Cx) -> Result<(), ActionError> {
    let state: Value = cx.state()?;
    let depots = 0..state["depots"].as_u64().unwrap_or_default();
    depots.into_iter().try_for_each(|_| cx.start_child(Start::new("depot").input(&state)))
}

async fn begin_depot(cx: Cx) -> Result<(), ActionError> {
    let vans = 0..cx.state::<Value>()?["vans"].as_u64().unwrap_or_default();
    vans.into_iter().try_for_each(|_| cx.start_child(Start::new("van")))
}

fn fleet(builder: Builder) -> Builder {
    let builder = levels().into_iter().fold(builder, Builder::workflow);
    builder.action("begin_region", begin_region).action("begin_depot", begin_depot)
}

#[tokio::test]
async fn cancelling_a_run_cancels_all_its_descendants() {
    let engine = kit::start(fleet).await.unwrap();
    let other = engine.start(Start::new("region").input(&json!({"depots": 1, "vans": 1}))).await.unwrap();
    let run = engine.start(Start::new("region").input(&json!({"depots": 3, "vans": 4}))).await.unwrap();
    engine.settle().await;
    engine.cancel(run.id()).await.unwrap();
    assert_eq!(status(&run).await, Status::Cancelled);
    engine.settle().await;
    let depots = children_of(&engine, run.id()).await;
    assert_eq!(depots.len(), 3);
    for depot in depots {
        assert_eq!(depot.status, Status::Cancelled);
        assert_eq!(history_actions(&engine, depot.run).await.last().unwrap(), "__parent:cancel");
        let vans = children_of(&engine, depot.run).await;
        assert_eq!(vans.len(), 4);
        assert!(vans.iter().all(|van| van.status == Status::Cancelled && van.version == 1));
    }
    assert!(matches!(soon(run.result()).await, Err(RunError::Cancelled(id)) if id == run.id()));
    // Only descendants of the cancelled run are cancelled.
    assert_eq!(status(&other).await, Status::Waiting);
    assert_eq!(runs_of(&engine, "van").await.iter().filter(|van| van.status == Status::Waiting).count(), 1);
}

#[tokio::test]
async fn cancelling_reaches_children_of_a_completed_child() {
    let depot = Spec::new("depot")
        .step("open")
        .end("closed")
        .transition(Transition::new("begin", "open", "closed").action("begin_depot"));
    let begin_both = |cx: Cx| async move {
        cx.start_child(Start::new("depot").input(&json!({"vans": 2})))?;
        cx.start_child(Start::new("van"))
    };
    let build = |builder: Builder| {
        let [region, _, van] = levels();
        let builder = builder.workflow(region).workflow(depot.build().unwrap()).workflow(van);
        builder.action("begin_region", begin_both).action("begin_depot", begin_depot)
    };
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("region")).await.unwrap();
    engine.settle().await;
    let depot = runs_of(&engine, "depot").await.remove(0);
    assert_eq!((depot.status, status(&run).await), (Status::Completed, Status::Waiting));
    let vans = children_of(&engine, depot.run).await;
    assert!(vans.iter().all(|van| van.status == Status::Waiting), "children of a completed parent continue");
    engine.cancel(run.id()).await.unwrap();
    engine.settle().await;
    let vans = runs_of(&engine, "van").await;
    assert_eq!(vans.len(), 3);
    assert!(vans.iter().all(|van| van.status == Status::Cancelled), "{vans:?}");
}

#[tokio::test]
async fn five_hundred_children_are_cancelled_with_their_parent() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let engine = TestEngine::start_on(watched.clone(), clock, fleet).await.unwrap();
    let run = engine.start(Start::new("depot").input(&json!({"vans": 500}))).await.unwrap();
    engine.settle().await;
    watched.commits();
    engine.cancel(run.id()).await.unwrap();
    engine.settle().await;
    let vans = children_of(&engine, run.id()).await;
    assert_eq!(vans.len(), 500);
    assert!(vans.iter().all(|van| van.status == Status::Cancelled && van.version == 1));
    // The parent notifies its children in batches, with one commit for each batch.
    let told: Vec<_> =
        watched.commits().iter().map(|commit| commit.send.len()).filter(|sent| *sent > 1).collect();
    assert!(told.len() > 1 && told.iter().all(|sent| *sent <= 200), "{told:?}");
    assert_eq!(told.iter().sum::<usize>(), 500);
    // The parent has no work left: no wake-up time and no owner.
    assert_eq!((run.view().await.unwrap().wake, run.view().await.unwrap().owner), (None, None));
}

#[tokio::test]
async fn cancellation_of_children_continues_after_a_crash() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store.clone());
    let (a, tasks) = start_killable(watched.clone(), &clock, fleet).await;
    let run = a.start(Start::new("depot").input(&json!({"vans": 500}))).await.unwrap();
    a.settle().await;
    // One batch arrives; every later commit of this process hangs.
    let mut told = false;
    watched.rule(move |commit| {
        let fate = if told { Fate::Hangs } else { Fate::Arrives };
        told |= commit.send.len() > 1;
        fate
    });
    a.cancel(run.id()).await.unwrap();
    a.settle().await;
    tasks.kill().await;
    drop(a);
    let (b, _tasks) = start_killable(store, &clock, fleet).await;
    assert!(runs_of(&b, "van").await.iter().any(|van| van.status == Status::Waiting));
    b.advance(Duration::from_millis(2 * LEASE_MS)).await;
    let vans = runs_of(&b, "van").await;
    assert_eq!(vans.len(), 500);
    assert!(vans.iter().all(|van| van.status == Status::Cancelled && van.version == 1));
}

#[tokio::test]
async fn cancellation_of_children_continues_after_engine_drop() {
    let (store, clock) = ground().await;
    let a = TestEngine::start_on(store.clone(), clock.clone(), fleet).await.unwrap();
    let run = a.start(Start::new("depot").input(&json!({"vans": 500}))).await.unwrap();
    a.settle().await;
    a.cancel(run.id()).await.unwrap();
    drop((a, run));
    let b = TestEngine::start_on(store, clock, fleet).await.unwrap();
    b.settle().await;
    let vans = runs_of(&b, "van").await;
    assert_eq!(vans.len(), 500);
    assert!(vans.iter().all(|van| van.status == Status::Cancelled && van.version == 1));
}

/// The children are waiting, failed, suspended, pending, or running an action.
#[tokio::test]
async fn children_in_any_status_are_cancelled_with_their_parent() {
    let started = |cx: Cx| async move {
        for how in ["by hand", "by machine", "by hand", "alone"] {
            let start = Start::new("parcel").input(&json!({"number": 0, "how": how}));
            let later = how == "alone";
            cx.start_child(if later { start.after(Duration::from_secs(60)) } else { start })?;
        }
        cx.start_child(Start::new("slow"))
    };
    let slow =
        Spec::new("slow").step("a").end("b").transition(Transition::new("ab", "a", "b").action("slow"));
    let build = |builder: Builder| {
        let builder = shop(&Machine::default(), order(ChildRule::AllSettled))(builder);
        let builder = builder.workflow(slow.build().unwrap()).action("split", started);
        builder.action("slow", |_: Cx| std::future::pending::<Result<(), ActionError>>())
    };
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("order")).await.unwrap();
    engine.settle().await;
    let children = children_of(&engine, run.id()).await;
    engine.operate(children[2].run, Command::Suspend, &Operator::default()).await.unwrap();
    let before: Vec<_> = children_of(&engine, run.id()).await.iter().map(|child| child.status).collect();
    let expected = [Status::Waiting, Status::Failed, Status::Suspended, Status::Pending, Status::Running];
    assert_eq!(before, expected);
    engine.cancel(run.id()).await.unwrap();
    engine.settle().await;
    let children = children_of(&engine, run.id()).await;
    assert!(children.iter().all(|child| child.status == Status::Cancelled), "{children:?}");
    assert!(children.iter().all(|child| child.owner.is_none() && child.wake.is_none()));
    // Children that reported a failure earlier send nothing more, because the parent has ended.
    assert_eq!(run.view().await.unwrap().buffered_signals, 0);
}
