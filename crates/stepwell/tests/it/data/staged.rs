//! Staged writes of an action: they are committed together with its result, exactly once or not at all.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::data::{KeyList, Lookup, NewLink, Set, StagedSlot};
use stepwell::engine::Builder;
use stepwell::host::BoxFuture;
use stepwell::store::{Entity, Status};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Engine, Run, Start};

use super::trail;
use crate::kit::{
    self, Fate, LEASE_MS, Watched, error_code, ground, settle, start_killable, status, version,
};
use crate::world::{Gate, Given, job};

const SECOND: Duration = Duration::from_secs(1);

fn counter(engine: &Engine) -> stepwell::data::Slot<i64> {
    engine.state().workflow("job", "count")
}

/// Runs this as the only action of a job.
async fn working(
    act: impl Fn(Cx) -> BoxFuture<Given> + Send + Sync + 'static,
    retries: u32,
) -> (TestEngine, Run) {
    let definition = job(|work| work.retry(Retry { attempts: retries, ..Retry::default() }));
    let engine = kit::start(|builder| builder.workflow(definition).action("work", act)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    (engine, run)
}

#[tokio::test]
async fn staged_writes_are_private_to_the_action_until_its_commit() {
    let gate = Gate::new();
    let act = {
        let gate = gate.clone();
        move |cx: Cx| -> BoxFuture<Given> {
            let gate = gate.clone();
            Box::pin(async move {
                let (slot, kv) = (cx.workflow_scope::<i64>("count"), cx.kv("test"));
                assert_eq!((slot.get().await?, kv.get("a").await?), (None, None));
                slot.set(&5)?;
                slot.increment(1)?;
                assert_eq!(cx.workflow_scope::<i64>("count").get().await?, Some(6));
                kv.set("a", 5)?;
                kv.increment("a", 2)?;
                let entry = kv.get("a").await?.unwrap();
                assert_eq!((entry.value, entry.revision), (json!(7), 2));
                kv.delete("b")?;
                assert_eq!(kv.list(KeyList::default()).await?.items, [], "a listing has committed keys only");
                gate.pass().await;
                Ok(Value::Null)
            })
        }
    };
    let (engine, run) = working(act, 0).await;
    assert_eq!((gate.inside(), counter(&engine).get().await.unwrap()), (1, None));
    assert_eq!(engine.kv("test").get("a").await.unwrap(), None);
    gate.open(1);
    engine.settle().await;
    assert_eq!((status(&run).await, counter(&engine).get().await.unwrap()), (Status::Completed, Some(6)));
    let entry = engine.kv("test").get("a").await.unwrap().unwrap();
    assert_eq!((entry.value, entry.revision, entry.created_by_run), (json!(7), 2, Some(run.id())));
}

/// Stages a call of every slot method.
async fn stage_everything(slot: impl Fn(&str) -> StagedSlot<Value>) -> Result<(), ActionError> {
    let number = slot("number").initial(json!(10))?;
    assert_eq!(number.get().await?, Some(json!(10)));
    number.increment(5)?;
    number.decrement(1)?;
    assert_eq!(number.update(|value| json!(value.unwrap().as_i64().unwrap() * 2)).await?, json!(28));
    number.increment(-8)?;
    assert_eq!(number.get().await?, Some(json!(20)));
    slot("object").merge(json!({"a": {"x": 1}, "b": 1}))?;
    slot("object").merge(json!({"a": {"y": 2}}))?;
    for item in ["one", "two", "three"] {
        slot("list").append(item)?;
    }
    slot("list").remove_first()?;
    slot("list").remove_last()?;
    assert_eq!(slot("list").get().await?, Some(json!(["two"])));
    slot("gone").set(&json!(1))?;
    slot("gone").delete()?;
    assert_eq!(slot("gone").initial(json!(3))?.get().await?, None, "after a delete there is nothing");
    Ok(())
}

#[tokio::test]
async fn every_method_can_be_staged_on_both_kinds_of_slots() {
    let act = |cx: Cx| -> BoxFuture<Given> {
        Box::pin(async move {
            stage_everything(|key| cx.execution(key)).await?;
            stage_everything(|key| cx.workflow_scope(key)).await?;
            Ok(Value::Null)
        })
    };
    let (engine, run) = working(act, 0).await;
    assert_eq!((status(&run).await, error_code(&run).await), (Status::Completed, None));
    let state = engine.state();
    let slots = |key: &str| [state.execution::<Value>(run.id(), key), state.workflow::<Value>("job", key)];
    let kept = [
        ("number", Some(json!(20))),
        ("object", Some(json!({"a": {"y": 2}, "b": 1}))),
        ("list", Some(json!(["two"]))),
        ("gone", None),
    ];
    for (key, value) in kept {
        for slot in slots(key) {
            assert_eq!(slot.get().await.unwrap(), value, "{}", slot.address());
        }
    }
    let [gone, _] = slots("gone");
    assert_eq!(gone.initial(json!(3)).get().await.unwrap(), None);
}

#[tokio::test]
async fn a_failed_action_discards_its_staged_writes() {
    let act = |cx: Cx| -> BoxFuture<Given> {
        Box::pin(async move {
            cx.workflow_scope::<i64>("count").increment(1)?;
            cx.execution::<i64>("count").update(|_| 1).await?;
            cx.kv("test").set("a", 1)?;
            cx.links("test").upsert(NewLink::new(Entity::new("t", "1"), Entity::new("t", "2")))?;
            Err(ActionError::new("broken", "it broke"))
        })
    };
    let (engine, run) = working(act, 2).await;
    engine.advance(60 * SECOND).await;
    assert_eq!(error_code(&run).await.as_deref(), Some("broken"));
    assert_eq!(counter(&engine).get().await.unwrap(), None);
    assert_eq!(engine.state().execution::<i64>(run.id(), "count").get().await.unwrap(), None);
    assert_eq!(engine.kv("test").get("a").await.unwrap(), None);
    let links = engine.links("test").lookup(Lookup::of(Entity::new("t", "1"))).await.unwrap();
    assert_eq!((links.items, trail(&engine).await), (vec![], vec![]));
}

#[tokio::test]
async fn an_invalid_write_at_the_commit_fails_the_action() {
    let act = |cx: Cx| -> BoxFuture<Given> {
        Box::pin(async move {
            cx.kv("test").set("a", 1)?;
            cx.workflow_scope::<Value>("text").increment(1)?;
            Ok(Value::Null)
        })
    };
    let definition = job(|work| work.retry(Retry { attempts: 3, ..Retry::default() }));
    let engine = kit::start(|builder| builder.workflow(definition).action("work", act)).await.unwrap();
    let text = engine.state().workflow::<Value>("job", "text");
    text.set(&json!("text")).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(60 * SECOND).await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("invalid")));
    assert_eq!(run.view().await.unwrap().ledger.failures.len(), 1, "the action is not retried");
    assert_eq!(engine.kv("test").get("a").await.unwrap(), None);
    assert_eq!(text.get().await.unwrap(), Some(json!("text")));
}

/// One attempt of an action: its number, its key and the value it found.
type Try = (u32, String, Option<i64>);

/// An action that updates a slot, waits at a gate and then completes.
#[derive(Clone)]
struct Updating {
    gate: Gate,
    attempts: Arc<Mutex<Vec<Try>>>,
    most: u32,
}

impl Updating {
    fn new(most: u32) -> Self {
        Updating { gate: Gate::new(), attempts: Arc::default(), most }
    }

    fn attempts(&self) -> Vec<Try> {
        self.attempts.lock().unwrap().clone()
    }

    fn action(&self) -> impl Fn(Cx) -> BoxFuture<Given> + Send + Sync + use<> {
        let all = self.clone();
        move |cx: Cx| {
            let all = all.clone();
            Box::pin(async move {
                let slot = cx.workflow_scope::<i64>("count").max_retries(all.most);
                let before = slot.get().await?;
                all.attempts.lock().unwrap().push((cx.attempt(), cx.idempotency_key(), before));
                cx.kv("test").increment("attempts", 1)?;
                slot.update(|value| value.unwrap_or_default() + 1).await?;
                all.gate.pass().await;
                Ok(Value::Null)
            })
        }
    }
}

#[tokio::test]
async fn a_lost_update_reruns_the_action_with_the_same_key() {
    let updating = Updating::new(10);
    let (engine, run) = working(updating.action(), 0).await;
    assert_eq!(updating.gate.inside(), 1);
    counter(&engine).set(&100).await.unwrap();
    updating.gate.open(1);
    engine.advance(SECOND).await;
    assert_eq!((updating.gate.inside(), status(&run).await), (1, Status::Running), "it runs again");
    assert_eq!((version(&run).await, engine.kv("test").get("attempts").await.unwrap()), (0, None));
    updating.gate.open(1);
    engine.settle().await;
    assert_eq!((status(&run).await, counter(&engine).get().await.unwrap()), (Status::Completed, Some(101)));
    let key = format!("{}-1", run.id());
    assert_eq!(updating.attempts(), [(1, key.clone(), None), (1, key, Some(100))]);
    assert_eq!(run.view().await.unwrap().ledger.failures, []);
    assert_eq!(engine.kv("test").get("attempts").await.unwrap().unwrap().value, json!(1));
}

#[tokio::test]
async fn an_update_that_always_conflicts_fails_the_run() {
    let updating = Updating::new(3);
    let (engine, run) = working(updating.action(), 5).await;
    for value in 1..=3 {
        assert_eq!(updating.gate.inside(), 1, "before attempt {value} is lost");
        counter(&engine).set(&(value * 100)).await.unwrap();
        updating.gate.open(1);
        engine.advance(SECOND).await;
    }
    engine.advance(600 * SECOND).await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("conflict")));
    assert_eq!(updating.attempts().len(), 3);
    assert_eq!(counter(&engine).get().await.unwrap(), Some(300));
    assert_eq!(engine.kv("test").get("attempts").await.unwrap(), None);
}

/// Ten runs each add one to the value they read: a lost update would make the sum less than ten.
#[tokio::test]
async fn concurrent_runs_updating_one_slot_lose_nothing() {
    let act = |cx: Cx| async move {
        let slot = cx.workflow_scope::<i64>("count").max_retries(100);
        let before = slot.get().await?;
        tokio::task::yield_now().await;
        slot.update(|value| value.unwrap_or_default() + 1).await?;
        tokio::task::yield_now().await;
        Ok::<_, ActionError>(before)
    };
    let (store, clock) = ground().await;
    let build = || |builder: Builder| builder.workflow(job(|work| work)).action("work", act);
    let first = TestEngine::start_on(store.clone(), clock.clone(), build()).await.unwrap();
    let second = TestEngine::start_on(store, clock, build()).await.unwrap();
    let mut runs = Vec::new();
    for at in 0..10 {
        let engine = if at % 2 == 0 { &first } else { &second };
        runs.push(engine.start(Start::new("job")).await.unwrap());
    }
    for _ in 0..20 {
        settle(&[&first, &second]).await;
        first.advance(Duration::from_millis(50)).await;
    }
    for run in &runs {
        assert_eq!((status(run).await, error_code(run).await), (Status::Completed, None));
    }
    assert_eq!(counter(&first).get().await.unwrap(), Some(10));
}

#[tokio::test]
async fn a_conflict_on_a_given_revision_is_not_retried() {
    let calls = Arc::new(Mutex::new(0));
    let act = {
        let calls = calls.clone();
        move |cx: Cx| -> BoxFuture<Given> {
            *calls.lock().unwrap() += 1;
            Box::pin(async move {
                cx.kv("test").set("b", 1)?;
                cx.kv("test").set_with("a", Set::new(1).if_revision(7))?;
                Ok(Value::Null)
            })
        }
    };
    let (engine, run) = working(act, 5).await;
    engine.advance(600 * SECOND).await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("conflict")));
    assert_eq!(*calls.lock().unwrap(), 1);
    assert_eq!(engine.kv("test").get("b").await.unwrap(), None);
}

async fn adds(cx: Cx) -> Result<(), ActionError> {
    cx.workflow_scope::<i64>("count").increment(1)?;
    cx.kv("test").increment("count", 1)
}

fn adding(builder: Builder) -> Builder {
    builder.workflow(job(|work| work)).action("work", adds)
}

async fn both(engine: &Engine) -> (Option<i64>, Option<Value>) {
    let kept = engine.kv("test").get("count").await.unwrap();
    (counter(engine).get().await.unwrap(), kept.map(|entry| entry.value))
}

#[tokio::test]
async fn a_crash_with_a_staged_increment_applies_it_once() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let act = {
        let gate = gate.clone();
        move |cx: Cx| {
            let gate = gate.clone();
            async move {
                adds(cx).await?;
                gate.pass().await;
                Ok::<_, ActionError>(())
            }
        }
    };
    let dies = |builder: Builder| builder.workflow(job(|work| work)).action("work", act);
    let (first, tasks) = start_killable(store.clone(), &clock, dies).await;
    let run = first.start(Start::new("job")).await.unwrap().id();
    first.settle().await;
    assert_eq!(gate.inside(), 1);
    tasks.kill().await;
    assert_eq!((gate.dropped(), both(&first).await), (1, (None, None)));
    let (second, _tasks) = start_killable(store, &clock, adding).await;
    second.advance(Duration::from_millis(2 * LEASE_MS)).await;
    assert_eq!(status(&second.run(run)).await, Status::Completed);
    assert_eq!(both(&second).await, (Some(1), Some(json!(1))));
}

/// A process crashes at the commit of its increment: the commit never arrives, or its answer is lost.
async fn dies_at_the_commit(fate: Fate) {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner.clone());
    let (first, tasks) = start_killable(store.clone(), &clock, adding).await;
    let mut is_dead = false;
    store.rule(move |commit| match (is_dead, commit.cells.is_empty()) {
        (true, _) => Fate::Hangs,
        (false, true) => Fate::Arrives,
        (false, false) => {
            is_dead = true;
            fate
        }
    });
    let run = first.start(Start::new("job")).await.unwrap().id();
    first.settle().await;
    tasks.kill().await;
    let (second, _tasks) = start_killable(inner, &clock, adding).await;
    second.advance(Duration::from_millis(2 * LEASE_MS)).await;
    assert_eq!(status(&second.run(run)).await, Status::Completed);
    assert_eq!(both(&second).await, (Some(1), Some(json!(1))), "{fate:?}");
}

#[tokio::test]
async fn a_crash_at_the_commit_applies_an_increment_once() {
    dies_at_the_commit(Fate::Hangs).await;
    dies_at_the_commit(Fate::AnswerLost).await;
}

#[tokio::test]
async fn a_lost_commit_answer_applies_an_increment_once() {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner);
    let engine = TestEngine::start_on(store.clone(), clock, adding).await.unwrap();
    store.rule(|commit| if commit.cells.is_empty() { Fate::Arrives } else { Fate::AnswerLost });
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(SECOND).await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(both(&engine).await, (Some(1), Some(json!(1))));
}

#[tokio::test]
async fn nothing_can_be_staged_after_the_action_has_ended() {
    let kept: Arc<Mutex<Option<Cx>>> = Arc::default();
    let act = {
        let kept = kept.clone();
        move |cx: Cx| -> BoxFuture<Given> {
            *kept.lock().unwrap() = Some(cx);
            Box::pin(async { Ok(Value::Null) })
        }
    };
    let (engine, run) = working(act, 0).await;
    assert_eq!(status(&run).await, Status::Completed);
    let cx = kept.lock().unwrap().take().unwrap();
    let code = |result: Result<(), ActionError>| result.map_err(|error| error.failure().code.clone());
    assert_eq!(code(cx.kv("test").set("a", 1)), Err("actionEnded".to_owned()));
    assert_eq!(code(cx.workflow_scope::<i64>("count").increment(1)), Err("actionEnded".to_owned()));
    assert_eq!(code(cx.session::<i64>("count").set(&1)), Err("actionEnded".to_owned()));
    assert_eq!(both(&engine).await, (None, None));
}
