//! Tokens that are to be good no longer: of a flow, of somebody, of a key.

use std::time::Duration;

use stepwell::engine::Builder;
use stepwell::flow::{FlowError, Flows, Handle, LinkTo, Resume, Revoke, Sealed};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{Actor, Permission};

use super::{as_time_passes, begin, begun, flows, go, handles, next, nothing, ring, walk};
use crate::kit::{self, Watched, audit, eventually, ground, soon};
use crate::world::Gate;

fn office(builder: Builder) -> Builder {
    let builder = builder.action("nothing", nothing);
    builder.workflow(walk("quiet", &["nothing"; 3]).build().unwrap())
}

fn actor(id: &str) -> Actor {
    Actor::new(id, Permission::ALL)
}

/// E6: the handles of a flow go, and no others; that is on record.
#[tokio::test]
async fn the_handles_of_a_flow_go() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let (ours, theirs) = (begin(&flows, "quiet").await, begun(&flows, "quiet").await);
    // Each permission is given by itself: who administers flows need not see them.
    let by = flows.acting(Actor::new("admin", [Permission::Admin]));
    assert_eq!(soon(by.revoke(Revoke::Flow(ours.flow))).await, Ok(1));
    assert_eq!(soon(by.revoke(Revoke::Flow(ours.flow))).await, Ok(0));
    let token = ours.token.unwrap();
    assert_eq!(
        (go(&flows, &token).await, flows.show(&token).await),
        (Err(FlowError::Gone), Err(FlowError::Gone))
    );
    next(&flows, &theirs).await;
    let rows: Vec<_> = audit(&engine).await.into_iter().map(|(_, row)| row).collect();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.operation.as_str(), row.run), ("handle.revoke", Some(ours.flow)));
    assert_eq!(row.actor.as_deref(), Some("admin"));
}

/// E6: everything that somebody began goes, however many.
#[tokio::test]
async fn everything_that_somebody_began_goes() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let (ann, bob) = (flows.acting(actor("ann")), flows.acting(actor("bob")));
    let mut tokens = Vec::new();
    for _ in 0..103 {
        tokens.push(begun(&ann, "quiet").await);
    }
    // Bob goes on with a flow of Ann's: it stays hers.
    tokens[0] = next(&bob, &tokens[0]).await;
    let other = begun(&bob, "quiet").await;
    assert_eq!(soon(flows.revoke(Revoke::Actor("ann".to_owned()))).await, Ok(103));
    assert_eq!(go(&flows, &tokens[0]).await, Err(FlowError::Gone));
    assert_eq!(handles(&flows).await.len(), 1);
    next(&flows, &other).await;
}

/// E6: the links that lead to a run go too; the run stays.
#[tokio::test]
async fn the_links_to_a_run_go_and_the_run_stays() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "durable");
    let begun = begin(&flows, "quiet").await;
    soon(flows.link(LinkTo::new(begun.flow))).await.unwrap();
    assert_eq!(soon(flows.revoke(Revoke::Flow(begun.flow))).await, Ok(2));
    assert_eq!(go(&flows, &begun.token.unwrap()).await, Err(FlowError::Gone));
    let link = soon(flows.link(LinkTo::new(begun.flow))).await.unwrap();
    assert_eq!(go(&flows, &link).await.unwrap().status, Status::Waiting);
}

/// E1: sealed tokens that are used once can be revoked, by flow and by actor; what was begun later is good.
#[tokio::test]
async fn sealed_tokens_that_are_used_once_can_be_revoked() {
    for by_actor in [true, false] {
        let engine = kit::start(office).await.unwrap();
        let flows = Flows::builder(&engine, ring()).only(Sealed::new().once()).build().unwrap();
        let ann = flows.acting(actor("ann"));
        let ours = begin(&ann, "quiet").await;
        let theirs = begun(&flows.acting(actor("bob")), "quiet").await;
        engine.advance(Duration::from_secs(1)).await;
        let second = next(&flows, &ours.token.unwrap()).await;
        engine.advance(Duration::from_secs(1)).await;
        let which = if by_actor { Revoke::Actor("ann".to_owned()) } else { Revoke::Flow(ours.flow) };
        assert_eq!(soon(flows.revoke(which)).await, Ok(0), "there is no handle");
        assert_eq!(go(&flows, &second).await, Err(FlowError::Gone));
        assert_eq!(flows.show(&second).await, Err(FlowError::Gone));
        next(&flows, &theirs).await;
        engine.advance(Duration::from_secs(1)).await;
        let later = begun(&ann, "quiet").await;
        next(&flows, &later).await;
    }
}

/// E1: a flow that is being resumed while it is revoked does not slip through.
#[tokio::test]
async fn a_sealed_flow_that_is_on_its_way_while_it_is_revoked_is_revoked() {
    let gate = Gate::new();
    let workflow = walk("slow", &["wait", "nothing"]).build().unwrap();
    let engine =
        kit::start(|builder| office(builder).workflow(workflow).action("wait", gate.action())).await.unwrap();
    let flows = Flows::builder(&engine, ring()).only(Sealed::new().once()).build().unwrap();
    let ours = begin(&flows.acting(actor("ann")), "slow").await;
    let resumed = tokio::spawn({
        let (flows, token) = (flows.clone(), ours.token.unwrap());
        async move { flows.resume(Resume::new(token)).await }
    });
    eventually(async || gate.inside() == 1).await;
    engine.clock().set(engine.now().plus_ms(1_000));
    soon(flows.revoke(Revoke::Flow(ours.flow))).await.unwrap();
    engine.clock().set(engine.now().plus_ms(1_000));
    gate.open(1);
    if let Ok(answer) = soon(resumed).await.unwrap() {
        assert_eq!(go(&flows, &answer.token.unwrap()).await, Err(FlowError::Gone));
    }
}

/// E6: nor does a flow behind a handle that goes on between the listing and the taking.
#[tokio::test]
async fn a_handle_that_goes_on_while_it_is_revoked_is_revoked() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store.clone());
    let one = TestEngine::start_on(watched.clone(), clock.clone(), office).await.unwrap();
    let two = TestEngine::start_on(store, clock.clone(), office).await.unwrap();
    let handle = |engine: &TestEngine| Flows::builder(engine, ring()).only(Handle::new()).build().unwrap();
    let (here, there) = (handle(&one), handle(&two));
    let begun = begin(&here, "quiet").await;
    let (faster, token) = (there.clone(), begun.token.unwrap());
    watched.first(async move { drop(faster.resume(Resume::new(token)).await.unwrap()) });
    let count = as_time_passes(&clock, here.revoke(Revoke::Flow(begun.flow))).await;
    assert_eq!((count, handles(&there).await), (Ok(1), vec![]));
}

/// E6: a handle that is reserved is revoked too: what its step did is not written.
#[tokio::test]
async fn a_handle_that_is_being_used_is_revoked() {
    let gate = Gate::new();
    let counts = gate.and(|cx| cx.kv("test").increment("sum", 1).map(|()| serde_json::Value::Null));
    let workflow = walk("slow", &["counts", "nothing"]).build().unwrap();
    let engine =
        kit::start(|builder| office(builder).workflow(workflow).action("counts", counts)).await.unwrap();
    let flows = flows(&engine, "handle");
    let begun = begin(&flows, "slow").await;
    let resumed = tokio::spawn({
        let (flows, token) = (flows.clone(), begun.token.unwrap());
        async move { flows.resume(Resume::new(token)).await }
    });
    eventually(async || gate.inside() == 1).await;
    assert_eq!(soon(flows.revoke(Revoke::Flow(begun.flow))).await, Ok(1));
    gate.open(1);
    assert_eq!(soon(resumed).await.unwrap(), Err(FlowError::Gone));
    assert_eq!((super::sum(&engine).await, handles(&flows).await), (serde_json::Value::Null, vec![]));
}

/// E6: only who may administer flows revokes.
#[tokio::test]
async fn who_may_not_revokes_nothing() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let begun = begin(&flows, "quiet").await;
    let eve = flows.acting(Actor::new("eve", [Permission::View, Permission::Manage]));
    assert!(matches!(soon(eve.revoke(Revoke::Flow(begun.flow))).await, Err(FlowError::Engine(_))));
    next(&flows, &begun.token.unwrap()).await;
}
