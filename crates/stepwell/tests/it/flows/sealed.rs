//! Sealed tokens: the token is the state, no row is stored for it, it cannot be changed, and its writes happen once.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::core::spec::{ChildRule, Place, Transition, Wait};
use stepwell::core::{Definition, Limits, Spec};
use stepwell::engine::Builder;
use stepwell::flow::{Durable, FlowError, Flows, Handle, Key, KeyRing, Resume, Sealed};
use stepwell::store::{RunQuery, Status};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Start};

use super::{add, begin, begun, flows, go, handles, keep, next, nothing, ring, sum, three, walk};
use crate::kit::{self, Watched, ground, other_tenant, runs, soon, store_within};

/// Flows whose only strategy is this sealed one.
fn only(engine: &TestEngine, sealed: Sealed) -> Flows {
    Flows::builder(engine, ring()).only(sealed).build().unwrap()
}

fn office(builder: Builder) -> Builder {
    let builder = builder.action("nothing", nothing).action("keep", keep).action("add", add);
    let builder = builder.workflow(walk("quiet", &["nothing", "nothing"]).build().unwrap());
    let builder = builder.workflow(walk("form", &["keep", "keep", "keep"]).build().unwrap());
    builder.workflow(walk("count", &["add", "nothing"]).build().unwrap())
}

/// E1: a sealed flow leaves no row at all, from its start to its end.
#[tokio::test]
async fn nothing_is_written_for_a_sealed_flow() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let engine = TestEngine::start_on(watched.clone(), clock, office).await.unwrap();
    let flows = flows(&engine, "sealed");
    watched.commits();
    let token = begun(&flows, "form").await;
    let token = next(&flows, &token).await;
    let ended = go(&flows, &next(&flows, &token).await).await.unwrap();
    assert_eq!((ended.status, ended.strategy, ended.expires_at), (Status::Completed, None, None));
    engine.settle().await;
    assert_eq!((watched.commits(), watched.loads()), (vec![], 0));
    assert_eq!((runs(&engine, RunQuery::default()).await, handles(&flows).await), (vec![], vec![]));
}

/// E1: a token with any byte changed, removed or added is refused.
#[tokio::test]
async fn a_changed_sealed_token_is_invalid() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "sealed");
    let token = begun(&flows, "quiet").await;
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut changed =
        vec![format!("{token}."), format!("{token}A"), format!(" {token}"), format!("{token}=")];
    for at in 0..token.len() {
        changed.push(token[..at].to_owned());
        let place = letters.iter().position(|letter| *letter == token.as_bytes()[at]);
        // The lowest bits of the last letter may carry no data; they are still part of the token.
        for bit in [1, 2, 4, 32] {
            let other = place.map_or(b'A', |place| letters[place ^ bit]);
            let mut bytes = token.clone().into_bytes();
            bytes[at] = other;
            changed.push(String::from_utf8(bytes).unwrap());
        }
    }
    let shown = soon(join_all(changed.iter().map(|token| flows.show(token)))).await;
    for (token, shown) in changed.iter().zip(shown) {
        assert_eq!(shown, Err(FlowError::Gone), "{token}");
    }
    let resumed = soon(join_all(changed.iter().map(|token| flows.resume(Resume::new(token))))).await;
    assert!(resumed.iter().all(|answer| *answer == Err(FlowError::Gone)));
    go(&flows, &token).await.unwrap();
}

/// E1: several keys open tokens and one seals; tokens sealed under a revoked key are invalid.
#[tokio::test]
async fn tokens_sealed_under_a_revoked_key_are_invalid() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "sealed");
    let old = begun(&flows, "quiet").await;
    flows.keys().rotate(Key::generate("newer").unwrap()).unwrap();
    let new = next(&flows, &old).await;
    flows.show(&old).await.unwrap();
    flows.keys().revoke("test").unwrap();
    assert_eq!(go(&flows, &old).await, Err(FlowError::Gone));
    assert_eq!(flows.show(&old).await, Err(FlowError::Gone));
    assert_eq!(go(&flows, &new).await.unwrap().status, Status::Completed);
}

/// E1: a process with another process's key opens its tokens, and without the key it does not.
#[tokio::test]
async fn another_process_opens_a_token_if_it_has_the_key() {
    let (store, clock) = ground().await;
    let engine = TestEngine::start_on(store.clone(), clock.clone(), office).await.unwrap();
    let other = TestEngine::start_on(store, clock, office).await.unwrap();
    let key = Key::generate("ours").unwrap();
    let first = Flows::builder(&engine, KeyRing::new(key.clone())).only(Sealed::new()).build().unwrap();
    let second = only(&other, Sealed::new());
    let token = begun(&first, "quiet").await;
    assert_eq!(go(&second, &token).await, Err(FlowError::Gone));
    second.keys().accept(key).unwrap();
    let token = next(&second, &token).await;
    assert_eq!(go(&first, &token).await, Err(FlowError::Gone), "sealed under the second process's key");
    assert_eq!(go(&second, &token).await.unwrap().status, Status::Completed);
}

fn with_timer() -> Definition {
    let late = Transition::new("give_up", "open", "late").after_ms(1_000);
    let spec = Spec::new("timed").signal("GO").step("open").end("done").end("late").transition(late);
    spec.on_signal("go", "open", "GO", "done").build().unwrap()
}

fn with_children() -> Definition {
    let below = Place::Wait(Wait { children: Some(ChildRule::All), ..Wait::default() });
    let begin = Transition::new("begin", "open", "below").action("nothing");
    let spec = Spec::new("family").step("open").place("below", below).end("done").transition(begin);
    spec.auto("on", "below", "done").build().unwrap()
}

fn with_retries() -> Definition {
    let retry = Retry { attempts: 3, ..Retry::default() };
    let work = Transition::new("work", "open", "done").action("nothing").retry(retry);
    Spec::new("stubborn").step("open").end("done").transition(work).build().unwrap()
}

/// E1: a step that needs work during a pause is refused by name when flows are built and when a workflow is registered.
/// As a durable run, or outside of flows, the workflow is accepted.
#[tokio::test]
async fn a_workflow_that_needs_a_durable_run_is_refused() {
    let cases = [
        (with_timer(), "a timer at transition `give_up`"),
        (with_children(), "children at place `below`"),
        (with_retries(), "retries at transition `work`"),
    ];
    for (definition, says) in cases {
        let name = definition.name().as_str();
        let build = |builder: Builder| office(builder).workflow(definition.clone());
        let engine = kit::start(build).await.unwrap();
        for strategy in ["sealed", "handle"] {
            let error = three(&engine).default_strategy(strategy).build().unwrap_err().to_string();
            assert!(error.contains(says) && error.contains(name) && error.contains(strategy), "{error}");
        }
        let blocked = three(&engine).default_strategy("sealed").block([name]).build().unwrap();
        let refused = soon(blocked.start(Start::new(name))).await;
        assert_eq!(refused, Err(FlowError::NotAllowed(name.into())));

        let engine = kit::start(office).await.unwrap();
        let by_name =
            |workflow: &stepwell::core::Name| if workflow == "quiet" { "sealed" } else { "durable" };
        three(&engine).choose_strategy(by_name).build().unwrap();
        engine.register(definition.clone()).unwrap();

        let engine = kit::start(office).await.unwrap();
        flows(&engine, "sealed");
        let error = engine.register(definition.clone()).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains(name), "{error}");
    }
}

/// E1: writes and the record that the token was used are one commit, so they happen once.
#[tokio::test]
async fn a_token_used_twice_writes_once() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "sealed");
    let token = begun(&flows, "count").await;
    let second = next(&flows, &token).await;
    assert_eq!(go(&flows, &token).await, Err(FlowError::Gone));
    assert_eq!(sum(&engine).await, json!(1));
    assert_eq!(go(&flows, &second).await.unwrap().status, Status::Completed);
}

/// E1: the same with many concurrent uses.
#[tokio::test]
async fn concurrent_uses_of_a_token_write_once() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "sealed");
    let token = begun(&flows, "count").await;
    let all = soon(join_all((0..12).map(|_| flows.resume(Resume::new(&token))))).await;
    assert_eq!(all.iter().filter(|answer| answer.is_ok()).count(), 1, "{all:?}");
    assert!(all.iter().all(|answer| answer.is_ok() || *answer == Err(FlowError::Gone)), "{all:?}");
    assert_eq!(sum(&engine).await, json!(1));
}

/// E1: two tokens for one pause, made by answering the previous pause twice, write once. That holds even when the first
/// has expired before the second is used.
#[tokio::test]
async fn a_pause_with_two_tokens_is_answered_once() {
    let workflow = walk("late", &["nothing", "add", "nothing"]).build().unwrap();
    let engine = kit::start(|builder| office(builder).workflow(workflow)).await.unwrap();
    let flows = only(&engine, Sealed::new().ttl(Duration::from_secs(60)));
    let first = begun(&flows, "late").await;
    let early = next(&flows, &first).await;
    engine.advance(Duration::from_secs(50)).await;
    let late = next(&flows, &first).await;
    go(&flows, &early).await.unwrap();
    assert_eq!(go(&flows, &late).await, Err(FlowError::Gone));
    engine.advance(Duration::from_secs(30)).await;
    assert_eq!(
        go(&flows, &late).await,
        Err(FlowError::Gone),
        "the record must outlive every token of the pause"
    );
    assert_eq!(sum(&engine).await, json!(1));
}

/// E1, E8: a step without writes can be repeated until its token expires, to the exact instant.
#[tokio::test]
async fn a_step_without_writes_repeats_until_its_token_expires() {
    let engine = kit::start(office).await.unwrap();
    let flows = only(&engine, Sealed::new().ttl(Duration::from_secs(60)));
    let begun = begin(&flows, "form").await;
    let token = begun.token.unwrap();
    assert_eq!(begun.expires_at, Some(engine.now().plus_ms(60_000)));
    for at in [0, 30_000, 29_999] {
        engine.clock().set(engine.now().plus_ms(at));
        go(&flows, &token).await.unwrap();
        flows.show(&token).await.unwrap();
    }
    engine.clock().set(engine.now().plus_ms(1));
    assert_eq!(go(&flows, &token).await, Err(FlowError::Gone));
    assert_eq!(flows.show(&token).await, Err(FlowError::Gone));
}

/// E1: with replay protection a step without writes also consumes its token, even with many concurrent uses.
#[tokio::test]
async fn replay_protection_allows_one_use_of_a_token() {
    let engine = kit::start(office).await.unwrap();
    let flows = only(&engine, Sealed::new().once());
    let token = begun(&flows, "quiet").await;
    let all = soon(join_all((0..12).map(|_| flows.resume(Resume::new(&token))))).await;
    assert_eq!(all.iter().filter(|answer| answer.is_ok()).count(), 1, "{all:?}");
    assert!(all.iter().all(|answer| answer.is_ok() || *answer == Err(FlowError::Gone)), "{all:?}");
    let again = (go(&flows, &token).await, flows.show(&token).await);
    assert_eq!(again, (Err(FlowError::Gone), Err(FlowError::Gone)));
    let second = all.into_iter().find_map(Result::ok).unwrap().token.unwrap();
    assert_eq!(go(&flows, &second).await.unwrap().status, Status::Completed);
    assert_eq!(go(&flows, &second).await, Err(FlowError::Gone), "the last one too");
}

/// E1: the state is unchanged after sealing and opening, compressed or not.
#[tokio::test]
async fn a_state_survives_sealing_compressed_or_not() {
    let given = json!({"text": "again and again ".repeat(200), "odd": "\u{1f9f5}\n\"\\\u{0}", "n": -0.5});
    let mut lengths = Vec::new();
    for compresses in [true, false] {
        let engine = kit::start(office).await.unwrap();
        let flows = only(&engine, Sealed::new().compressed(compresses));
        let token = begun(&flows, "form").await;
        let token = soon(flows.resume(Resume::new(token).input(&given))).await.unwrap().token.unwrap();
        lengths.push(token.len());
        let ended = go(&flows, &next(&flows, &token).await).await.unwrap();
        assert_eq!(ended.result, Some(given.clone()));
    }
    assert!(lengths[0] * 3 < lengths[1], "{lengths:?}");
}

/// E1: a state too large for a token is an error, and the flow is where it was.
#[tokio::test]
async fn a_state_too_large_for_a_token_is_an_error() {
    let limits = Limits { token_bytes: 2_000, ..Limits::default() };
    let (store, clock) = (store_within(limits.clone()).await, ground().await.1);
    let build = |builder: Builder| office(builder).with(|options| options.limits = limits);
    let engine = TestEngine::start_on(store, clock, build).await.unwrap();
    let flows = only(&engine, Sealed::new().compressed(false));
    let token = begun(&flows, "form").await;
    let large = Resume::new(&token).input(&json!({"text": "x".repeat(2_000)}));
    let error = soon(flows.resume(large)).await.unwrap_err().to_string();
    assert!(error.contains("sealed token") && error.contains("2000"), "{error}");
    assert_eq!(flows.show(&token).await.unwrap().waits[0].place, "p0");
    let small = Resume::new(&token).input(&json!({"text": "x"}));
    assert_eq!(soon(flows.resume(small)).await.unwrap().waits[0].place, "p1");
}

/// E1: the same for a step that writes: nothing is written, and the token is not consumed.
#[tokio::test]
async fn a_step_whose_state_is_too_large_for_a_token_writes_nothing() {
    let limits = Limits { token_bytes: 2_000, ..Limits::default() };
    let (store, clock) = (store_within(limits.clone()).await, ground().await.1);
    let both = |cx: Cx| async move {
        add(cx.clone()).await?;
        keep(cx).await
    };
    let workflow = walk("both", &["both", "keep"]).build().unwrap();
    let build = |builder: Builder| {
        let builder = office(builder).workflow(workflow).action("both", both);
        builder.with(|options| options.limits = limits)
    };
    let engine = TestEngine::start_on(store, clock, build).await.unwrap();
    let flows = only(&engine, Sealed::new().compressed(false));
    let token = begun(&flows, "both").await;
    let large = Resume::new(&token).input(&json!({"text": "x".repeat(2_000)}));
    soon(flows.resume(large)).await.unwrap_err();
    assert_eq!(sum(&engine).await, Value::Null);
    go(&flows, &token).await.unwrap();
    assert_eq!(sum(&engine).await, json!(1));
}

/// E1, E7: a token is bound to its tenant and to the name of its strategy.
#[tokio::test]
async fn a_token_is_bound_to_its_tenant_and_strategy() {
    let engine = kit::start(office).await.unwrap();
    let flows = Flows::builder(&engine, ring())
        .strategy("a", Sealed::new())
        .strategy("b", Sealed::new())
        .strategy("h", Handle::new())
        .strategy("d", Durable::new())
        .default_strategy("a");
    let flows = flows.build().unwrap();
    let token = begun(&flows, "quiet").await;
    let raw = token.strip_prefix("a.").unwrap();
    for name in ["b", "h", "d", "watch", "c", ""] {
        assert_eq!(go(&flows, &format!("{name}.{raw}")).await, Err(FlowError::Gone), "{name}");
    }
    let theirs = flows.for_tenant(other_tenant());
    assert_eq!(go(&theirs, &token).await, Err(FlowError::Gone));
    assert_eq!(theirs.show(&token).await, Err(FlowError::Gone));
    assert_eq!(theirs.of_token(&token).show(&token).await.unwrap().status, Status::Waiting);
    go(&flows, &token).await.unwrap();
}

/// E1: a token continues with the workflow version it was started with.
#[tokio::test]
async fn a_token_continues_with_its_own_workflow_version() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "sealed");
    let token = begun(&flows, "quiet").await;
    let newer = walk("quiet", &["nothing"]).version(2).build().unwrap();
    engine.register(newer).unwrap();
    assert_eq!(begin(&flows, "quiet").await.waits[0].place, "p0");
    let second = go(&flows, &token).await.unwrap();
    assert_eq!(second.waits[0].place, "p1");
    assert_eq!(go(&flows, &second.token.unwrap()).await.unwrap().status, Status::Completed);
}

/// E1: a failing step returns its error, and the token stays valid.
#[tokio::test]
async fn a_failing_step_keeps_the_token_valid() {
    let fails = |_: Cx| async { Err::<(), _>(ActionError::new("broken", "it is broken")) };
    let workflow = walk("broken", &["fails"]).build().unwrap();
    let build = |builder: Builder| builder.workflow(workflow).action("fails", fails);
    let engine = kit::start(build).await.unwrap();
    let flows = flows(&engine, "sealed");
    let token = begun(&flows, "broken").await;
    for _ in 0..2 {
        let Err(FlowError::Failed(failure)) = go(&flows, &token).await else { panic!("the step must fail") };
        assert_eq!((failure.code.as_str(), failure.message.as_str()), ("broken", "it is broken"));
    }
    assert_eq!(flows.show(&token).await.unwrap().waits[0].place, "p0");
}
