//! Durable runs as flows: their tokens are answer links, each to one wait.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use stepwell::core::spec::{Place, Quorum, Transition, Wait};
use stepwell::core::{Definition, RunId, Spec};
use stepwell::engine::Builder;
use stepwell::flow::{CreateAnswerLink, FlowError, Flows, Resume};
use stepwell::store::{HandleKind, RunQuery, Status};
use stepwell::testing::TestEngine;
use stepwell::{Cx, Signal, Start};

use super::{
    add, as_time_passes, begin, begun, flows, go, handles, keep, next, nothing, ring, sum, three, walk,
};
use crate::kit::{self, ground, other_tenant, runs, soon};

/// A review: two people in turn answer yes or no.
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

/// Two parallel waits for the same signal.
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

/// E6: start, token, resume, next token, end; used links are invalid.
#[tokio::test]
async fn a_durable_run_has_a_new_link_for_each_pause() {
    let (engine, flows) = here().await;
    let begun = begin(&flows, "review").await;
    assert_eq!((begun.status, begun.strategy.as_deref()), (Status::Waiting, Some("durable")));
    let first = begun.token.unwrap();
    let [row] = &handles(&flows).await[..] else { panic!("there is one link") };
    assert_eq!((row.kind, row.run), (HandleKind::Link, begun.flow));
    let second = answer(&flows, &first, "YES").await.unwrap();
    assert_eq!((second.flow, second.waits[0].place.as_str()), (begun.flow, "second"));
    assert_eq!(answer(&flows, &first, "YES").await, Err(FlowError::Gone));
    let ended = answer(&flows, &second.token.unwrap(), "YES").await.unwrap();
    assert_eq!((ended.status, ended.token, ended.strategy), (Status::Completed, None, None));
    assert_eq!(handles(&flows).await, []);
    assert_eq!(engine.run(begun.flow).view().await.unwrap().status, Status::Completed);
}

/// E7: a link accepts and shows only the outcomes it was made for.
#[tokio::test]
async fn a_link_accepts_only_its_own_outcomes() {
    let (engine, flows) = here().await;
    let run = started(&engine, "review").await;
    let yes = soon(flows.create_answer_link(CreateAnswerLink::new(run).outcome("YES")))
        .await
        .unwrap()
        .token
        .unwrap();
    assert_eq!(flows.show(&yes).await.unwrap().waits[0].outcomes, ["YES"]);
    let no = answer(&flows, &yes, "NO").await;
    assert_eq!(no, Err(FlowError::Outcome { given: Some("NO".to_owned()), outcomes: vec!["YES".into()] }));
    // The only outcome of a link needs no name.
    assert_eq!(go(&flows, &yes).await.unwrap().waits[0].place, "second");
    let open = soon(flows.create_answer_link(CreateAnswerLink::new(run))).await.unwrap().token.unwrap();
    let unsaid = go(&flows, &open).await;
    assert_eq!(unsaid, Err(FlowError::Outcome { given: None, outcomes: vec!["NO".into(), "YES".into()] }));
    let unknown = soon(flows.create_answer_link(CreateAnswerLink::new(run).outcome("MAYBE"))).await;
    assert!(matches!(unknown, Err(FlowError::Outcome { .. })), "{unknown:?}");
}

/// E7: a link is bound to its wait: once a signal has answered that wait, the link is invalid and does not answer the
/// next one.
#[tokio::test]
async fn a_link_is_invalid_once_its_wait_was_answered() {
    let (engine, flows) = here().await;
    let run = started(&engine, "review").await;
    let link = soon(flows.create_answer_link(CreateAnswerLink::new(run))).await.unwrap().token.unwrap();
    engine.run(run).signal(Signal::new("YES")).await.unwrap();
    engine.settle().await;
    assert_eq!(engine.run(run).view().await.unwrap().snapshot.current_places(), ["second"]);
    assert_eq!(answer(&flows, &link, "YES").await, Err(FlowError::Gone));
    assert_eq!(flows.show(&link).await, Err(FlowError::Gone));
    assert_eq!(engine.run(run).view().await.unwrap().snapshot.current_places(), ["second"]);
}

/// E7: of two waits for the same signal, each link answers its own, for every kind of place.
#[tokio::test]
async fn a_link_answers_only_its_own_wait() {
    let (engine, flows) = here().await;
    let run = started(&engine, "both").await;
    let unclear = soon(flows.create_answer_link(CreateAnswerLink::new(run))).await.unwrap_err().to_string();
    assert!(unclear.contains("`left`") && unclear.contains("`right`"), "{unclear}");
    let right = soon(flows.create_answer_link(CreateAnswerLink::new(run).place("right")))
        .await
        .unwrap()
        .token
        .unwrap();
    let left = soon(flows.create_answer_link(CreateAnswerLink::new(run).place("left")))
        .await
        .unwrap()
        .token
        .unwrap();
    assert_eq!(flows.show(&right).await.unwrap().waits[0].place, "right");
    go(&flows, &right).await.unwrap();
    let places = engine.run(run).view().await.unwrap().snapshot.current_places();
    assert!(places.contains(&"left".into()) && !places.contains(&"right".into()), "{places:?}");
    assert_eq!(go(&flows, &right).await, Err(FlowError::Gone));
    assert_eq!(go(&flows, &left).await.unwrap().status, Status::Completed);
}

/// E7: the same where the two places are steps that a signal leads out of.
#[tokio::test]
async fn a_link_answers_only_its_own_step() {
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
    let right = soon(flows.create_answer_link(CreateAnswerLink::new(run).place("right")))
        .await
        .unwrap()
        .token
        .unwrap();
    let left = soon(flows.create_answer_link(CreateAnswerLink::new(run).place("left")))
        .await
        .unwrap()
        .token
        .unwrap();
    go(&flows, &right).await.unwrap();
    let places = engine.run(run).view().await.unwrap().snapshot.current_places();
    assert!(places.contains(&"left".into()) && !places.contains(&"right".into()), "{places:?}");
    assert_eq!(go(&flows, &left).await.unwrap().status, Status::Completed);
}

/// E6: of two links to one wait only one succeeds, also when both are used at once.
#[tokio::test]
async fn only_one_of_two_links_to_one_wait_succeeds() {
    let (engine, flows) = here().await;
    for _ in 0..4 {
        let run = started(&engine, "count").await;
        let before = sum(&engine).await.as_u64().unwrap_or(0);
        let links = [
            soon(flows.create_answer_link(CreateAnswerLink::new(run))).await.unwrap().token.unwrap(),
            soon(flows.create_answer_link(CreateAnswerLink::new(run))).await.unwrap().token.unwrap(),
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

/// E8: a link has its own ttl, the strategy's, or none; a ttl of zero is refused.
#[tokio::test]
async fn a_link_is_valid_for_its_ttl() {
    let (engine, flows) = here().await;
    let run = started(&engine, "review").await;
    let zero = soon(flows.create_answer_link(CreateAnswerLink::new(run).ttl(Duration::ZERO)))
        .await
        .unwrap_err()
        .to_string();
    assert!(zero.contains("TTL"), "{zero}");
    let short = soon(flows.create_answer_link(CreateAnswerLink::new(run).ttl(Duration::from_secs(5))))
        .await
        .unwrap()
        .token
        .unwrap();
    let long = soon(flows.create_answer_link(CreateAnswerLink::new(run))).await.unwrap().token.unwrap();
    assert_eq!(flows.show(&short).await.unwrap().expires_at, Some(engine.now().plus_ms(5_000)));
    engine.clock().set(engine.now().plus_ms(5_000));
    assert_eq!(answer(&flows, &short, "YES").await, Err(FlowError::Gone));
    assert_eq!(answer(&flows, &long, "NO").await.unwrap().status, Status::Completed);
}

/// E8: a link to a run that was purged, belongs to another tenant, or never existed.
#[tokio::test]
async fn a_link_to_a_purged_run_is_invalid() {
    let build = |builder: Builder| {
        let builder = office(builder).with(|options| options.retention_ms = Some(1_000));
        builder.with(|options| options.maintenance_interval_ms = 60_000)
    };
    let engine = kit::start(build).await.unwrap();
    let flows = flows(&engine, "durable");
    let run = started(&engine, "review").await;
    let link = soon(flows.create_answer_link(CreateAnswerLink::new(run))).await.unwrap().token.unwrap();
    assert_eq!(go(&flows.for_tenant(other_tenant()), &link).await, Err(FlowError::Gone));
    assert!(
        soon(flows.for_tenant(other_tenant()).create_answer_link(CreateAnswerLink::new(run))).await.is_err()
    );
    engine.run(run).signal(Signal::new("NO")).await.unwrap();
    engine.advance(Duration::from_secs(180)).await;
    assert_eq!(runs(&engine, RunQuery::default()).await, []);
    assert_eq!(answer(&flows, &link, "YES").await, Err(FlowError::Gone));
    assert_eq!(handles(&flows).await, [], "purging a run removes its links");
    assert!(soon(flows.create_answer_link(CreateAnswerLink::new(run))).await.is_err());
}

/// E7: when another person must answer, the caller who started the run sees only that it waits.
#[tokio::test]
async fn a_starter_who_may_not_answer_gets_a_view_only_token() {
    let wait = |_: &str| {
        Place::Wait(Wait {
            signal: Some("OK".into()),
            answerers: vec!["role:boss".to_owned()],
            ..Wait::default()
        })
    };
    let boss = Spec::new("boss").signal("OK").place("open", wait("")).end("done").auto("end", "open", "done");
    let boss = boss.initial("open").build().unwrap();
    let engine = kit::start(|builder| builder.workflow(boss)).await.unwrap();
    let flows = flows(&engine, "durable");
    let begun = begin(&flows, "boss").await;
    let watching = begun.token.unwrap();
    assert!(watching.starts_with("watch."), "{watching}");
    assert_eq!(go(&flows, &watching).await, Err(FlowError::WatchOnly));
    let seen = flows.show(&watching).await.unwrap();
    assert_eq!((seen.status, seen.waits.len(), seen.flow), (Status::Waiting, 0, begun.flow));
    assert_eq!(engine.run(begun.flow).view().await.unwrap().status, Status::Waiting);
    let link =
        soon(flows.create_answer_link(CreateAnswerLink::new(begun.flow))).await.unwrap().token.unwrap();
    assert_eq!(go(&flows, &link).await.unwrap().status, Status::Completed);
    assert_eq!(flows.show(&watching).await.unwrap().status, Status::Completed);
}

/// E6: the commit that takes the answer consumes the link, even if the step fails afterwards; the run has the error.
#[tokio::test]
async fn a_failing_step_is_reported_in_the_answer() {
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
async fn a_run_without_a_pause_is_answered_with_its_end() {
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

/// E2: a link is used in another process than the run's owner, under other keys.
#[tokio::test]
async fn a_link_works_in_another_process() {
    let (store, clock) = ground().await;
    let one = TestEngine::start_on(store.clone(), clock.clone(), office).await.unwrap();
    let two = TestEngine::start_on(store, clock.clone(), office).await.unwrap();
    let (here, there) = (flows(&one, "durable"), three(&two).default_strategy("sealed").build().unwrap());
    let mut token = begun(&here, "count").await;
    for flows in [&there, &here] {
        token = as_time_passes(&clock, next(flows, &token)).await;
    }
    assert_eq!(go(&there, &token).await.unwrap().status, Status::Completed);
    assert_eq!(sum(&one).await, json!(3));
}

/// E3: without a durable strategy there are no links.
#[tokio::test]
async fn answer_links_need_a_durable_strategy() {
    let engine = kit::start(office).await.unwrap();
    let flows = Flows::builder(&engine, ring()).only(stepwell::flow::Sealed::new()).build().unwrap();
    let run = started(&engine, "review").await;
    let error = soon(flows.create_answer_link(CreateAnswerLink::new(run))).await.unwrap_err().to_string();
    assert!(error.contains("durable"), "{error}");
}

/// E6: a run that does not finish in time is reported as running; the same request returns the result later.
#[tokio::test]
async fn a_slow_run_is_reported_as_running() {
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

/// G11: a link can be made for one of several waits in the same place, and its creation is audited.
#[tokio::test]
async fn a_link_names_its_wait_and_is_audited() {
    let (engine, flows) = here().await;
    let run = started(&engine, "both").await;
    let several = match soon(flows.create_answer_link(CreateAnswerLink::new(run))).await {
        Err(FlowError::AmbiguousWait { waits, .. }) => waits,
        other => panic!("{other:?}"),
    };
    let (wait, place) = several[1].clone();
    let link = soon(flows.create_answer_link(CreateAnswerLink::new(run).wait(wait))).await.unwrap();
    assert_eq!((link.wait, &link.place, &link.outcomes[..]), (wait, &place, &["OK".into()][..]));
    let audit: Vec<_> = kit::audit(&engine).await.into_iter().map(|(_, row)| row).collect();
    let [row] = &audit.iter().filter(|row| row.operation == "answerLink.create").collect::<Vec<_>>()[..]
    else {
        panic!("{audit:?}")
    };
    assert_eq!(row.run, Some(run));
    let text = String::from_utf8_lossy(&row.detail);
    assert!(text.contains(place.as_str()) && !text.contains(&link.token.unwrap()), "{text}");
}

/// G11: the same idempotency key gets the same link; another request with it is refused.
#[tokio::test]
async fn a_repeated_request_gets_the_same_link() {
    let (engine, flows) = here().await;
    let run = started(&engine, "review").await;
    let asks = CreateAnswerLink::new(run).key("k");
    let first = soon(flows.create_answer_link(asks.clone())).await.unwrap();
    let again = soon(flows.create_answer_link(asks.clone())).await.unwrap();
    assert_eq!((&again.token, again.is_replayed, first.is_replayed), (&first.token, true, false));
    assert_eq!(handles(&flows).await.len(), 1);
    let other = soon(flows.create_answer_link(asks.outcome("YES"))).await;
    assert_eq!(other, Err(FlowError::KeyReused { key: "k".to_owned() }));
}

/// G11: a run without an open wait, and a workflow that is not allowed, get no link.
#[tokio::test]
async fn a_link_needs_an_open_wait_of_an_allowed_workflow() {
    let engine = kit::start(office).await.unwrap();
    let flows = three(&engine).default_strategy("durable").allow(["review"]).build().unwrap();
    let run = started(&engine, "review").await;
    let elsewhere = soon(flows.create_answer_link(CreateAnswerLink::new(run).place("second"))).await;
    assert!(matches!(elsewhere, Err(FlowError::NoWait { .. })), "{elsewhere:?}");
    engine.run(run).signal(Signal::new("NO")).await.unwrap();
    let ended = soon(flows.create_answer_link(CreateAnswerLink::new(run))).await;
    assert!(matches!(ended, Err(FlowError::NoWait { .. })), "{ended:?}");
    let other = started(&engine, "both").await;
    let refused = soon(flows.create_answer_link(CreateAnswerLink::new(other).place("left"))).await;
    assert_eq!(refused, Err(FlowError::NotAllowed("both".into())));
}
