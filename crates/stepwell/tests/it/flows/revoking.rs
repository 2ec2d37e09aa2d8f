//! Revocation of tokens: by flow, by actor, and by key.

use std::time::Duration;

use stepwell::engine::Builder;
use stepwell::flow::{CreateAnswerLink, FlowError, Flows, Handle, Resume, Revoke, Sealed};
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

/// E6: revoking a flow removes its handles and no others, and is audited.
#[tokio::test]
async fn revoking_a_flow_removes_its_handles() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let (ours, theirs) = (begin(&flows, "quiet").await, begun(&flows, "quiet").await);
    // Permissions are independent: flow administration does not include viewing.
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

/// E6: everything that an actor started is revoked, in any number.
#[tokio::test]
async fn revoking_an_actor_removes_all_their_handles() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let (ann, bob) = (flows.acting(actor("ann")), flows.acting(actor("bob")));
    let mut tokens = Vec::new();
    for _ in 0..103 {
        tokens.push(begun(&ann, "quiet").await);
    }
    // Bob resumes a flow of Ann's: it stays hers.
    tokens[0] = next(&bob, &tokens[0]).await;
    let other = begun(&bob, "quiet").await;
    assert_eq!(soon(flows.revoke(Revoke::Actor("ann".to_owned()))).await, Ok(103));
    assert_eq!(go(&flows, &tokens[0]).await, Err(FlowError::Gone));
    assert_eq!(handles(&flows).await.len(), 1);
    next(&flows, &other).await;
}

/// E6: links to a run are revoked too; the run stays.
#[tokio::test]
async fn revoking_the_links_to_a_run_keeps_the_run() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "durable");
    let begun = begin(&flows, "quiet").await;
    soon(flows.create_answer_link(CreateAnswerLink::new(begun.flow))).await.unwrap().token.unwrap();
    assert_eq!(soon(flows.revoke(Revoke::Flow(begun.flow))).await, Ok(2));
    assert_eq!(go(&flows, &begun.token.unwrap()).await, Err(FlowError::Gone));
    let link =
        soon(flows.create_answer_link(CreateAnswerLink::new(begun.flow))).await.unwrap().token.unwrap();
    assert_eq!(go(&flows, &link).await.unwrap().status, Status::Waiting);
}

/// E1: single-use sealed tokens can be revoked by flow and by actor; later ones stay valid.
#[tokio::test]
async fn single_use_sealed_tokens_can_be_revoked() {
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

/// E1: a flow that is resumed while it is revoked is revoked too.
#[tokio::test]
async fn a_sealed_flow_resumed_during_revocation_is_revoked() {
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

/// E6: so is a flow behind a handle that advances between the listing and the removal.
#[tokio::test]
async fn a_handle_that_advances_during_revocation_is_revoked() {
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

/// E6: a reserved handle is revoked too: the result of its step is not written.
#[tokio::test]
async fn a_reserved_handle_can_be_revoked() {
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

/// E6: revocation needs the admin permission.
#[tokio::test]
async fn revoking_needs_the_admin_permission() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let begun = begin(&flows, "quiet").await;
    let eve = flows.acting(Actor::new("eve", [Permission::View, Permission::Manage]));
    assert!(matches!(soon(eve.revoke(Revoke::Flow(begun.flow))).await, Err(FlowError::Engine(_))));
    next(&flows, &begun.token.unwrap()).await;
}
