//! Durable runs as flows: their tokens are links, each to one wait.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use stepwell::core::spec::{Place, Quorum, Transition, Wait};
use stepwell::core::{Definition, RunId, Spec};
use stepwell::engine::Builder;
use stepwell::flow::{FlowError, Flows, LinkTo, Resume};
use stepwell::store::{HandleKind, RunQuery, Status};
use stepwell::testing::TestEngine;
use stepwell::{Cx, Signal, Start};

use super::{
    add, as_time_passes, begin, begun, flows, go, handles, keep, next, nothing, ring, sum, three, walk,
};
use crate::kit::{self, ground, other_tenant, runs, soon};

/// Somebody says yes or no, then somebody else does.
fn review() -> Definition {
    let step = |id: &str, from: &str, signal: &str, to: &str| Transition::new(id, from, to).on_signal(signal);
    Spec::new("review")
        .signal("YES")
        .signal("NO")
        .step("first")
        .step("second")
        .end("yes")
        .end("no")
        .transition(step("a", "first", "YES", "second").action("keep"))
        .transition(step("b", "first", "NO", "no"))
        .transition(step("c", "second", "YES", "yes"))
        .transition(step("d", "second", "NO", "no"))
        .build()
        .unwrap()
}

/// Two who are asked the same at the same time.
fn both(wait: impl Fn(&str) -> Place) -> Definition {
    Spec::new("both")
        .signal("OK")
        .fork("ask", ["left", "right"])
        .place("left", wait("left"))
        .place("right", wait("right"))
        .join("asked", Quorum::All, ["left", "right"])
        .end("done")
        .auto("l", "left", "asked")
        .auto("r", "right", "asked")
        .auto("end", "asked", "done")
        .build()
        .unwrap()
}

fn office(builder: Builder) -> Builder {
    let builder = builder.action("keep", keep).action("nothing", nothing).action("add", add);
    let wait = |_: &str| Place::Wait(Wait { signal: Some("OK".into()), ..Wait::default() });
    builder.workflow(review()).workflow(both(wait)).workflow(walk("count", &["add"; 3]).build().unwrap())
}

async fn here() -> (TestEngine, Flows) {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "durable");
    (engine, flows)
}

async fn answer(flows: &Flows, token: &str, outcome: &str) -> Result<stepwell::flow::Answer, FlowError> {
    soon(flows.resume(Resume::new(token).outcome(outcome))).await
}

async fn started(engine: &TestEngine, workflow: &str) -> RunId {
    let run = engine.start(Start::new(workflow).input(&json!({}))).await.unwrap();
    engine.settle().await;
    run.id()
}

/// E6: start, token, resume, next token, end; the links that were used are gone.
#[tokio::test]
async fn a_durable_run_goes_from_link_to_link() {
    let (engine, flows) = here().await;
    let begun = begin(&flows, "review").await;
    assert_eq!((begun.status, begun.rests.as_deref()), (Status::Waiting, Some("durable")));
    let first = begun.token.unwrap();
    let [row] = &handles(&flows).await[..] else { panic!("there is one link") };
    assert_eq!((row.kind, row.run), (HandleKind::Link, begun.flow));
    let second = answer(&flows, &first, "YES").await.unwrap();
    assert_eq!((second.flow, second.waits[0].place.as_str()), (begun.flow, "second"));
    assert_eq!(answer(&flows, &first, "YES").await, Err(FlowError::Gone));
    let ended = answer(&flows, &second.token.unwrap(), "YES").await.unwrap();
    assert_eq!((ended.status, ended.token, ended.rests), (Status::Completed, None, None));
    assert_eq!(handles(&flows).await, []);
    assert_eq!(engine.run(begun.flow).view().await.unwrap().status, Status::Completed);
}

/// E7: a link takes only the outcomes that it was made for, and shows no others.
#[tokio::test]
async fn a_link_takes_only_the_outcomes_that_it_was_made_for() {
    let (engine, flows) = here().await;
    let run = started(&engine, "review").await;
    let yes = soon(flows.link(LinkTo::new(run).outcome("YES"))).await.unwrap();
    assert_eq!(flows.show(&yes).await.unwrap().waits[0].outcomes, ["YES"]);
    let no = answer(&flows, &yes, "NO").await;
    assert_eq!(no, Err(FlowError::Outcome { given: Some("NO".to_owned()), outcomes: vec!["YES".into()] }));
    // The only one it has needs no name.
    assert_eq!(go(&flows, &yes).await.unwrap().waits[0].place, "second");
    let open = soon(flows.link(LinkTo::new(run))).await.unwrap();
    let unsaid = go(&flows, &open).await;
    assert_eq!(unsaid, Err(FlowError::Outcome { given: None, outcomes: vec!["NO".into(), "YES".into()] }));
    let unknown = soon(flows.link(LinkTo::new(run).outcome("MAYBE"))).await;
    assert!(matches!(unknown, Err(FlowError::Outcome { .. })), "{unknown:?}");
}

/// E7: a link is bound to its wait: when that was answered by a signal it is gone, and it does not answer the next one.
#[tokio::test]
async fn a_link_is_gone_when_its_wait_was_answered_otherwise() {
    let (engine, flows) = here().await;
    let run = started(&engine, "review").await;
    let link = soon(flows.link(LinkTo::new(run))).await.unwrap();
    engine.run(run).signal(Signal::new("YES")).await.unwrap();
    engine.settle().await;
    assert_eq!(engine.run(run).view().await.unwrap().snapshot.current_places(), ["second"]);
    assert_eq!(answer(&flows, &link, "YES").await, Err(FlowError::Gone));
    assert_eq!(flows.show(&link).await, Err(FlowError::Gone));
    assert_eq!(engine.run(run).view().await.unwrap().snapshot.current_places(), ["second"]);
}

/// E7: of two waits for the same signal each link answers its own, whichever kind of place waits.
#[tokio::test]
async fn a_link_answers_its_own_wait_of_two_that_take_the_same() {
    let (engine, flows) = here().await;
    let run = started(&engine, "both").await;
    let unclear = soon(flows.link(LinkTo::new(run))).await.unwrap_err().to_string();
    assert!(unclear.contains("`left`") && unclear.contains("`right`"), "{unclear}");
    let right = soon(flows.link(LinkTo::new(run).place("right"))).await.unwrap();
    let left = soon(flows.link(LinkTo::new(run).place("left"))).await.unwrap();
    assert_eq!(flows.show(&right).await.unwrap().waits[0].place, "right");
    go(&flows, &right).await.unwrap();
    let places = engine.run(run).view().await.unwrap().snapshot.current_places();
    assert!(places.contains(&"left".into()) && !places.contains(&"right".into()), "{places:?}");
    assert_eq!(go(&flows, &right).await, Err(FlowError::Gone));
    assert_eq!(go(&flows, &left).await.unwrap().status, Status::Completed);
}

/// E7: the same where the two places are steps that a signal leads out of.
#[tokio::test]
async fn a_link_answers_its_own_step_of_two_that_take_the_same() {
    let steps = Spec::new("steps")
        .signal("OK")
        .fork("ask", ["left", "right"])
        .step("left")
        .step("right")
        .join("asked", Quorum::All, ["left", "right"])
        .end("done")
        .transition(Transition::new("l", "left", "asked").on_signal("OK").action("nothing"))
        .transition(Transition::new("r", "right", "asked").on_signal("OK").action("nothing"))
        .auto("end", "asked", "done")
        .build()
        .unwrap();
    let engine = kit::start(|builder| office(builder).workflow(steps)).await.unwrap();
    let flows = flows(&engine, "durable");
    let run = started(&engine, "steps").await;
    let right = soon(flows.link(LinkTo::new(run).place("right"))).await.unwrap();
    let left = soon(flows.link(LinkTo::new(run).place("left"))).await.unwrap();
    go(&flows, &right).await.unwrap();
    let places = engine.run(run).view().await.unwrap().snapshot.current_places();
    assert!(places.contains(&"left".into()) && !places.contains(&"right".into()), "{places:?}");
    assert_eq!(go(&flows, &left).await.unwrap().status, Status::Completed);
}

/// E6: of two links to one wait one wins, also when both are used at once.
#[tokio::test]
async fn of_two_links_to_one_wait_one_wins() {
    let (engine, flows) = here().await;
    for _ in 0..4 {
        let run = started(&engine, "count").await;
        let before = sum(&engine).await.as_u64().unwrap_or(0);
        let links = [
            soon(flows.link(LinkTo::new(run))).await.unwrap(),
            soon(flows.link(LinkTo::new(run))).await.unwrap(),
        ];
        let all = join_all(links.iter().map(|link| flows.resume(Resume::new(link))));
        let all = as_time_passes(engine.clock(), all).await;
        assert_eq!(all.iter().filter(|answer| answer.is_ok()).count(), 1, "{all:?}");
        engine.settle().await;
        assert_eq!(sum(&engine).await, json!(before + 1));
        assert_eq!(engine.run(run).view().await.unwrap().snapshot.current_places(), ["p1"]);
        for link in &links {
            assert_eq!(go(&flows, link).await, Err(FlowError::Gone));
        }
    }
}

/// E8: a link's own time, the strategy's and none; a time of zero is refused.
#[tokio::test]
async fn a_link_is_good_for_as_long_as_it_says() {
    let (engine, flows) = here().await;
    let run = started(&engine, "review").await;
    let zero = soon(flows.link(LinkTo::new(run).ttl(Duration::ZERO))).await.unwrap_err().to_string();
    assert!(zero.contains("TTL"), "{zero}");
    let short = soon(flows.link(LinkTo::new(run).ttl(Duration::from_secs(5)))).await.unwrap();
    let long = soon(flows.link(LinkTo::new(run))).await.unwrap();
    assert_eq!(flows.show(&short).await.unwrap().expires_at, Some(engine.now().plus_ms(5_000)));
    engine.clock().set(engine.now().plus_ms(5_000));
    assert_eq!(answer(&flows, &short, "YES").await, Err(FlowError::Gone));
    assert_eq!(answer(&flows, &long, "NO").await.unwrap().status, Status::Completed);
}

/// E8: a link to a run that was purged, is another tenant's or never was.
#[tokio::test]
async fn a_link_to_a_run_that_is_no_longer_there_is_gone() {
    let build = |builder: Builder| {
        let builder = office(builder).with(|options| options.retention_ms = Some(1_000));
        builder.with(|options| options.upkeep_ms = 60_000)
    };
    let engine = kit::start(build).await.unwrap();
    let flows = flows(&engine, "durable");
    let run = started(&engine, "review").await;
    let link = soon(flows.link(LinkTo::new(run))).await.unwrap();
    assert_eq!(go(&flows.for_tenant(other_tenant()), &link).await, Err(FlowError::Gone));
    assert!(soon(flows.for_tenant(other_tenant()).link(LinkTo::new(run))).await.is_err());
    engine.run(run).signal(Signal::new("NO")).await.unwrap();
    engine.advance(Duration::from_secs(180)).await;
    assert_eq!(runs(&engine, RunQuery::default()).await, []);
    assert_eq!(answer(&flows, &link, "YES").await, Err(FlowError::Gone));
    assert_eq!(handles(&flows).await, [], "the links went with the run");
    assert!(soon(flows.link(LinkTo::new(run))).await.is_err());
}

/// E7: where somebody else is to answer, whoever started the run only sees that it waits.
#[tokio::test]
async fn where_somebody_else_is_to_answer_the_starter_only_watches() {
    let wait = |_: &str| {
        Place::Wait(Wait { signal: Some("OK".into()), answerers: vec!["boss".to_owned()], ..Wait::default() })
    };
    let boss = Spec::new("boss").signal("OK").place("open", wait("")).end("done").auto("end", "open", "done");
    let boss = boss.initial("open").build().unwrap();
    let engine = kit::start(|builder| builder.workflow(boss)).await.unwrap();
    let flows = flows(&engine, "durable");
    let begun = begin(&flows, "boss").await;
    let watching = begun.token.unwrap();
    assert!(watching.starts_with("watch."), "{watching}");
    let seen = go(&flows, &watching).await.unwrap();
    assert_eq!((seen.status, seen.waits.len(), seen.flow), (Status::Waiting, 0, begun.flow));
    assert_eq!(engine.run(begun.flow).view().await.unwrap().status, Status::Waiting);
    let link = soon(flows.link(LinkTo::new(begun.flow))).await.unwrap();
    assert_eq!(go(&flows, &link).await.unwrap().status, Status::Completed);
    assert_eq!(flows.show(&watching).await.unwrap().status, Status::Completed);
}

/// E6: a link is used up in the commit that takes the answer, also when the step fails afterwards: the run says why.
#[tokio::test]
async fn a_run_whose_step_fails_says_why() {
    let fails = |_: Cx| async { Err::<Value, _>(stepwell::ActionError::new("broken", "it is broken")) };
    let build =
        |builder: Builder| builder.workflow(walk("work", &["fails"]).build().unwrap()).action("fails", fails);
    let engine = kit::start(build).await.unwrap();
    let flows = flows(&engine, "durable");
    let token = begun(&flows, "work").await;
    let failed = go(&flows, &token).await.unwrap();
    assert_eq!((failed.status, failed.error.unwrap().code.as_str()), (Status::Failed, "broken"));
    assert_eq!(failed.token, None);
    assert_eq!(go(&flows, &token).await, Err(FlowError::Gone));
}

/// E4: an automatic run without a pause is answered with its end.
#[tokio::test]
async fn a_run_that_never_pauses_is_answered_with_its_end() {
    let quick = Spec::new("quick").step("a").end_with("b", json!({"x": 1}));
    let quick = quick.transition(Transition::new("ab", "a", "b").action("add")).build().unwrap();
    for strategy in ["sealed", "handle", "durable"] {
        let engine = kit::start(|builder| office(builder).workflow(quick.clone())).await.unwrap();
        let flows = flows(&engine, strategy);
        let ended = soon(flows.start(Start::new("quick"))).await.unwrap();
        assert_eq!(
            (ended.status, ended.result, ended.token),
            (Status::Completed, Some(json!({"x": 1})), None)
        );
        assert_eq!(sum(&engine).await, json!(1), "{strategy}");
    }
}

/// E2: a link is used from another process than the run's owner, under other keys.
#[tokio::test]
async fn a_link_is_used_from_another_process() {
    let (store, clock) = ground().await;
    let one = TestEngine::start_on(store.clone(), clock.clone(), office).await.unwrap();
    let two = TestEngine::start_on(store, clock.clone(), office).await.unwrap();
    let (here, there) = (flows(&one, "durable"), three(&two).begin_with("sealed").build().unwrap());
    let mut token = begun(&here, "count").await;
    for flows in [&there, &here] {
        token = as_time_passes(&clock, next(flows, &token)).await;
    }
    assert_eq!(go(&there, &token).await.unwrap().status, Status::Completed);
    assert_eq!(sum(&one).await, json!(3));
}

/// E3: without a durable strategy there is no link.
#[tokio::test]
async fn without_a_durable_strategy_there_is_no_link() {
    let engine = kit::start(office).await.unwrap();
    let flows = Flows::builder(&engine, ring()).only(stepwell::flow::Sealed::new()).build().unwrap();
    let run = started(&engine, "review").await;
    let error = soon(flows.link(LinkTo::new(run))).await.unwrap_err().to_string();
    assert!(error.contains("durable"), "{error}");
}

/// E6: a run that is not done in time is said to be running; the same request finds out later what came of it.
#[tokio::test]
async fn a_run_that_takes_its_time_is_said_to_be_running() {
    let gate = crate::world::Gate::new();
    let build = |builder: Builder| {
        let builder = builder.workflow(walk("slow", &["wait", "wait"]).build().unwrap());
        builder.action("wait", gate.action())
    };
    let engine = kit::start(build).await.unwrap();
    let durable = stepwell::flow::Durable::new().settle(Duration::from_millis(5));
    let flows = Flows::builder(&engine, ring()).only(durable).build().unwrap();
    let asks = Resume::new(begun(&flows, "slow").await).key("k");
    let running = soon(flows.resume(asks.clone())).await.unwrap();
    assert_eq!((running.status, running.token, gate.began()), (Status::Running, None, 1));
    gate.open(1);
    engine.settle().await;
    let later = soon(flows.resume(asks.clone())).await.unwrap();
    assert_eq!((later.status, later.waits[0].place.as_str()), (Status::Waiting, "p1"));
    assert_eq!(soon(flows.resume(asks)).await.unwrap().token, later.token);
    gate.open(1);
    engine.settle().await;
    assert!(go(&flows, &later.token.unwrap()).await.is_ok());
}
