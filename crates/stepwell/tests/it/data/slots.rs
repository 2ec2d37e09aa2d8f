//! Shared slots: their owners, their operations, and concurrent writes.

use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};
use stepwell::core::spec::{ChildRule, Place, Quorum, Transition, Wait};
use stepwell::core::{Definition, Spec};
use stepwell::data::slot::MAX_RETRIES;
use stepwell::data::{Changes, KeyList, Slot, SlotEvent};
use stepwell::engine::Builder;
use stepwell::store::{CellFilter, CellOp, CellQuery, Space, Status, Store, Ttl, ValueType};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, DataError, Engine, ManualClock, Start, new_run_id};

use super::{DAY, as_time_passes};
use crate::kit::{self, Watched, children_of, ground, other_tenant, soon, status};
use crate::world::job;

/// A run with one child and two parallel branches.
fn family() -> Spec {
    let below = Wait { children: Some(ChildRule::All), ..Wait::default() };
    Spec::new("family")
        .step("open")
        .place("below", Place::Wait(below))
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .join("both", Quorum::All, ["left", "right"])
        .end("done")
        .initial("open")
        .transition(Transition::new("begin", "open", "below").action("begin"))
        .auto("go", "below", "split")
        .transition(Transition::new("l", "left", "both").action("work"))
        .transition(Transition::new("r", "right", "both").action("work"))
        .auto("finish", "both", "done")
}

async fn count(cx: Cx) -> Result<(), ActionError> {
    cx.execution::<i64>("steps").increment(1)?;
    cx.workflow_scope::<i64>("steps").increment(1)
}

async fn begin(cx: Cx) -> Result<(), ActionError> {
    cx.start_child(Start::new("job"))?;
    count(cx).await
}

fn counting(builder: Builder) -> Builder {
    let family: Definition = family().build().unwrap();
    builder.workflow(family).workflow(job(|work| work)).action("begin", begin).action("work", count)
}

#[tokio::test]
async fn an_execution_slot_is_shared_by_a_run_and_its_children() {
    let engine = kit::start(counting).await.unwrap();
    let run = engine.start(Start::new("family")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    let child = children_of(&engine, run.id()).await[0].run;
    let state = engine.state();
    for of in [run.id(), child] {
        assert_eq!(state.root_of(of).await, Ok(run.id()));
    }
    assert!(state.root_of(new_run_id()).await.is_err());
    assert_eq!(state.execution::<i64>(run.id(), "steps").get().await.unwrap(), Some(4));
    assert_eq!(state.execution::<i64>(child, "steps").get().await.unwrap(), None, "the child has none");
    let another = engine.start(Start::new("family")).await.unwrap();
    engine.settle().await;
    assert_eq!(state.execution::<i64>(another.id(), "steps").get().await.unwrap(), Some(4));
    assert_eq!(state.execution::<i64>(run.id(), "steps").get().await.unwrap(), Some(4));
}

#[tokio::test]
async fn a_workflow_slot_is_shared_by_runs_of_one_workflow() {
    let engine = kit::start(counting).await.unwrap();
    for _ in 0..2 {
        engine.start(Start::new("family")).await.unwrap();
    }
    engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    let state = engine.state();
    assert_eq!(state.workflow::<i64>("family", "steps").get().await.unwrap(), Some(6));
    assert_eq!(state.workflow::<i64>("job", "steps").get().await.unwrap(), Some(3), "two were children");
    assert_eq!(state.workflow::<i64>("other", "steps").get().await.unwrap(), None);
}

/// The number of cells of an owner, tombstones included.
async fn rows(engine: &Engine, space: Space, owner: String) -> usize {
    let filter = CellFilter::Prefix(String::new());
    let now = engine.now();
    let query = CellQuery { space, owner, filter, now, include_deleted: true, limit: 100, cursor: None };
    engine.store().cells(engine.scope(), query).await.unwrap().items.len()
}

#[tokio::test]
async fn purging_the_root_run_removes_its_execution_slots() {
    let build = |builder| counting(builder).with(|options| options.retention_ms = Some(2 * 86_400_000));
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("family")).await.unwrap();
    engine.settle().await;
    let slot = engine.state().execution::<i64>(run.id(), "gone");
    slot.set(&1).await.unwrap();
    slot.delete().await.unwrap();
    engine.advance(DAY).await;
    assert_eq!(rows(&engine, Space::Execution, run.id().to_string()).await, 2);
    engine.advance(3 * DAY).await;
    assert_eq!(rows(&engine, Space::Execution, run.id().to_string()).await, 0, "also its tombstones");
    assert_eq!(engine.state().execution::<i64>(run.id(), "steps").get().await.unwrap(), None);
    assert_eq!(engine.state().workflow::<i64>("family", "steps").get().await.unwrap(), Some(3));
}

#[tokio::test]
async fn the_initial_value_applies_only_before_the_first_write() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let slot = engine.state().workflow::<i64>("w", "a").initial(10);
    let other = engine.state().workflow::<i64>("w", "a").initial(77);
    let bare = engine.state().workflow::<i64>("w", "a");
    assert_eq!((slot.get().await.unwrap(), other.get().await.unwrap()), (Some(10), Some(77)));
    assert_eq!(bare.get().await.unwrap(), None, "each handle has its own");
    assert_eq!(slot.increment(5).await.unwrap(), 15);
    assert_eq!((slot.get().await.unwrap(), other.get().await.unwrap()), (Some(15), Some(15)));
    assert!(slot.delete().await.unwrap());
    assert_eq!((slot.get().await.unwrap(), other.get().await.unwrap()), (None, None));
    assert_eq!(slot.update(|value| value.unwrap_or(-1)).await.unwrap(), -1, "an update sees nothing too");
    slot.delete().await.unwrap();
    assert_eq!(slot.increment(5).await.unwrap(), 5, "after a delete it starts from 0");
    assert_eq!(engine.state().workflow::<i64>("w", "b").increment(5).await.unwrap(), 5);
}

#[tokio::test]
async fn a_delete_before_the_first_write_ends_the_initial_value() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let slot = engine.state().workflow::<i64>("w", "a").initial(10);
    assert!(!slot.delete().await.unwrap(), "there is no stored value to delete");
    assert_eq!(slot.get().await.unwrap(), None);
    assert!(!slot.delete().await.unwrap());
    assert_eq!(slot.increment(5).await.unwrap(), 5, "it starts from 0");
}

/// Calls every method of a slot from outside of runs.
async fn does_everything(slot: Slot<Value>) {
    assert_eq!(slot.get().await.unwrap(), None);
    assert_eq!(slot.set(&json!(40)).await.unwrap(), 1);
    assert_eq!(slot.increment(3).await.unwrap(), json!(43));
    assert_eq!(slot.decrement(1).await.unwrap(), json!(42));
    assert_eq!(slot.get().await.unwrap(), Some(json!(42)));
    let doubled = slot.update(|value| json!(value.unwrap().as_i64().unwrap() * 2)).await.unwrap();
    assert_eq!((doubled, slot.get().await.unwrap()), (json!(84), Some(json!(84))));
    assert!(slot.delete().await.unwrap());
    assert!(!slot.delete().await.unwrap());
    assert_eq!(slot.get().await.unwrap(), None);
    assert_eq!(slot.merge(json!({"a": {"x": 1}, "b": 1})).await.unwrap(), 6);
    slot.merge(json!({"a": {"y": 2}, "c": null})).await.unwrap();
    let merged = json!({"a": {"y": 2}, "b": 1, "c": null});
    assert_eq!(slot.get().await.unwrap(), Some(merged), "it is shallow, and null is a value");
    slot.delete().await.unwrap();
    for item in ["one", "two", "three"] {
        slot.append(item).await.unwrap();
    }
    assert_eq!(slot.get().await.unwrap(), Some(json!(["one", "two", "three"])));
    assert_eq!(slot.remove_first::<String>().await.unwrap().as_deref(), Some("one"));
    assert_eq!(slot.remove_last::<String>().await.unwrap().as_deref(), Some("three"));
    assert_eq!(slot.remove_last::<String>().await.unwrap().as_deref(), Some("two"));
    assert_eq!(slot.remove_first::<String>().await.unwrap(), None);
    assert_eq!(slot.get().await.unwrap(), Some(json!([])));
}

#[tokio::test]
async fn every_method_works_on_an_execution_slot_from_outside() {
    let engine = kit::start(|builder| builder).await.unwrap();
    does_everything(engine.state().execution(new_run_id(), "all")).await;
}

#[tokio::test]
async fn every_method_works_on_a_workflow_slot_from_outside() {
    let engine = kit::start(|builder| builder).await.unwrap();
    does_everything(engine.state().workflow("w", "all")).await;
}

#[tokio::test]
async fn operations_start_from_the_initial_value() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let slot = |key: &str, initial: Value| engine.state().workflow::<Value>("w", key).initial(initial);
    let list = slot("list", json!([1, 2, 3]));
    assert_eq!(list.remove_first::<i64>().await.unwrap(), Some(1));
    assert_eq!(list.get().await.unwrap(), Some(json!([2, 3])));
    let longer = slot("longer", json!([1]));
    longer.append(2).await.unwrap();
    assert_eq!(longer.get().await.unwrap(), Some(json!([1, 2])));
    let object = slot("object", json!({"a": 1}));
    object.merge(json!({"b": 2})).await.unwrap();
    assert_eq!(object.get().await.unwrap(), Some(json!({"a": 1, "b": 2})));
    let text = slot("text", json!("ten"));
    assert!(matches!(text.increment(1).await, Err(DataError::Invalid(_))), "it adds to the initial value");
    assert_eq!(text.get().await.unwrap(), Some(json!("ten")));
}

#[tokio::test]
async fn amounts_are_exact_to_64_bits() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let slot = engine.state().workflow::<Value>("w", "sum");
    assert_eq!(slot.increment(-7).await.unwrap(), json!(-7));
    assert_eq!(slot.decrement(-7).await.unwrap(), json!(0));
    assert_eq!(slot.increment(0.5).await.unwrap(), json!(0.5));
    assert_eq!(slot.decrement(0.25).await.unwrap(), json!(0.25));
    slot.set(&json!(0)).await.unwrap();
    assert_eq!(slot.increment(i64::MAX).await.unwrap(), json!(i64::MAX));
    assert_eq!(slot.increment(1).await.unwrap(), json!(9_223_372_036_854_775_808_u64));
    assert_eq!(slot.increment(i64::MAX).await.unwrap(), json!(u64::MAX));
    assert_eq!(slot.decrement(i64::MAX).await.unwrap(), json!(9_223_372_036_854_775_808_u64));
    slot.set(&json!(0)).await.unwrap();
    assert_eq!(slot.increment(u64::MAX).await.unwrap(), json!(u64::MAX));
    slot.set(&json!(0)).await.unwrap();
    assert_eq!(slot.increment(i64::MIN).await.unwrap(), json!(i64::MIN));
    assert_eq!(slot.get().await.unwrap(), Some(json!(i64::MIN)), "it is stored exactly");
}

#[tokio::test]
async fn an_overflow_is_an_error_and_changes_nothing() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let slot = engine.state().workflow::<Value>("w", "edge");
    for (value, by) in [(json!(u64::MAX), 1), (json!(i64::MIN), -1)] {
        let version = slot.set(&value).await.unwrap();
        let error = slot.increment(by).await.unwrap_err();
        assert!(matches!(&error, DataError::Invalid(_)), "{error:?}");
        assert_eq!(slot.get().await.unwrap(), Some(value.clone()));
        assert_eq!(slot.set(&value).await.unwrap(), version + 1, "the version has not moved");
    }
    for amount in [f64::NAN, f64::INFINITY] {
        let before = slot.get().await.unwrap();
        assert!(matches!(slot.increment(amount).await, Err(DataError::Invalid(_))));
        assert_eq!(slot.get().await.unwrap(), before);
    }
    slot.set(&json!(f64::MAX)).await.unwrap();
    assert!(matches!(slot.increment(f64::MAX).await, Err(DataError::Invalid(_))), "the sum is not finite");
    assert_eq!(slot.get().await.unwrap(), Some(json!(f64::MAX)));
}

#[tokio::test]
async fn an_operation_on_the_wrong_type_changes_nothing() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let slot = engine.state().workflow::<Value>("w", "kind");
    let invalid = |error: DataError| assert_eq!(error.code(), "invalid", "{error:?}");
    for value in [json!("text"), json!(null), json!(true)] {
        let version = slot.set(&value).await.unwrap();
        invalid(slot.increment(1).await.unwrap_err());
        invalid(slot.merge(json!({"a": 1})).await.unwrap_err());
        invalid(slot.append(1).await.unwrap_err());
        invalid(slot.remove_first::<Value>().await.unwrap_err());
        invalid(slot.remove_last::<Value>().await.unwrap_err());
        invalid(slot.merge(json!([1])).await.unwrap_err());
        assert_eq!(slot.get().await.unwrap(), Some(value.clone()));
        assert_eq!(slot.set(&value).await.unwrap(), version + 1);
    }
    let number = engine.state().workflow::<i64>("w", "kind");
    invalid(number.get().await.unwrap_err());
}

/// A slot whose store applies another write before a commit arrives.
struct Crossed {
    store: Arc<Watched>,
    engine: TestEngine,
    other: TestEngine,
    clock: ManualClock,
}

async fn crossed() -> Crossed {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner.clone());
    let engine = TestEngine::start_on(store.clone(), clock.clone(), |builder| builder).await.unwrap();
    let other = TestEngine::start_on(inner, clock.clone(), |builder| builder).await.unwrap();
    Crossed { store, engine, other, clock }
}

fn slot_of(engine: &Engine) -> Slot<i64> {
    engine.state().workflow("w", "crossed")
}

/// Two users press a button at the same time, and both must be counted.
#[tokio::test]
async fn a_conflicting_update_is_retried_with_the_new_value() {
    let Crossed { store, engine, other, clock } = crossed().await;
    let slot = slot_of(&engine);
    slot.set(&1).await.unwrap();
    let (seen, theirs) = (Mutex::new(Vec::new()), slot_of(&other));
    let update = slot.update(|value| {
        let mut seen = seen.lock().unwrap();
        seen.push(value);
        if seen.len() == 1 {
            let theirs = theirs.clone();
            store.first(async move { _ = theirs.set(&100).await.unwrap() });
        }
        value.unwrap() + 1
    });
    assert_eq!(as_time_passes(&clock, update).await.unwrap(), 101);
    assert_eq!(*seen.lock().unwrap(), [Some(1), Some(100)]);
    assert_eq!(slot.get().await.unwrap(), Some(101));
    assert_eq!(slot.set(&0).await.unwrap(), 4, "the lost attempt wrote nothing");
}

/// The items that a stream has ready now.
fn ready<T>(stream: impl futures_util::Stream<Item = T>) -> Vec<T> {
    let mut stream = std::pin::pin!(stream);
    std::iter::from_fn(|| stream.next().now_or_never().flatten()).collect()
}

#[tokio::test]
async fn an_update_that_always_conflicts_is_abandoned() {
    let Crossed { store, engine, other, clock } = crossed().await;
    let slot = slot_of(&engine).max_retries(3);
    let events = slot.events();
    let (theirs, mut calls) = (slot_of(&other), 0);
    let update = slot.update(|value| {
        calls += 1;
        let theirs = theirs.clone();
        store.first(async move { _ = theirs.increment(10).await.unwrap() });
        value.unwrap_or_default() + 1
    });
    let error = as_time_passes(&clock, update).await.unwrap_err();
    assert!(matches!(&error, DataError::Exhausted { attempts: 3, .. }), "{error:?}");
    assert_eq!((error.code(), calls), ("conflict", 3));
    let conflict = |attempt| SlotEvent::Conflict { attempt };
    let told = [conflict(1), conflict(2), conflict(3), SlotEvent::Exhausted { attempts: 3 }];
    assert_eq!(ready(events), told);
    assert_eq!(slot.get().await.unwrap(), Some(30), "only the other writer's sum");
}

#[tokio::test]
async fn an_update_has_ten_attempts_by_default() {
    let Crossed { store, engine, other, clock } = crossed().await;
    let (slot, theirs, mut calls) = (slot_of(&engine), slot_of(&other), 0);
    let update = slot.update(|value| {
        calls += 1;
        let theirs = theirs.clone();
        store.first(async move { _ = theirs.increment(1).await.unwrap() });
        value.unwrap_or_default()
    });
    let error = as_time_passes(&clock, update).await.unwrap_err();
    assert!(matches!(error, DataError::Exhausted { attempts: 10, .. }));
    assert_eq!((calls, MAX_RETRIES), (10, 10));
}

/// Without a tombstone a deleted value would look like one that was never written.
#[tokio::test]
async fn a_retried_update_sees_a_deletion() {
    let Crossed { store, engine, other, clock } = crossed().await;
    let slot = slot_of(&engine).initial(5);
    slot.set(&1).await.unwrap();
    let (seen, theirs) = (Mutex::new(Vec::new()), slot_of(&other));
    let update = slot.update(|value| {
        let mut seen = seen.lock().unwrap();
        seen.push(value);
        if seen.len() == 1 {
            let theirs = theirs.clone();
            store.first(async move { assert!(theirs.delete().await.unwrap()) });
        }
        value.unwrap_or_default() + 1
    });
    assert_eq!(as_time_passes(&clock, update).await.unwrap(), 1);
    assert_eq!(*seen.lock().unwrap(), [Some(1), None]);
}

#[tokio::test]
async fn an_update_of_an_unwritten_slot_conflicts_with_a_write() {
    let Crossed { store, engine, other, clock } = crossed().await;
    let slot = slot_of(&engine).initial(5);
    let (seen, theirs) = (Mutex::new(Vec::new()), slot_of(&other));
    let update = slot.update(|value| {
        let mut seen = seen.lock().unwrap();
        seen.push(value);
        if seen.len() == 1 {
            let theirs = theirs.clone();
            store.first(async move {
                theirs.set(&1).await.unwrap();
                theirs.delete().await.unwrap();
            });
        }
        9
    });
    as_time_passes(&clock, update).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [Some(5), None], "a deleted slot is not an unwritten one");
}

#[tokio::test]
async fn concurrent_operations_do_not_conflict() {
    let Crossed { engine, other, .. } = crossed().await;
    let (count, list) = (slot_of(&engine), engine.state().workflow::<Value>("w", "list"));
    let theirs = slot_of(&other);
    let increments = (0..20).map(|at| {
        let slot = if at % 2 == 0 { count.clone() } else { theirs.clone() };
        async move { slot.increment(1).await.unwrap() }
    });
    let appends = (0..20).map(|at| {
        let list = list.clone();
        async move { list.append(at).await.unwrap() }
    });
    let (sums, _) = soon(futures_util::future::join(join_all(increments), join_all(appends))).await;
    let mut sums = sums;
    sums.sort_unstable();
    assert_eq!(sums, (1..=20).collect::<Vec<_>>(), "each got a distinct sum");
    assert_eq!(list.get().await.unwrap().unwrap().as_array().unwrap().len(), 20);
    assert_eq!(count.set(&0).await.unwrap(), 21, "each raised the version");
}

#[tokio::test]
async fn concurrent_updates_are_all_applied() {
    let Crossed { engine, other, clock, .. } = crossed().await;
    let updates = (0..8).map(|at| {
        let slot = slot_of(if at % 2 == 0 { &engine } else { &other }).max_retries(50);
        async move { slot.update(|value| value.unwrap_or_default() + 1).await.unwrap() }
    });
    as_time_passes(&clock, join_all(updates)).await;
    assert_eq!(slot_of(&engine).get().await.unwrap(), Some(8));
}

#[tokio::test]
async fn slot_events_have_the_previous_value_and_version() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let slot = engine.state().workflow::<i64>("w", "told");
    slot.set(&1).await.unwrap();
    let events = slot.events();
    slot.set(&2).await.unwrap();
    slot.clone().update(|value| value.unwrap() * 10).await.unwrap();
    slot.increment(1).await.unwrap();
    slot.delete().await.unwrap();
    slot.delete().await.unwrap();
    slot.set(&7).await.unwrap();
    let change = |value, previous, version| SlotEvent::Change { value, previous, version };
    let told = [
        change(Some(2), None, 2),
        change(Some(20), Some(2), 3),
        change(Some(21), Some(20), 4),
        change(None, Some(21), 5),
        change(Some(7), None, 6),
    ];
    assert_eq!(ready(events), told, "only changes since `events` was called; deleting nothing is none");
}

#[tokio::test]
async fn an_address_is_percent_encoded_part_by_part() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let run = new_run_id();
    let slot = engine.state().execution::<i64>(run, "a:b/c %ä~-._");
    assert_eq!(slot.address(), format!("state:execution:{run}:a%3Ab%2Fc%20%25%C3%A4~-._"));
    let slot = engine.state().workflow::<i64>("my flow:1", "k");
    assert_eq!(slot.address(), "state:workflow-scope:default:my%20flow%3A1:k");
    let one = engine.state().workflow::<i64>("a:b", "c").address();
    assert_ne!(one, engine.state().workflow::<i64>("a", "b:c").address(), "no two slots share an address");
}

#[tokio::test]
async fn a_key_has_1_to_256_characters() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let slot = |key: String| engine.state().workflow::<i64>("w", key);
    slot("ä".repeat(256)).set(&1).await.unwrap();
    assert_eq!(slot("ä".repeat(256)).get().await.unwrap(), Some(1), "characters, not bytes");
    for key in [String::new(), "k".repeat(257), "a\0b".to_owned()] {
        let error = slot(key.clone()).set(&1).await.unwrap_err();
        assert!(matches!(&error, DataError::Invalid(_)), "{key:?}: {error:?}");
        assert_eq!(slot(key.clone()).increment(1).await.unwrap_err().code(), "invalid");
    }
}

#[tokio::test]
async fn slots_are_scoped_to_a_tenant() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let run = new_run_id();
    let theirs = engine.for_tenant(other_tenant());
    for (engine, value) in [(engine.engine(), 1_i64), (&theirs, 2)] {
        engine.state().workflow("w", "a").set(&value).await.unwrap();
        engine.state().execution(run, "a").set(&value).await.unwrap();
    }
    assert_eq!(engine.state().workflow::<i64>("w", "a").get().await.unwrap(), Some(1));
    assert_eq!(engine.state().execution::<i64>(run, "a").get().await.unwrap(), Some(1));
    assert_eq!(theirs.state().workflow::<i64>("w", "a").get().await.unwrap(), Some(2));
}

#[tokio::test]
async fn slots_are_written_with_their_version_as_a_condition() {
    let engine = kit::start(counting).await.unwrap();
    let (state, root) = (engine.state(), new_run_id());
    let slot = state.workflow::<Value>("family", "total");
    assert_eq!(slot.entry().await.unwrap(), None);
    let set = |value: i64| CellOp::Set { value: value.into(), value_type: ValueType::Json, ttl: Ttl::Keep };
    let changes = |op: CellOp, version: Option<u64>| Changes::new().slot(&slot, op, version);
    engine.write(changes(set(1), Some(0))).await.unwrap();
    for stale in [0, 2] {
        let error = engine.write(changes(set(2), Some(stale))).await.unwrap_err();
        assert!(matches!(error, DataError::Conflict { revision: 1, exists: true, .. }), "{error}");
    }
    engine
        .write(changes(set(2), Some(1)).slot(&state.execution::<Value>(root, "a"), set(3), None))
        .await
        .unwrap();
    let entry = slot.entry().await.unwrap().unwrap();
    assert_eq!((entry.value, entry.revision), (json!(2), 2));
    let list = |limit: u32| KeyList { limit: Some(limit), ..KeyList::default() };
    let page = state.list_workflow("family", list(10)).await.unwrap();
    assert_eq!(page.items.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["total"]);
    assert_eq!(state.list_execution(root, list(10)).await.unwrap().items[0].value, json!(3));
    engine.write(changes(CellOp::Delete, Some(2))).await.unwrap();
    assert_eq!(
        (slot.entry().await.unwrap(), state.list_workflow("family", list(1)).await.unwrap().items),
        (None, vec![])
    );

    let own = state.workflow::<Value>("stepwell.apikeys", "x");
    for refused in [
        engine.write(Changes::new().slot(&own, set(1), None)).await.map(drop),
        own.entry().await.map(drop),
        state.list_workflow("stepwell.apikeys", list(1)).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().code(), "invalid");
    }
}
