//! A repeated request gets the same answer.

use futures_util::future::join_all;
use serde_json::json;
use stepwell::Start;
use stepwell::engine::Builder;
use stepwell::flow::{FlowError, Flows, Key, Resume};
use stepwell::store::{RunQuery, Status};
use stepwell::testing::TestEngine;

use super::{add, as_time_passes, begun, flows, go, handles, keep, next, nothing, ring, sum, three, walk};
use crate::kit::{self, Fate, Watched, eventually, ground, runs, soon};
use crate::world::Gate;

const BUSY: FlowError = FlowError::Busy { retry_after_ms: 1_000 };

fn office(builder: Builder) -> Builder {
    let builder = builder.action("nothing", nothing).action("keep", keep).action("add", add);
    let builder = builder.workflow(walk("count", &["add"; 4]).build().unwrap());
    builder.workflow(walk("form", &["keep"; 3]).build().unwrap())
}

/// E6: the same key gets the same answer with the same next token, and nothing runs twice.
#[tokio::test]
async fn the_same_key_gets_the_same_answer_with_the_same_token() {
    for strategy in ["sealed", "handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "count").await;
        let asks = Resume::new(&token).key("k");
        let first = soon(flows.resume(asks.clone())).await.unwrap();
        assert!(!first.is_replayed);
        for _ in 0..2 {
            let mut again = soon(flows.resume(asks.clone())).await.unwrap();
            assert!(std::mem::take(&mut again.is_replayed), "{strategy}");
            assert_eq!(again, first, "{strategy}");
        }
        assert_eq!(sum(&engine).await, json!(1), "{strategy}");
        assert_eq!(go(&flows, &token).await, Err(FlowError::Gone), "without the key the token is used up");
        let second = next(&flows, first.token.as_ref().unwrap()).await;
        next(&flows, &second).await;
    }
}

/// E6: a replayed answer stays the same after the flow has continued, and revives no used token.
#[tokio::test]
async fn a_replayed_answer_revives_no_used_token() {
    for strategy in ["sealed", "handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let flows = flows(&engine, strategy);
        let asks = Resume::new(begun(&flows, "count").await).key("k");
        let first = soon(flows.resume(asks.clone())).await.unwrap();
        let second = first.token.clone().unwrap();
        let third = next(&flows, &second).await;
        let again = soon(flows.resume(asks)).await.unwrap();
        assert_eq!((again.token.as_ref(), again.is_replayed), (Some(&second), true), "{strategy}");
        assert_eq!(flows.show(&second).await, Err(FlowError::Gone), "{strategy}: it was used");
        let used = go(&flows, &second).await;
        assert_eq!(used, Err(FlowError::Gone), "{strategy}: a used token stays used");
        assert_eq!(sum(&engine).await, json!(2), "{strategy}");
        next(&flows, &third).await;
    }
}

/// E6: the answer to the last step, which has no token, is stored too.
#[tokio::test]
async fn the_last_answer_of_a_flow_is_replayed() {
    for strategy in ["sealed", "handle", "durable"] {
        let build =
            |builder: Builder| builder.action("add", add).workflow(walk("one", &["add"]).build().unwrap());
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let asks = Resume::new(begun(&flows, "one").await).key("k");
        let first = soon(flows.resume(asks.clone())).await.unwrap();
        let again = soon(flows.resume(asks)).await.unwrap();
        assert_eq!((first.status, first.result.clone()), (Status::Completed, Some(json!({}))), "{strategy}");
        assert_eq!(
            (again.status, again.result, again.is_replayed),
            (first.status, first.result, true),
            "{strategy}"
        );
        assert_eq!(sum(&engine).await, json!(1), "{strategy}");
    }
}

/// E6: repeated starts with one key are one flow with one answer.
#[tokio::test]
async fn repeated_starts_with_one_key_are_one_flow() {
    for strategy in ["handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let flows = flows(&engine, strategy);
        let asks = || Start::new("count").input(&json!({"a": 1})).key("k");
        let first = soon(flows.start(asks())).await.unwrap();
        let mut again = soon(flows.start(asks())).await.unwrap();
        assert!(std::mem::take(&mut again.is_replayed), "{strategy}");
        assert_eq!(again, first, "{strategy}");
        assert_eq!(handles(&flows).await.len(), 1, "{strategy}");
        let other = Start::new("count").input(&json!({"a": 2})).key("k");
        assert_eq!(
            soon(flows.start(other)).await,
            Err(FlowError::KeyReused { key: "k".to_owned() }),
            "{strategy}"
        );
        assert_eq!(runs(&engine, RunQuery::default()).await.len(), usize::from(strategy == "durable"));
    }
}

/// E6: a key belongs to one request: another input, outcome or token is refused.
#[tokio::test]
async fn a_key_belongs_to_one_request() {
    for strategy in ["handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "form").await;
        let asks = Resume::new(&token).key("k").input(&json!({"a": 1}));
        let second = soon(flows.resume(asks)).await.unwrap().token.unwrap();
        let reused = Err(FlowError::KeyReused { key: "k".to_owned() });
        for other in [
            Resume::new(&token).key("k").input(&json!({"a": 2})),
            Resume::new(&token).key("k").input(&json!({"a": 1})).outcome("GO"),
            Resume::new(&second).key("k").input(&json!({"a": 1})),
        ] {
            assert_eq!(soon(flows.resume(other)).await, reused, "{strategy}");
        }
        assert_eq!(flows.show(&second).await.unwrap().waits[0].place, "p1", "nothing has happened");
    }
}

/// E6, E9: invalid input does not consume the key: the next request may use it.
#[tokio::test]
async fn an_invalid_input_does_not_consume_the_key() {
    let build = |builder: Builder| {
        builder.workflow(super::login()).action("check", super::check).action("verify", super::verify)
    };
    for strategy in ["sealed", "handle", "durable"] {
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "login").await;
        let wrong = Resume::new(&token).key("k").input(&json!({"user": "ann"}));
        assert_eq!(soon(flows.resume(wrong)).await.unwrap().errors.len(), 1);
        let right = Resume::new(&token).key("k").input(&json!({"user": "ann", "password": "secret"}));
        assert_eq!(soon(flows.resume(right)).await.unwrap().waits[0].place, "code");
    }
}

/// E6: while a request is being processed, any request with the same key is told to retry.
#[tokio::test]
async fn a_key_is_busy_while_its_request_is_processed() {
    for strategy in ["sealed", "handle"] {
        let gate = Gate::new();
        let workflow = walk("slow", &["wait", "nothing"]).build().unwrap();
        let build = |builder: Builder| office(builder).workflow(workflow).action("wait", gate.action());
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let asks = Resume::new(begun(&flows, "slow").await).key("k");
        let first = tokio::spawn({
            let (flows, asks) = (flows.clone(), asks.clone());
            async move { flows.resume(asks).await }
        });
        eventually(async || gate.inside() == 1).await;
        assert_eq!(soon(flows.resume(asks.clone())).await, Err(BUSY), "{strategy}");
        assert_eq!(soon(flows.start(Start::new("count").key("k"))).await, Err(BUSY), "{strategy}");
        gate.open(10);
        let first = soon(first).await.unwrap().unwrap();
        assert_eq!(first.waits[0].place, "p1");
        if strategy == "handle" {
            assert_eq!(soon(flows.resume(asks)).await.unwrap().token, first.token);
        }
    }
}

/// E6: one of many processes handles a concurrent request, and all answers are equal.
#[tokio::test]
async fn the_same_request_to_two_processes_is_handled_once() {
    for strategy in ["sealed", "handle", "durable"] {
        let (store, clock) = ground().await;
        let one = TestEngine::start_on(store.clone(), clock.clone(), office).await.unwrap();
        let two = TestEngine::start_on(store, clock.clone(), office).await.unwrap();
        let here = flows(&one, strategy);
        let there = same_keys(&two, &here, strategy);
        let asks = Resume::new(begun(&here, "count").await).key("k");
        let all = join_all([&here, &there].map(|flows| flows.resume(asks.clone())));
        let all = as_time_passes(&clock, all).await;
        let mut tokens: Vec<_> = all.iter().flatten().map(|answer| answer.token.clone()).collect();
        tokens.dedup();
        assert_eq!(tokens.len(), 1, "{strategy}: {all:?}");
        assert!(all.iter().all(|answer| answer.is_ok() || *answer == Err(BUSY)), "{strategy}: {all:?}");
        assert_eq!(sum(&one).await, json!(1), "{strategy}");
        let late = soon(there.resume(asks)).await.unwrap();
        assert_eq!((late.token, late.is_replayed), (tokens[0].clone(), true), "{strategy}");
    }
}

fn same_keys(engine: &TestEngine, other: &Flows, begin: &str) -> Flows {
    use stepwell::flow::{Durable, Handle, Sealed};
    let flows = Flows::builder(engine, other.keys().clone())
        .strategy("sealed", Sealed::new())
        .strategy("handle", Handle::new())
        .strategy("durable", Durable::new());
    flows.default_strategy(begin).build().unwrap()
}

/// E6: another process handles the request between the lookup of the answer and of the handle.
#[tokio::test]
async fn a_request_answered_meanwhile_gets_that_answer() {
    for strategy in ["handle", "durable"] {
        let (store, clock) = ground().await;
        let late = Watched::new(store.clone());
        let one = TestEngine::start_on(late.clone(), clock.clone(), office).await.unwrap();
        let two = TestEngine::start_on(store, clock.clone(), office).await.unwrap();
        let here = flows(&one, strategy);
        let there = same_keys(&two, &here, strategy);
        let asks = Resume::new(begun(&here, "count").await).key("k");
        let theirs = asks.clone();
        late.after_key(async move { drop(there.resume(theirs).await.unwrap()) });
        let answer = as_time_passes(&clock, here.resume(asks)).await.unwrap();
        assert!(answer.is_replayed, "{strategy}");
        assert_eq!(sum(&one).await, json!(1), "{strategy}");
        next(&here, &answer.token.unwrap()).await;
    }
}

/// E6: neither client nor engine received the answer: a repeated request returns it.
#[tokio::test]
async fn an_answer_that_was_lost_is_replayed() {
    for strategy in ["sealed", "handle", "durable"] {
        let (store, clock) = ground().await;
        let watched = Watched::new(store);
        let engine = TestEngine::start_on(watched.clone(), clock, office).await.unwrap();
        let flows = flows(&engine, strategy);
        let asks = Resume::new(begun(&flows, "count").await).key("k");
        watched.rule(|_| Fate::AnswerLost);
        let first = as_time_passes(engine.clock(), flows.resume(asks.clone())).await.unwrap();
        let again = as_time_passes(engine.clock(), flows.resume(asks)).await.unwrap();
        assert_eq!((again.token, again.is_replayed), (first.token, true), "{strategy}");
        assert_eq!(sum(&engine).await, json!(1), "{strategy}");
    }
}

/// E6: answers are stored under the key ring: when the key is revoked, they are unreadable.
#[tokio::test]
async fn revoking_a_key_makes_stored_answers_unreadable() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let asks = Resume::new(begun(&flows, "count").await).key("k");
    let first = soon(flows.resume(asks.clone())).await.unwrap();
    flows.keys().rotate(Key::generate("newer").unwrap()).unwrap();
    assert_eq!(soon(flows.resume(asks.clone())).await.unwrap().token, first.token);
    flows.keys().revoke("test").unwrap();
    assert_eq!(soon(flows.resume(asks)).await, Err(FlowError::Gone));
    next(&flows, &first.token.unwrap()).await;
}

/// E6: keys are scoped to a tenant.
#[tokio::test]
async fn flow_keys_are_scoped_to_a_tenant() {
    let engine = kit::start(office).await.unwrap();
    let ours = three(&engine).default_strategy("handle").build().unwrap();
    let theirs = ours.for_tenant(kit::other_tenant());
    for flows in [&ours, &theirs] {
        let answer = soon(flows.resume(Resume::new(begun(flows, "count").await).key("k"))).await.unwrap();
        assert!(!answer.is_replayed);
    }
}

/// E6: an answer is stored as long as idempotency keys are.
#[tokio::test]
async fn answers_are_kept_as_long_as_keys() {
    let build = |builder: Builder| office(builder).with(|options| options.idempotency_key_ttl_ms = 60_000);
    let engine = kit::start(build).await.unwrap();
    let flows = Flows::builder(&engine, ring()).only(stepwell::flow::Handle::new()).build().unwrap();
    let asks = Resume::new(begun(&flows, "count").await).key("k");
    soon(flows.resume(asks.clone())).await.unwrap();
    engine.clock().set(engine.now().plus_ms(59_999));
    assert!(soon(flows.resume(asks.clone())).await.unwrap().is_replayed);
    engine.clock().set(engine.now().plus_ms(1));
    assert_eq!(soon(flows.resume(asks)).await, Err(FlowError::Gone));
    assert_eq!(sum(&engine).await, json!(1));
}
