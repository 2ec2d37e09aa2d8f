//! Unreadable rows: each affects only its own object, is named, and can be repaired or removed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepwell::catalogue::Publish;
use stepwell::core::{Definition, RunId, WorkflowSource};
use stepwell::data::kv::KeyList;
use stepwell::doctor::{FindingKind, Remedy};
use stepwell::events::TriggerLog;
use stepwell::events::hook::HookCall;
use stepwell::store::{CellOp, CellWrite, Commit, CommitId, Precondition, Status, Store, Ttl, ValueType};
use stepwell::testing::TestEngine;
use stepwell::{
    CatalogueError, Diagnose, EngineError, Event, EventType, RemoteAction, Run, Schedule, Signal, Start,
};

use crate::kit::damaged::{Damaged, catalogue, cell};
use crate::kit::{ground, runs_of, soon, status};

const HOUR: Duration = Duration::from_secs(3_600);

/// A workflow with a trigger of each kind. It returns its input.
fn triggered(path: &str) -> String {
    format!(
        "
triggers:
  - {{ id: paid, type: event, eventName: PAID }}
  - {{ id: call, type: webhook, path: {path} }}
  - {{ id: hourly, type: schedule, cron: '0 * * * *' }}
steps: [{{ id: done, type: control.return, value: 1 }}]
"
    )
}

/// A workflow that waits until an order is paid.
const ORDER: &str = "
steps:
  - { id: paid, type: wait.event, eventName: PAID, correlation: { event: event.order, run: payload.order } }
  - { id: done, type: control.return, value: { $expr: vars.paid.cents } }
";
/// A workflow that waits for a signal before it waits for the same event.
const LATER: &str = "
steps:
  - { id: go, type: wait.signal, signal: GO }
  - { id: paid, type: wait.event, eventName: PAID, correlation: { event: event.order, run: payload.order } }
  - { id: done, type: control.return, value: { $expr: vars.paid.cents } }
";
/// A workflow that waits for a signal.
const BELL: &str = "
steps:
  - { id: go, type: wait.signal, signal: GO }
  - { id: done, type: control.return, value: 1 }
";

fn document(name: &str, text: &str) -> Definition {
    let read = WorkflowSource::read(text, Some(name)).unwrap_or_else(|problems| panic!("{problems}"));
    read.definition().clone()
}

/// An engine on a store that can be damaged, with these workflows.
async fn engine(workflows: &[(&str, &str)]) -> (TestEngine, Arc<Damaged>) {
    let (store, clock) = ground().await;
    let store = Damaged::new(store);
    let build = |mut builder: stepwell::Builder| {
        for (name, text) in workflows {
            builder = builder.workflow(document(name, text));
        }
        builder
    };
    (TestEngine::start_on(store.clone(), clock, build).await.unwrap(), store)
}

async fn publish(engine: &TestEngine, name: &str, text: &str) {
    engine.catalogue().publish(name, Publish::text(text).activate()).await.unwrap();
}

/// Writes a value that is JSON but has the wrong shape.
async fn misshape(engine: &TestEngine, owner: &str, key: &str) {
    let key = stepwell::store::CellKey {
        space: stepwell::store::Space::Workflow,
        owner: owner.to_owned(),
        key: key.to_owned(),
    };
    let (value, value_type, ttl) = (json!("garbled"), ValueType::Json, Ttl::Forever);
    let op = CellOp::Set { value, value_type, ttl };
    let mut commit = Commit::new(CommitId(stepwell::new_run_id().uuid()), engine.now());
    commit.cells.push(CellWrite { key, op, expect: Precondition::Anything, initial: None, by: None });
    engine.store().commit(engine.scope(), commit).await.unwrap();
}

fn is_inactive<T: std::fmt::Debug>(started: Result<T, EngineError>, why: &str) {
    match started {
        Err(error @ EngineError::Inactive { .. }) => assert!(error.to_string().contains(why), "{error}"),
        other => panic!("{other:?}"),
    }
}

/// The remedies of the unreadable rows whose key contains `key`, by a deep diagnosis.
async fn remedies(engine: &TestEngine, key: &str) -> Vec<Remedy> {
    let deep = Diagnose { deep: true, examples: 50, ..Diagnose::default() };
    let found = engine.diagnose(&deep).await.unwrap();
    let unread = found.findings.iter().filter(|finding| finding.kind == FindingKind::RowsUnreadable);
    let examples = unread.flat_map(|finding| &finding.examples);
    let named = examples.filter(|one| one.name.as_ref().is_some_and(|name| name.contains(key)));
    named.flat_map(|one| one.remedies.clone()).collect()
}

/// Regression: one unreadable definition stopped the events, webhooks and trigger schedules of its tenant, as soon as
/// no process had it in memory.
#[tokio::test]
async fn unreadable_definition_stops_no_other_trigger() {
    let (store, clock) = ground().await;
    let before = TestEngine::start_on(store.clone(), clock.clone(), |engine| engine).await.unwrap();
    publish(&before, "fine", &triggered("fine")).await;
    let rare = Publish::text(triggered("rare")).activate();
    let rare = before.catalogue().publish("rare", rare).await.unwrap().hash;
    before.settle().await;
    drop(before);
    let store = Damaged::new(store);
    store.rows().definitions.insert(rare);
    let engine = TestEngine::start_on(store.clone(), clock, |engine| engine).await.unwrap();

    let event = engine.emit(Event::new("PAID")).await.unwrap().event;
    engine.settle().await;
    assert!(engine.event(event).await.unwrap().unwrap().is_delivered);
    let call = HookCall { path: "fine", method: "POST", query: &[], headers: &[], body: b"" };
    assert_eq!(engine.hook(engine.scope(), call).await.unwrap().len(), 1);
    engine.settle().await;
    assert_eq!(runs_of(&engine, "fine").await.len(), 2);

    let page = engine.triggered().await.unwrap();
    let names: Vec<_> = page.items.iter().map(|definition| definition.name().as_str()).collect();
    assert_eq!((names, page.bad.len()), (vec!["fine"], 1));
    assert!(page.bad[0].key.starts_with("rare "), "{}", page.bad[0]);

    // A change of the catalogue plans the schedules again. Those of the unreadable workflow stay.
    publish(&engine, "new", &triggered("new")).await;
    let schedules = engine.schedules().await.unwrap();
    let on: Vec<_> =
        schedules.iter().filter(|one| !one.is_off).map(|one| one.schedule.name.as_str()).collect();
    assert_eq!(on, ["new/hourly", "rare/hourly", "fine/hourly"]);

    // Publishing the same text again gives a version that can be used.
    assert!(matches!(engine.start(Start::new("rare")).await, Err(EngineError::UnknownDefinition { .. })));
    let again =
        engine.catalogue().publish("rare", Publish::text(triggered("rare")).activate()).await.unwrap();
    assert_eq!((again.version, again.is_new), (2, true));
    assert_eq!(soon(engine.start(Start::new("rare")).await.unwrap().result()).await.unwrap(), 1);
}

async fn order(engine: &TestEngine, workflow: &str) -> Run {
    let run = engine.start(Start::new(workflow).input(&json!({"order": "o-1"}))).await.unwrap();
    engine.settle().await;
    run
}

async fn paid(engine: &TestEngine) -> RunId {
    let event = Event::new("PAID").with(&json!({"order": "o-1", "cents": 500}));
    let event = engine.emit(event).await.unwrap().event;
    engine.settle().await;
    event
}

/// Regression: the first wait of a group stood for all waits with its expression. If its detail was unreadable, none
/// of them got the event.
#[tokio::test]
async fn unreadable_wait_detail_hides_no_event() {
    let (engine, store) = engine(&[("order", ORDER)]).await;
    let (first, second) = (order(&engine, "order").await, order(&engine, "order").await);
    store.rows().details.insert(first.id());
    paid(&engine).await;
    assert_eq!(soon(second.result()).await.unwrap(), 500);
    assert_eq!(soon(first.result()).await.unwrap(), 500, "its state tells what it waits for");
}

#[tokio::test]
async fn unreadable_wait_row_hides_no_event() {
    let (engine, store) = engine(&[("order", ORDER)]).await;
    let (first, second) = (order(&engine, "order").await, order(&engine, "order").await);
    store.rows().waits.insert(first.id());
    store.rows().states.insert(first.id());
    let event = paid(&engine).await;
    assert_eq!(soon(second.result()).await.unwrap(), 500);
    assert!(engine.event(event).await.unwrap().unwrap().is_delivered);
}

/// Regression: an unreadable first row of the task queue ended the list.
#[tokio::test]
async fn unreadable_task_hides_no_other() {
    let (engine, store) = engine(&[]).await;
    let mut runs = Vec::new();
    for action in ["alpha", "beta"] {
        engine.catalogue().put_action(RemoteAction::new(action)).await.unwrap();
        let text = format!("steps: [{{ id: work, type: action.call, action: {action} }}]");
        engine.register(document(action, &text)).unwrap();
        runs.push(engine.start(Start::new(action)).await.unwrap().id());
        engine.settle().await;
    }
    store.rows().waits.insert(runs[0]);
    for _ in 0..2 {
        let page = engine.tasks().list(None, 10, None).await.unwrap();
        let listed: Vec<_> = page.items.iter().map(|task| task.id.run).collect();
        assert_eq!((listed, page.bad.len()), (vec![runs[1]], 1));
        assert_eq!(page.bad[0].run, Some(runs[0]));
        // Then only its detail is unreadable.
        store.rows().waits.clear();
        store.rows().details.insert(runs[0]);
    }
}

/// Regression: the counter of catalogue changes stopped every start and every publication of its tenant.
#[tokio::test]
async fn unreadable_change_counter_is_rebuilt() {
    let (engine, store) = engine(&[]).await;
    publish(&engine, "bell", BELL).await;
    store.rows().cells.insert(catalogue("changes"));
    engine.advance(HOUR).await;
    engine.start(Start::new("bell")).await.unwrap();
    engine.maintain().await.unwrap();
    assert_eq!(remedies(&engine, "changes").await, [], "maintenance has rebuilt it");

    store.rows().cells.insert(catalogue("changes"));
    assert_eq!(remedies(&engine, "changes").await, [Remedy::RunMaintenance]);
    engine.start(Start::new("bell")).await.unwrap();
    publish(&engine, "other", BELL).await;
    engine.start(Start::new("other")).await.unwrap();
    assert_eq!(remedies(&engine, "changes").await, [], "a publication rebuilds it too");
}

#[tokio::test]
async fn other_process_sees_changes_without_their_counter() {
    let (store, clock) = ground().await;
    let store = Damaged::new(store);
    let one = TestEngine::start_on(store.clone(), clock.clone(), |engine| engine).await.unwrap();
    let two = TestEngine::start_on(store.clone(), clock, |engine| engine).await.unwrap();
    publish(&one, "bell", BELL).await;
    two.start(Start::new("bell")).await.unwrap();
    store.rows().cells.insert(catalogue("changes"));
    one.catalogue().archive("bell").await.unwrap();
    store.rows().cells.insert(catalogue("changes"));
    two.advance(Duration::from_secs(2)).await;
    is_inactive(two.start(Start::new("bell")).await, "archived");
}

#[tokio::test]
async fn unreadable_entry_is_rebuilt_by_activation() {
    for is_row in [true, false] {
        let (engine, store) = engine(&[]).await;
        for text in [BELL, "steps: [{ id: done, type: control.return, value: 2 }]"] {
            publish(&engine, "bell", text).await;
        }
        publish(&engine, "other", BELL).await;
        match is_row {
            true => drop(store.rows().cells.insert(catalogue("workflow/bell"))),
            false => misshape(&engine, "stepwell.catalogue", "workflow/bell").await,
        }
        // Any change reloads the catalogue.
        publish(&engine, "more", BELL).await;
        is_inactive(engine.start(Start::new("bell")).await, "activate a version to rebuild it");
        engine.start(Start::new("other")).await.unwrap();
        let listed = engine.catalogue().workflows(KeyList::default()).await.unwrap();
        assert_eq!((listed.items.len(), listed.bad.len()), (2, 1));
        let advice = remedies(&engine, "workflow%2Fbell").await[0].advice();
        assert!(advice.contains("`stepwell workflow activate bell VERSION`"), "{advice}");

        assert_eq!(engine.catalogue().activate("bell", 1).await.unwrap().active, Some(1));
        assert_eq!(remedies(&engine, "workflow%2Fbell").await, []);
        let bell = engine.catalogue().workflow("bell").await.unwrap();
        assert_eq!((bell.versions, bell.newest, bell.active), (2, Some(2), Some(1)));
        let run = engine.start(Start::new("bell")).await.unwrap();
        engine.settle().await;
        assert_eq!(status(&run).await, Status::Waiting);
        let third = engine.catalogue().publish("bell", Publish::text(BELL)).await.unwrap();
        assert_eq!(third.version, 3, "the numbers continue");
    }
}

#[tokio::test]
async fn unreadable_version_record_is_rebuilt_by_activation() {
    let (engine, store) = engine(&[]).await;
    publish(&engine, "bell", BELL).await;
    publish(&engine, "bell", "steps: [{ id: done, type: control.return, value: 2 }]").await;
    store.rows().cells.insert(catalogue("version/bell/0000000001"));
    assert_eq!(soon(engine.start(Start::new("bell")).await.unwrap().result()).await.unwrap(), 2);
    let versions = engine.catalogue().versions("bell", None, None).await.unwrap();
    assert_eq!((versions.items.len(), versions.bad.len()), (1, 1));
    engine.catalogue().activate("bell", 1).await.unwrap();
    let versions = engine.catalogue().versions("bell", None, None).await.unwrap();
    assert_eq!((versions.items.len(), versions.bad.len()), (2, 0));
    let run = engine.start(Start::new("bell")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Waiting);
}

#[tokio::test]
async fn unreadable_draft_and_action_can_be_deleted() {
    let (engine, store) = engine(&[]).await;
    let catalogue_of = engine.catalogue();
    catalogue_of.put_draft("bell", BELL, 0).await.unwrap();
    catalogue_of.put_action(RemoteAction::new("work")).await.unwrap();
    catalogue_of.put_action(RemoteAction::new("play")).await.unwrap();
    for key in ["draft/bell", "workflow/bell", "action/work"] {
        store.rows().cells.insert(catalogue(key));
    }
    catalogue_of.put_action(RemoteAction::new("more")).await.unwrap();
    let actions = catalogue_of.actions().await.unwrap();
    assert_eq!((actions.items.len(), actions.bad.len()), (2, 1));
    assert_eq!(remedies(&engine, "stepwell.catalogue").await.len(), 3);
    // The error for a wrong revision names the right one.
    let Err(CatalogueError::Conflict { revision, .. }) = catalogue_of.delete_draft("bell", 9).await else {
        panic!("the revision is not checked")
    };
    catalogue_of.delete_draft("bell", revision).await.unwrap();
    catalogue_of.delete_action("work").await.unwrap();
    assert_eq!(remedies(&engine, "stepwell.catalogue").await, []);
    catalogue_of.put_draft("bell", BELL, 0).await.unwrap();
}

#[tokio::test]
async fn unreadable_event_type_refuses_only_its_events() {
    for is_row in [true, false] {
        let (engine, store) = engine(&[("order", ORDER)]).await;
        engine.put_event_type(EventType::new("PAID").about("paid")).await.unwrap();
        let waits = order(&engine, "order").await;
        match is_row {
            true => drop(store.rows().cells.insert(cell("stepwell.event", "type/PAID"))),
            false => misshape(&engine, "stepwell.event", "type/PAID").await,
        }
        engine.advance(Duration::from_secs(2)).await;
        let event = Event::new("PAID").with(&json!({"order": "o-1", "cents": 500})).id("1");
        let refused = engine.emit(event.clone()).await.unwrap_err();
        assert!(matches!(refused, EngineError::Store(stepwell::store::StoreError::Bad(_))), "{refused}");
        assert!(engine.emit(Event::new("SENT")).await.is_ok());
        let types = engine.event_types(10, None).await.unwrap();
        assert_eq!((types.items.len(), types.bad.len()), (0, 1));
        assert!(remedies(&engine, "type%2FPAID").await[0].advice().contains("event delete-type PAID"));

        assert!(engine.remove_event_type("PAID").await.unwrap());
        assert!(engine.emit(event).await.unwrap().is_new, "the refused event was not recorded");
        engine.settle().await;
        assert_eq!(soon(waits.result()).await.unwrap(), 500);
    }
}

#[tokio::test]
async fn unreadable_expression_list_loses_no_event() {
    for is_row in [true, false] {
        let (engine, store) = engine(&[("order", ORDER), ("later", LATER)]).await;
        let known = order(&engine, "order").await;
        let late = order(&engine, "later").await;
        let garble = async || match is_row {
            true => drop(store.rows().cells.insert(cell("stepwell.event", "asks/PAID"))),
            false => misshape(&engine, "stepwell.event", "asks/PAID").await,
        };
        // The first event has a column for the expression, the second has none.
        paid(&engine).await;
        assert_eq!(soon(known.result()).await.unwrap(), 500);
        garble().await;
        engine.advance(Duration::from_secs(2)).await;
        assert_eq!(remedies(&engine, "asks%2FPAID").await, [Remedy::RunMaintenance]);
        let more = Event::new("PAID").with(&json!({"order": "o-2", "cents": 7}));
        engine.emit(more).await.unwrap();
        let other = Start::new("later").input(&json!({"order": "o-2"}));
        let other = engine.start(other).await.unwrap();
        engine.settle().await;
        for run in [&late, &other] {
            run.signal(Signal::new("GO")).await.unwrap();
        }
        engine.settle().await;
        assert_eq!(soon(late.result()).await.unwrap(), 500, "an event from before the damage");
        assert_eq!(soon(other.result()).await.unwrap(), 7, "an event accepted meanwhile");
        assert_eq!(remedies(&engine, "asks%2FPAID").await, [], "the wait has rebuilt the list");

        garble().await;
        engine.maintain().await.unwrap();
        assert_eq!(remedies(&engine, "asks%2FPAID").await, [], "maintenance rebuilds it too");
    }
}

/// Regression: one unreadable event made the log of a trigger an error.
#[tokio::test]
async fn unreadable_event_is_skipped_in_the_trigger_log() {
    let (engine, store) = engine(&[("fine", &triggered("fine"))]).await;
    let (bad, good) = (paid(&engine).await, paid(&engine).await);
    store.rows().states.insert(bad);
    let query = TriggerLog { limit: 10, ..TriggerLog::default() };
    let page = engine.trigger_log("fine", "paid", query).await.unwrap();
    assert_eq!(page.items.iter().map(|entry| entry.event).collect::<Vec<_>>(), [good]);
    assert_eq!((page.bad.len(), page.bad[0].run), (1, Some(bad)));
    store.rows().cells.insert(
        stepwell::store::CellKey {
            space: stepwell::store::Space::Execution,
            owner: good.to_string(),
            key: "duplicates".to_owned(),
        }
        .address(),
    );
    assert_eq!(engine.event(good).await.unwrap().unwrap().duplicates, 0);
}

/// Regression: putting and deleting an unreadable schedule failed, so it could not be replaced.
#[tokio::test]
async fn unreadable_schedule_can_be_replaced_and_deleted() {
    let (engine, store) = engine(&[("bell", BELL)]).await;
    let nightly = || Schedule::new("nightly", "0 3 * * *", "bell");
    let first = engine.put_schedule(nightly()).await.unwrap();
    store.rows().states.insert(first.run);
    assert!(matches!(engine.schedule("nightly").await, Err(EngineError::Unreadable { .. })));
    let second = engine.put_schedule(nightly()).await.unwrap();
    assert_ne!(second.run, first.run);
    engine.advance(24 * HOUR).await;
    assert_eq!(engine.schedule("nightly").await.unwrap().unwrap().fired, 1);
    assert!(matches!(engine.run(first.run).view().await, Err(EngineError::NoRun(_))));

    store.rows().states.insert(second.run);
    engine.remove_schedule("nightly").await.unwrap();
    assert!(engine.schedule("nightly").await.unwrap().is_none());
    assert!(matches!(engine.remove_schedule("nightly").await, Err(EngineError::NoSchedule(_))));
    assert_eq!(engine.schedules().await.unwrap(), []);
}

/// Regression: a schedule that was deleted while schedules were listed made the list an error.
#[tokio::test]
async fn schedule_deleted_meanwhile_is_left_out_of_the_list() {
    let (engine, store) = engine(&[("bell", BELL)]).await;
    let gone = engine.put_schedule(Schedule::new("gone", "0 3 * * *", "bell")).await.unwrap();
    engine.put_schedule(Schedule::new("stays", "0 3 * * *", "bell")).await.unwrap();
    store.rows().gone.insert(gone.run);
    let page = engine.schedules_page(10, None).await.unwrap();
    let names: Vec<_> = page.items.iter().map(|one| one.schedule.name.as_str()).collect();
    assert_eq!((names, page.bad), (vec!["stays"], vec![]));
}

#[tokio::test]
async fn deep_diagnosis_reads_engine_records_and_shadow_columns() {
    let (engine, store) = engine(&[("order", ORDER)]).await;
    order(&engine, "order").await;
    let event = paid(&engine).await;
    for (owner, key) in [("stepwell.revoked", "flow:1"), ("stepwell.apikeys", "k"), ("stepwell.tenants", "t")]
    {
        misshape(&engine, owner, key).await;
        store.rows().cells.insert(cell(owner, key));
    }
    store.rows().shadows.insert(event);
    let advice =
        async |key: &str| remedies(&engine, key).await.iter().map(Remedy::advice).collect::<String>();
    assert!(advice("stepwell.revoked").await.contains("revoke"));
    assert!(advice("stepwell.apikeys").await.contains("stepwell apikey revoke k"));
    assert!(advice("stepwell.tenants").await.contains("stepwell tenant update t"));
    assert!(advice(&format!("{event}:name")).await.contains("stepwell maintenance heal"));
}
