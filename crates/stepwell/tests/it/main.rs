//! A turn: decided on what is stored, committed whole, decided again when the run has moved.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde_json::json;
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Event, Refusal, Rejected, RunId, Spec, Timestamp};
use stepwell::store::{
    CommitError, Fault, Faulty, HistoryQuery, MemoryStore, Record, RecordQuery, Status, Store, TenantScope,
    WaitQuery,
};
use stepwell::{Clock, Desk, TurnError};

/// A clock that the test moves.
#[derive(Debug, Default)]
struct Moved(AtomicI64);

impl Clock for Moved {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000 + self.0.load(Ordering::SeqCst))
    }
}

fn approval() -> Definition {
    Spec::new("approval")
        .wait("asked", "ANSWER")
        .end_with("yes", json!({"by": {"$expr": "event.by"}}))
        .end("late")
        .signal("ANSWER")
        .auto("answered", "asked", "yes")
        .transition(Transition::new("too_late", "asked", "late").after_ms(60_000))
        .build()
        .unwrap()
}

fn desk(store: Arc<dyn Store>) -> (Desk, Arc<Moved>) {
    let clock = Arc::new(Moved::default());
    (Desk::new(store, TenantScope::single()).with_clock(clock.clone()), clock)
}

#[tokio::test]
async fn a_run_rests_between_turns_and_every_turn_is_one_checkpoint() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (desk, _) = desk(store.clone());
    let (definition, run) = (approval(), stepwell::new_run_id());
    let started = desk.start(&definition, run, json!({"order": 7})).await.unwrap();
    assert_eq!((started.status, started.change.snapshot.version()), (Status::Waiting, 0));

    let waits =
        store.waits(TenantScope::single(), WaitQuery { limit: 10, ..WaitQuery::default() }).await.unwrap();
    assert_eq!((waits.items.len(), waits.items[0].run), (1, run));
    let until = Timestamp::from_millis(1_700_000_060_000);
    assert_eq!((&*waits.items[0].wait.place, waits.items[0].wait.until), ("asked", Some(until)));

    let answered = desk.turn(&definition, run, &Event::signal("ANSWER", json!({"by": "ann"}))).await.unwrap();
    assert_eq!(answered.status, Status::Running, "the next transition is automatic");
    let waits =
        store.waits(TenantScope::single(), WaitQuery { limit: 10, ..WaitQuery::default() }).await.unwrap();
    assert_eq!(waits.items, [], "an answered wait is not open");

    let ended = desk.turn(&definition, run, &Event::advance()).await.unwrap();
    assert_eq!(ended.status, Status::Completed);
    let history = HistoryQuery { run, from: 0, with_state: true, limit: 10 };
    let history = store.history(TenantScope::single(), history).await.unwrap().items;
    assert_eq!(history.iter().map(|row| row.version).collect::<Vec<_>>(), [0, 1, 2]);
    let definition =
        store.records(TenantScope::single(), RecordQuery::Definition(definition.hash())).await.unwrap();
    let [Record::Definition(stored)] = &definition.items[..] else { panic!("{definition:?}") };
    assert_eq!(Definition::from_canonical(&stored.body).unwrap(), approval());
}

#[tokio::test]
async fn a_refused_event_leaves_the_run_as_it_was() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (desk, _) = desk(store.clone());
    let (definition, run) = (approval(), stepwell::new_run_id());
    desk.start(&definition, run, json!({})).await.unwrap();
    let before = store.load(TenantScope::single(), run).await.unwrap();
    let refused = desk.turn(&definition, run, &Event::signal("ANSWR", json!({}))).await.unwrap_err();
    let TurnError::Rejected(Rejected::Refused(Refusal::UnknownSignal { hint, .. })) = refused else {
        panic!("{refused}")
    };
    assert_eq!(hint, " (did you mean `ANSWER`?)");
    assert_eq!(store.load(TenantScope::single(), run).await.unwrap(), before);
    let nobody = desk.turn(&definition, RunId::nil(), &Event::advance()).await.unwrap_err();
    assert!(matches!(nobody, TurnError::NoRun(_)), "{nobody}");
}

/// B15: whoever loses the compare-and-set decides again, on the newer snapshot.
#[tokio::test(start_paused = true)]
async fn of_two_who_decide_at_once_one_decides_again() {
    let store = Arc::new(Faulty::new(MemoryStore::new(), []));
    let (desk, _) = desk(store.clone());
    let (definition, run) = (approval(), stepwell::new_run_id());
    desk.start(&definition, run, json!({})).await.unwrap();
    // The first loads, and its commit is held up until the second is through.
    store.then(Fault::None);
    store.then(Fault::Delay(Duration::from_secs(1)));
    let event = Event::signal("ANSWER", json!({"by": "ann"}));
    let (first, second) =
        tokio::join!(desk.turn(&definition, run, &event), desk.turn(&definition, run, &event));
    assert_eq!(second.unwrap().change.snapshot.version(), 1);
    let refused = first.unwrap_err();
    let TurnError::Rejected(Rejected::Refused(Refusal::NoActiveSource { .. })) = refused else {
        panic!("{refused}")
    };
    assert_eq!(store.load(TenantScope::single(), run).await.unwrap().unwrap().head.version, 1);
}

/// Unknown is not failed: the commit is looked up and neither made twice nor reported as lost.
#[tokio::test]
async fn a_lost_answer_is_looked_up() {
    let store = Arc::new(Faulty::new(MemoryStore::new(), []));
    let (desk, _) = desk(store.clone());
    let (definition, run) = (approval(), stepwell::new_run_id());
    desk.start(&definition, run, json!({})).await.unwrap();
    store.then(Fault::None);
    store.then(Fault::After);
    let event = Event::signal("ANSWER", json!({"by": "ann"}));
    let turned = desk.turn(&definition, run, &event).await.unwrap();
    assert_eq!(turned.change.snapshot.version(), 1);
    let loaded = store.load(TenantScope::single(), run).await.unwrap().unwrap();
    assert_eq!(loaded.head.version, 1);
}

#[tokio::test]
async fn a_commit_that_never_arrived_is_an_error_and_can_be_tried_again() {
    let store = Arc::new(Faulty::new(MemoryStore::new(), []));
    let (desk, _) = desk(store.clone());
    let (definition, run) = (approval(), stepwell::new_run_id());
    desk.start(&definition, run, json!({})).await.unwrap();
    store.then(Fault::None);
    store.then(Fault::Before);
    let event = Event::signal("ANSWER", json!({}));
    let lost = desk.turn(&definition, run, &event).await.unwrap_err();
    assert!(matches!(lost, TurnError::Commit(CommitError::Store(_))), "{lost}");
    assert_eq!(desk.turn(&definition, run, &event).await.unwrap().change.snapshot.version(), 1);
}

#[tokio::test]
async fn a_timer_is_due_by_the_clock_that_was_given() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (desk, clock) = desk(store.clone());
    let (definition, run) = (approval(), stepwell::new_run_id());
    let started = desk.start(&definition, run, json!({})).await.unwrap();
    let timer = Event::TimerFired { activation: started.change.snapshot.activations()[0].id };
    let early = desk.turn(&definition, run, &timer).await.unwrap_err();
    assert!(matches!(early, TurnError::Rejected(Rejected::Refused(Refusal::NotDue { .. }))), "{early}");
    clock.0.store(60_000, Ordering::SeqCst);
    assert_eq!(desk.turn(&definition, run, &timer).await.unwrap().status, Status::Completed);
}

#[test]
fn the_definition_in_the_docs_is_valid() {
    let page = include_str!("../../../../docs/definitions.md");
    let example = page.split("```json").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let spec: Spec = serde_json::from_str(example).unwrap();
    assert_eq!(&**spec.build().unwrap().name(), "approval");
}
