//! Idempotent writes: by checkpoint inside a run, by idempotency key across runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::Definition;
use stepwell::data::{Changes, Increment, NewLink};
use stepwell::engine::{Builder, DEFAULT_IDEMPOTENCY_KEY_TTL_MS};
use stepwell::store::{Entity, OpResult, Status};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, DataError, Engine, EngineError, Idempotent, Once, Start};

use super::{DAY, call, chain, trail};
use crate::kit::{self, Fate, Watched, context, error_code, ground, other_tenant, settle, status};
use crate::world::{Gate, job};

fn adds(by: i64) -> Changes {
    let thing = |id: &str| Entity::new("thing", id);
    Changes::new()
        .link("test", NewLink::new(thing("1"), thing("2")))
        .increment("test", "sum", Increment::by(by))
        .once("import-1")
}

async fn sum(engine: &Engine) -> Option<Value> {
    engine.kv("test").get("sum").await.unwrap().map(|entry| entry.value)
}

#[tokio::test]
async fn the_same_key_and_changes_write_once() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let Idempotent { value: first, is_new } = engine.write_once(adds(5)).await.unwrap();
    assert!(is_new);
    engine.kv("test").increment("sum", 1).await.unwrap();
    for _ in 0..3 {
        let again = engine.write_once(adds(5)).await.unwrap();
        assert_eq!(again, Idempotent { value: first.clone(), is_new: false }, "in the same order too");
    }
    assert_eq!((first[0].created, first[1].value.clone()), (true, Some(json!(5))));
    assert_eq!((sum(&engine).await, trail(&engine).await.len()), (Some(json!(6)), 3));
}

#[tokio::test]
async fn the_same_key_with_other_changes_is_an_error() {
    let engine = kit::start(|builder| builder).await.unwrap();
    engine.write(adds(5)).await.unwrap();
    let error = engine.write(adds(6)).await.unwrap_err();
    assert!(matches!(&error, DataError::Engine(EngineError::KeyReused { key, .. }) if key == "import-1"));
    assert_eq!((error.code(), sum(&engine).await), ("keyReused", Some(json!(5))));
    let empty = Changes::new().set("test", "a", 1).once("");
    assert_eq!(engine.write(empty).await.unwrap_err().code(), "invalid");
}

#[tokio::test]
async fn a_write_key_expires_after_the_configured_time() {
    let kept = 2 * 86_400_000;
    let engine =
        kit::start(|builder| builder.with(|options| options.idempotency_key_ttl_ms = kept)).await.unwrap();
    engine.write(adds(5)).await.unwrap();
    engine.advance(2 * DAY - Duration::from_millis(1)).await;
    engine.write(adds(5)).await.unwrap();
    assert_eq!(sum(&engine).await, Some(json!(5)));
    engine.advance(Duration::from_millis(1)).await;
    engine.write(adds(6)).await.unwrap();
    assert_eq!(sum(&engine).await, Some(json!(11)), "an expired key may be used for other changes");
    assert_eq!(DEFAULT_IDEMPOTENCY_KEY_TTL_MS, 7 * 86_400_000);
}

#[tokio::test]
async fn write_keys_are_scoped_to_a_tenant() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let theirs = engine.for_tenant(other_tenant());
    engine.write(adds(5)).await.unwrap();
    theirs.write(adds(7)).await.unwrap();
    assert_eq!((sum(&engine).await, sum(&theirs).await), (Some(json!(5)), Some(json!(7))));
}

#[tokio::test]
async fn keys_of_starts_and_writes_are_separate() {
    let engine = kit::start(|builder| builder.workflow(chain("plain", vec![]))).await.unwrap();
    engine.start(Start::new("plain").key("import-1")).await.unwrap();
    engine.write(adds(5)).await.unwrap();
    assert_eq!(sum(&engine).await, Some(json!(5)));
}

#[tokio::test]
async fn a_write_with_a_lost_answer_happens_once() {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner);
    let engine = TestEngine::start_on(store.clone(), clock, |builder| builder).await.unwrap();
    let mut last = None;
    store.rule(move |commit| match last.replace(commit.id) == Some(commit.id) {
        true => Fate::Arrives,
        false => Fate::AnswerLost,
    });
    let sum = engine.kv("test").increment("sum", 5).await.unwrap();
    assert_eq!((sum.value, sum.revision), (5.into(), 1));
    let results = engine.write(adds(5)).await.unwrap();
    assert_eq!((results[0].created, results[1].value.clone()), (true, Some(json!(10))));
    assert!(engine.kv("test").delete("sum").await.unwrap());
    assert!(!engine.kv("test").delete("sum").await.unwrap());
    assert_eq!(trail(&engine).await.len(), 4);
}

/// A workflow that adds 2 under an idempotency key.
fn counted() -> Definition {
    let input = json!({"namespace": "test", "key": "sum", "by": 2, "idempotency_key": "of all runs"});
    chain("counted", vec![call("store.increment", input, "sum")])
}

#[tokio::test]
async fn two_runs_with_one_key_write_once_and_share_the_result() {
    let engine = kit::start(|builder| builder.workflow(counted())).await.unwrap();
    let one = engine.start(Start::new("counted")).await.unwrap();
    engine.settle().await;
    engine.kv("test").increment("sum", 10).await.unwrap();
    let two = engine.start(Start::new("counted")).await.unwrap();
    engine.settle().await;
    let once = json!({"sum": {"value": 2, "revision": 1}});
    assert_eq!((context(&one).await, context(&two).await), (once.clone(), once.clone()));
    assert_eq!(sum(&engine).await, Some(json!(12)));
    // A write from outside with the same key is the same write.
    let outside = Changes::new().increment("test", "sum", Increment::by(2)).once("of all runs");
    let results = engine.write(outside).await.unwrap();
    assert_eq!((results[0].value.clone(), results[0].revision), (Some(json!(2)), 1));
    assert_eq!(sum(&engine).await, Some(json!(12)));
}

#[tokio::test]
async fn a_key_used_for_other_changes_fails_the_action() {
    let engine = kit::start(|builder| builder.workflow(counted())).await.unwrap();
    engine.write(Changes::new().set("test", "sum", 7).once("of all runs")).await.unwrap();
    let run = engine.start(Start::new("counted")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("keyReused")));
    assert_eq!(sum(&engine).await, Some(json!(7)));
}

#[tokio::test]
async fn a_run_writes_again_once_the_key_has_expired() {
    let engine = kit::start(|builder| builder.workflow(counted())).await.unwrap();
    for (revision, value) in [(1, 2), (2, 4)] {
        let run = engine.start(Start::new("counted")).await.unwrap();
        engine.settle().await;
        assert_eq!(context(&run).await, json!({"sum": {"value": value, "revision": revision}}));
        engine.advance(Duration::from_millis(DEFAULT_IDEMPOTENCY_KEY_TTL_MS)).await;
    }
}

type Results = Arc<Mutex<Vec<Option<Vec<OpResult>>>>>;

/// An action that writes under a key, waits at a gate, and records the result of the write.
fn writing(
    gate: &Gate,
    heard: &Results,
    before: fn(&Cx) -> Result<(), ActionError>,
) -> impl Fn(Cx) -> stepwell::host::BoxFuture<Result<(), ActionError>> + Send + Sync + use<> {
    let (gate, heard) = (gate.clone(), heard.clone());
    move |cx: Cx| {
        let (gate, heard) = (gate.clone(), heard.clone());
        Box::pin(async move {
            before(&cx)?;
            let once = cx.write_once(adds(5)).await?;
            heard.lock().unwrap().push(match once {
                Once::Staged(_) => None,
                Once::Before(results) => Some(results),
            });
            gate.pass().await;
            Ok(())
        })
    }
}

/// Two users import the same file at the same time.
#[tokio::test]
async fn concurrent_runs_with_one_key_write_once() {
    let (store, clock) = ground().await;
    let (gate, heard): (Gate, Results) = (Gate::new(), Arc::default());
    let build = || {
        let act = writing(&gate, &heard, |_| Ok(()));
        move |builder: Builder| builder.workflow(job(|work| work)).action("work", act)
    };
    let here = TestEngine::start_on(store.clone(), clock.clone(), build()).await.unwrap();
    let there = TestEngine::start_on(store, clock, build()).await.unwrap();
    let (one, two) =
        (here.start(Start::new("job")).await.unwrap(), there.start(Start::new("job")).await.unwrap());
    settle(&[&here, &there]).await;
    assert_eq!((gate.inside(), heard.lock().unwrap().as_slice()), (2, &[None, None][..]));
    gate.open(10);
    settle(&[&here, &there]).await;
    here.advance(Duration::from_secs(1)).await;
    settle(&[&here, &there]).await;
    assert_eq!((status(&one).await, status(&two).await), (Status::Completed, Status::Completed));
    assert_eq!(sum(&here).await, Some(json!(5)));
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 3, "one of them ran again");
    let results = heard[2].as_ref().unwrap();
    assert_eq!((results[0].created, results[1].value.clone()), (true, Some(json!(5))));
}

#[tokio::test]
async fn an_action_that_uses_a_key_twice_writes_once() {
    let act = |cx: Cx| async move {
        assert!(matches!(cx.write_once(adds(5)).await?, Once::Staged(ops) if ops.len() == 2));
        assert_eq!(cx.write_once(adds(5)).await?, Once::Staged(Vec::new()));
        let other = cx.write_once(adds(6)).await.unwrap_err();
        assert_eq!(other.failure().code, "keyReused");
        let refused = cx.stage_changes(adds(5)).unwrap_err();
        Ok::<_, ActionError>(refused.failure().code.clone())
    };
    let engine = kit::start(|builder| builder.workflow(job(|work| work)).action("work", act)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, sum(&engine).await), (Status::Completed, Some(json!(5))));
}

/// The result recorded under a key contains only its own changes, not others of the same commit.
#[tokio::test]
async fn results_under_a_key_contain_only_its_own_changes() {
    let (gate, heard): (Gate, Results) = (Gate::new(), Arc::default());
    gate.open(10);
    let other = |cx: &Cx| {
        let thing = |id: &str| Entity::new("other", id);
        cx.kv("test").increment("other", 100)?;
        cx.links("test").upsert(NewLink::new(thing("1"), thing("2")))
    };
    let act = writing(&gate, &heard, other);
    let engine = kit::start(|builder| builder.workflow(job(|work| work)).action("work", act)).await.unwrap();
    for _ in 0..2 {
        engine.start(Start::new("job")).await.unwrap();
        engine.settle().await;
    }
    let results = heard.lock().unwrap()[1].clone().unwrap();
    assert_eq!(results.len(), 2);
    assert_eq!((results[0].created, results[1].value.clone()), (true, Some(json!(5))), "{results:?}");
    assert_eq!(engine.write(adds(5)).await.unwrap(), results, "also from outside");
}
