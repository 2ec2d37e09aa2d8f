//! Results that are predicted before the commit, and regressions at the edges of the data store.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use stepwell::core::Spec;
use stepwell::core::spec::{Transition, TransitionTrigger};
use stepwell::data::{Changes, Increment};
use stepwell::engine::Builder;
use stepwell::store::{CellKey, CellOp, CellWrite, Fault, Faulty, Precondition, ResultPart, Space, Status};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Op, Start};

use super::{DAY, call};
use crate::kit::{self, context, error_code, ground, soon, status};
use crate::world::job_spec;

/// A state that does not match its schema is never written, because the run could not be loaded again.
#[tokio::test]
async fn a_write_result_must_match_the_context_schema() {
    let value = json!({"type": "object", "properties": {"value": {"type": "integer", "maximum": 2}}});
    let schema = json!({"type": "object", "properties": {"visit": value}});
    let count = call("store.increment", json!({"namespace": "n", "key": "visitors"}), "visit");
    let definition = Spec::new("limited")
        .step("a")
        .wait("b", "GO")
        .end("c")
        .signal("GO")
        .context_schema(schema)
        .transition(Transition::new("count", "a", "b").action_with(count))
        .auto("end", "b", "c")
        .build()
        .unwrap();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    engine.kv("n").set("visitors", 1).await.unwrap();
    let fits = engine.start(Start::new("limited")).await.unwrap();
    engine.settle().await;
    assert_eq!(
        (status(&fits).await, context(&fits).await["visit"]["value"].clone()),
        (Status::Waiting, json!(2))
    );
    let unfit = engine.start(Start::new("limited")).await.unwrap();
    engine.settle().await;
    let view = unfit.view().await.expect("the run can be read");
    assert_eq!(view.status, Status::Failed);
    assert_eq!(error_code(&unfit).await.as_deref(), Some("invalidResult"));
    assert_eq!(engine.kv("n").get("visitors").await.unwrap().unwrap().value, json!(2), "nothing is written");
}

#[tokio::test]
async fn a_timer_of_the_next_place_reads_a_write_result() {
    let take = |cx: Cx| async move {
        let key = CellKey { space: Space::Workflow, owner: "visit".to_owned(), key: "queue".to_owned() };
        let op = CellOp::RemoveFirst;
        cx.write(CellWrite { key, op, expect: Precondition::Anything, initial: None, by: None })?;
        cx.bind_result(Op::Cell(0), ResultPart::Value, "/at")?;
        Ok::<_, ActionError>(json!({"at": null}))
    };
    let definition = Spec::new("visit")
        .step("a")
        .step("b")
        .end("c")
        .transition(Transition::new("take", "a", "b").action_with(call("take", Value::Null, "next")))
        .transition(
            Transition::new("ring", "b", "c").on(TransitionTrigger::Until("context.next.at".to_owned())),
        )
        .build()
        .unwrap();
    let build = |builder: Builder| builder.workflow(definition).action("take", take);
    let engine = kit::start(build).await.unwrap();
    engine.state().workflow::<Value>("visit", "queue").append("2026-01-01T00:01:00Z").await.unwrap();
    let run = engine.start(Start::new("visit")).await.unwrap();
    engine.advance(Duration::from_secs(59)).await;
    assert_eq!((status(&run).await, error_code(&run).await), (Status::Waiting, None));
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn a_watcher_sees_a_write_after_the_tombstone_expired() {
    let kept = |builder: Builder| {
        builder.with(|options| options.tombstone_retention_ms.extend([("n".to_owned(), 86_400_000)]))
    };
    let engine = kit::start(kept).await.unwrap();
    let kv = engine.kv("n");
    kv.set("a", 1).await.unwrap();
    kv.set("a", 2).await.unwrap();
    let mut seen = Box::pin(kv.watch("a").unwrap());
    assert_eq!(soon(seen.next()).await.unwrap().unwrap().value, Some(json!(2)));
    kv.delete("a").await.unwrap();
    assert_eq!(soon(seen.next()).await.unwrap().unwrap().value, None);
    engine.advance(4 * DAY).await;
    assert_eq!(kv.set("a", 9).await.unwrap().revision, 1, "the key counts as never written");
    assert_eq!(soon(seen.next()).await.unwrap().unwrap().value, Some(json!(9)));
}

#[tokio::test]
async fn a_prediction_waits_for_an_unavailable_store() {
    let (inner, clock) = ground().await;
    let store = Arc::new(Faulty::new(inner, []));
    let faulty = store.clone();
    let act = move |cx: Cx| {
        let faulty = faulty.clone();
        async move {
            let ops = cx.stage_changes(Changes::new().increment("n", "sum", Increment::by(1)))?;
            cx.bind_result(ops[0], ResultPart::Value, "/value")?;
            faulty.then(Fault::Before);
            Ok::<_, ActionError>(json!({"value": 0}))
        }
    };
    let spec = job_spec(|transition| transition.action_with(call("work", Value::Null, "out")));
    let build = |builder: Builder| builder.workflow(spec.build().unwrap()).action("work", act);
    let engine = TestEngine::start_on(store, clock, build).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_secs(10)).await;
    assert_eq!((status(&run).await, error_code(&run).await), (Status::Completed, None));
    assert_eq!(context(&run).await, json!({"out": {"value": 1}}));
}

#[tokio::test]
async fn amounts_at_the_64_bit_limits_can_be_subtracted() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let slot = engine.state().workflow::<Value>("w", "a");
    assert_eq!(slot.decrement(9_223_372_036_854_775_808_u64).await.unwrap(), json!(i64::MIN));
    slot.set(&json!(-1)).await.unwrap();
    assert_eq!(slot.decrement(i64::MIN).await.unwrap(), json!(i64::MAX));
}
