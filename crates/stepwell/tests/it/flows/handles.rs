//! Flows behind handles: the stored row, its contents, its shadow columns, and its removal.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::shadow::{Shadow, ShadowValue};
use stepwell::core::{Definition, RunId};
use stepwell::engine::Builder;
use stepwell::flow::{FlowError, Flows, Handle, Resume};
use stepwell::store::{HandleKind, HandleQuery, HandleRow, Record, RecordQuery, ShadowFilter, Status};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{Actor, Engine, Permission, Start};

use super::{begin, begun, flows, go, handles, keep, next, nothing, ring, walk};
use crate::kit::{self, Watched, after_s, ground, other_tenant, soon};

/// A flow whose data is replaced by its input, with three shadow columns.
fn order() -> Definition {
    walk("order", &["keep", "keep", "keep"])
        .shadow("city", Shadow::string("city"))
        .shadow("paid", Shadow::boolean("paid").or(false))
        .shadow("total", Shadow::number("total"))
        .build()
        .unwrap()
}

fn shop(builder: Builder) -> Builder {
    let builder = builder.action("keep", keep).action("nothing", nothing).workflow(order());
    builder.workflow(walk("quiet", &["nothing", "nothing"]).build().unwrap())
}

fn only(engine: &TestEngine, handle: Handle) -> Flows {
    Flows::builder(engine, ring()).only(handle).build().unwrap()
}

fn actor(id: &str) -> Actor {
    Actor::new(id, Permission::ALL)
}

async fn given(flows: &Flows, token: &str, input: Value) -> String {
    soon(flows.resume(Resume::new(token).input(&input))).await.unwrap().token.unwrap()
}

/// The order flows whose columns have these values.
async fn found(flows: &Flows, shadows: &[(&str, ShadowValue)]) -> Vec<RunId> {
    let shadows = shadows.iter().map(|(name, value)| ShadowFilter::equals(*name, value.clone())).collect();
    let query = HandleQuery { workflow: Some("order".into()), shadows, limit: 100, ..HandleQuery::default() };
    flows.handles(query).await.unwrap().items.iter().map(|row| row.run).collect()
}

/// The columns of a flow that have a value.
async fn columns(engine: &Engine, flow: RunId) -> Vec<Record> {
    engine.store().records(engine.scope(), RecordQuery::Shadows(flow)).await.unwrap().items
}

/// E2: a handle survives its process, and another process with other keys resumes it.
#[tokio::test]
async fn a_handle_outlives_its_process() {
    let (store, clock) = ground().await;
    let first = TestEngine::start_on(store.clone(), clock.clone(), shop).await.unwrap();
    let here = flows(&first, "handle");
    let token = given(&here, &begun(&here, "order").await, json!({"total": 7})).await;
    first.stop(Duration::ZERO).await;
    drop(first);
    let second = TestEngine::start_on(store.clone(), clock.clone(), shop).await.unwrap();
    let token = next(&flows(&second, "handle"), &token).await;
    // A third process does not have the workflow and loads it from the store.
    let third = TestEngine::start_on(store, clock, |builder| builder.action("keep", keep)).await.unwrap();
    let ended = go(&flows(&third, "sealed"), &token).await.unwrap();
    assert_eq!((ended.status, ended.result), (Status::Completed, Some(json!({"total": 7}))));
}

/// Returns whether `hay` contains `needle`.
fn is_in(needle: &[u8], hay: &[u8]) -> bool {
    hay.windows(needle.len()).any(|window| window == needle)
}

/// The bytes of a handle's token after the tenant's bytes.
fn secret_of(token: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let raw = token.split_once('.').unwrap().1.as_bytes();
    let value = |letter: &u8| digits.iter().position(|digit| digit == letter).unwrap() as u32;
    let bytes = raw.chunks(4).flat_map(|four| {
        let bits = four.iter().fold(0, |bits, letter| bits << 6 | value(letter));
        bits.to_be_bytes()[1..].to_vec()
    });
    bytes.skip(16).collect()
}

/// E2, E6: the secret is in no row, neither in the handle's nor in a stored answer.
#[tokio::test]
async fn the_secret_of_a_handle_is_not_stored() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let engine = TestEngine::start_on(watched.clone(), clock, shop).await.unwrap();
    let flows = flows(&engine, "handle");
    let start = Start::new("order").input(&json!({})).key("first");
    let first = soon(flows.start(start)).await.unwrap().token.unwrap();
    let second = soon(flows.resume(Resume::new(&first).key("second"))).await.unwrap().token.unwrap();
    let commits = format!("{:?}", watched.commits());
    for token in [&first, &second] {
        let (raw, secret) = (token.split_once('.').unwrap().1, secret_of(token));
        assert_eq!(secret.len(), 32);
        // The encoded tenant and the encoded secret share at most one letter.
        assert!(!commits.contains(&raw[24..]), "the token is written");
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!commits.contains(&hex), "the secret is written");
        let [row] = &handles(&flows).await[..] else { panic!("there is one handle") };
        for bytes in [&row.state[..], &row.handle.0[..]] {
            assert!(!is_in(&secret, bytes) && !is_in(raw.as_bytes(), bytes));
        }
        for key in ["first", "second"] {
            let query =
                RecordQuery::Key { operation: "flow".to_owned(), key: key.to_owned(), now: engine.now() };
            let kept = engine.store().records(engine.scope(), query).await.unwrap().items;
            let Some(Record::Key(kept)) = kept.first() else { panic!("no answer is kept under `{key}`") };
            let kept = kept.answer.clone().unwrap();
            assert!(!is_in(&raw.as_bytes()[24..], &kept) && !is_in(b"order", &kept), "it is stored in clear");
        }
    }
}

/// E2, E7: a handle is found only in its own tenant, which the token names.
#[tokio::test]
async fn a_handle_is_found_in_its_own_tenant_only() {
    let engine = kit::start(shop).await.unwrap();
    let ours = flows(&engine, "handle");
    let theirs = ours.for_tenant(other_tenant());
    let token = begun(&theirs, "quiet").await;
    assert_eq!(go(&ours, &token).await, Err(FlowError::Gone));
    assert_eq!(ours.show(&token).await, Err(FlowError::Gone));
    assert_eq!((handles(&ours).await.len(), handles(&theirs).await.len()), (0, 1));
    let token = next(&ours.of_token(&token), &token).await;
    assert_eq!(go(&theirs, &token).await.unwrap().status, Status::Completed);
}

/// E2: a changed token is invalid, and so is one under the name of another strategy.
#[tokio::test]
async fn a_changed_handle_token_is_invalid() {
    let engine = kit::start(shop).await.unwrap();
    let flows = Flows::builder(&engine, ring())
        .strategy("a", Handle::new())
        .strategy("b", Handle::new())
        .strategy("d", stepwell::flow::Durable::new())
        .default_strategy("a");
    let flows = flows.build().unwrap();
    let token = begun(&flows, "quiet").await;
    let raw = token.strip_prefix("a.").unwrap();
    let mut changed: Vec<String> = (0..raw.len())
        .map(|at| {
            let other = if raw.as_bytes()[at] == b'A' { "B" } else { "A" };
            format!("a.{}{other}{}", &raw[..at], &raw[at + 1..])
        })
        .collect();
    changed.extend(["b", "d"].map(|name| format!("{name}.{raw}")));
    changed.extend([format!("a.{raw}A"), format!("a.{}", &raw[..60]), "a.".to_owned(), raw.to_owned()]);
    let shown = soon(futures_util::future::join_all(changed.iter().map(|token| flows.show(token)))).await;
    assert!(shown.iter().all(|shown| *shown == Err(FlowError::Gone)));
    go(&flows, &token).await.unwrap();
}

/// E5: the row keeps who started the flow and when. It replaces who wrote it last and when. Clock and actor are
/// injected.
#[tokio::test]
async fn a_handle_row_records_who_created_and_updated_it() {
    let engine = kit::start(shop).await.unwrap();
    let flows = only(&engine, Handle::new().ttl(Duration::from_secs(60)));
    let token = begun(&flows.acting(actor("ann")), "order").await;
    let [row] = &handles(&flows).await[..] else { panic!("there is one handle") };
    let HandleRow { kind, run: flow, ref workflow, ref state, .. } = *row;
    assert_eq!((kind, workflow.as_str()), (HandleKind::Flow, "order"));
    let state: Value = serde_json::from_slice(state).unwrap();
    assert_eq!(state["context"], json!({}), "the state is JSON");
    let stamps = |row: &HandleRow| {
        let row = row.clone();
        ((row.created_at, row.created_by), (row.updated_at, row.updated_by), row.expires_at)
    };
    let ann = (BEGINS, Some("ann".to_owned()));
    assert_eq!(stamps(row), (ann.clone(), ann.clone(), Some(after_s(60))));

    engine.advance(Duration::from_secs(10)).await;
    let token = next(&flows.acting(actor("bob")), &token).await;
    let rows = handles(&flows).await;
    let bob = (after_s(10), Some("bob".to_owned()));
    assert_eq!((rows.len(), rows[0].run, stamps(&rows[0])), (1, flow, (ann.clone(), bob, Some(after_s(70)))));

    engine.advance(Duration::from_secs(10)).await;
    next(&flows, &token).await;
    let rows = handles(&flows).await;
    assert_eq!(stamps(&rows[0]), (ann, (after_s(20), None), Some(after_s(80))), "resumed without an actor");
    assert_ne!(rows[0].handle, row.handle, "each pause has its own secret");
}

/// E5: handles are listed by workflow, flow and creator, page by page.
#[tokio::test]
async fn handles_are_listed_by_workflow_flow_and_actor() {
    let engine = kit::start(shop).await.unwrap();
    let flows = flows(&engine, "handle");
    let ann = begin(&flows.acting(actor("ann")), "order").await;
    let bob = begin(&flows.acting(actor("bob")), "order").await;
    begin(&flows.acting(actor("bob")), "quiet").await;
    let list = async |query: HandleQuery| {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = flows.handles(HandleQuery { limit: 1, cursor, ..query.clone() }).await.unwrap();
            found.extend(page.items.into_iter().map(|row| row.run));
            cursor = page.next;
            if cursor.is_none() {
                return found;
            }
        }
    };
    let all = HandleQuery::default();
    assert_eq!(list(all.clone()).await.len(), 3);
    assert_eq!(list(HandleQuery { workflow: Some("order".into()), ..all.clone() }).await.len(), 2);
    assert_eq!(list(HandleQuery { run: Some(ann.flow), ..all.clone() }).await, [ann.flow]);
    let of_bob = HandleQuery { created_by: Some("bob".to_owned()), ..all };
    assert_eq!(list(of_bob.clone()).await.len(), 2);
    assert_eq!(list(HandleQuery { workflow: Some("order".into()), ..of_bob }).await, [bob.flow]);
}

/// E5, E11: shadow columns are correct after every pause, are searchable, and are removed when the flow ends.
#[tokio::test]
async fn shadow_columns_follow_the_flow_until_it_ends() {
    let engine = kit::start(shop).await.unwrap();
    let flows = flows(&engine, "handle");
    let bern = || ShadowValue::Text("Bern".to_owned());
    let first = begin(&flows, "order").await;
    let other = begin(&flows, "order").await.flow;
    let both = found(&flows, &[("paid", ShadowValue::Boolean(false))]).await;
    assert_eq!(
        both,
        [first.flow, other]
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    );
    let input = json!({"city": "Bern", "total": 12.5, "paid": false});
    let token = given(&flows, &first.token.unwrap(), input).await;
    assert_eq!(found(&flows, &[("city", bern()), ("total", ShadowValue::Number(12.5))]).await, [first.flow]);
    assert_eq!(found(&flows, &[("city", bern()), ("total", ShadowValue::Number(13.0))]).await, []);
    let token = given(&flows, &token, json!({"paid": true, "city": null})).await;
    assert_eq!(found(&flows, &[("paid", ShadowValue::Boolean(true))]).await, [first.flow]);
    assert_eq!(found(&flows, &[("city", bern())]).await, [], "a miss of an optional column empties it");
    assert_eq!(columns(&engine, first.flow).await.len(), 2);
    go(&flows, &token).await.unwrap();
    assert_eq!(columns(&engine, first.flow).await, []);
    assert_eq!(found(&flows, &[("paid", ShadowValue::Boolean(false))]).await, [other]);
}

/// E13: cleanup removes handles that expired long enough ago, with their columns. It keeps valid handles and those that
/// never expire.
#[tokio::test]
async fn cleanup_removes_expired_handles_after_their_retention() {
    let engine = kit::start(shop).await.unwrap();
    let flows = Flows::builder(&engine, ring())
        .strategy("short", Handle::new().ttl(Duration::from_secs(10)))
        .strategy("forever", Handle::new().forever())
        .choose_strategy(|workflow| if workflow == "order" { "short" } else { "forever" });
    let flows = flows.build().unwrap();
    let first = begin(&flows, "order").await;
    let kept = begin(&flows, "quiet").await;
    assert_eq!(kept.expires_at, None);
    engine.clock().set(after_s(5));
    let second = begin(&flows, "order").await;
    assert_eq!(flows.cleanup(Some(0)).await, Ok(0));
    engine.clock().set(after_s(10));
    assert_eq!(
        go(&flows, first.token.as_ref().unwrap()).await,
        Err(FlowError::Gone),
        "it expires at this instant"
    );
    assert_eq!(flows.cleanup(None).await, Ok(0));
    assert_eq!(flows.cleanup(Some(1)).await, Ok(0));
    assert_eq!(flows.cleanup(Some(0)).await, Ok(1));
    assert_eq!((columns(&engine, first.flow).await, columns(&engine, second.flow).await.len()), (vec![], 1));
    engine.clock().set(after_s(20));
    assert_eq!(flows.cleanup(Some(5_001)).await, Ok(0));
    assert_eq!(flows.cleanup(Some(5_000)).await, Ok(1));
    engine.clock().set(after_s(10_000_000));
    assert_eq!(flows.cleanup(Some(0)).await, Ok(0));
    go(&flows, &kept.token.unwrap()).await.unwrap();
}

/// E13: more handles than one batch removes.
#[tokio::test]
async fn cleanup_removes_more_than_one_batch_of_handles() {
    let engine = kit::start(shop).await.unwrap();
    let flows = only(&engine, Handle::new().ttl(Duration::from_secs(1)));
    for _ in 0..130 {
        begin(&flows, "quiet").await;
    }
    engine.clock().set(after_s(1));
    assert_eq!(soon(flows.cleanup(Some(0))).await, Ok(130));
}

/// E13: maintenance cleans up on a timer with the configured retention, or never.
#[tokio::test]
async fn maintenance_cleans_up_handles_on_a_timer() {
    let hour = Duration::from_secs(3_600);
    for (kept_ms, gone_after_h) in [(Some(0), Some(3)), (Some(7_200_000), Some(5)), (None, None)] {
        let build = |builder: Builder| {
            let builder = shop(builder).with(|options| options.maintenance_interval_ms = 3_600_000);
            builder.with(|options| options.handle_retention_ms = kept_ms)
        };
        let engine = kit::start(build).await.unwrap();
        let flows = only(&engine, Handle::new().ttl(hour * 5 / 2));
        begin(&flows, "quiet").await;
        for hours in 1..=6 {
            engine.advance(hour).await;
            let is_gone = gone_after_h.is_some_and(|after| after <= hours);
            let seen = (handles(&flows).await.len(), engine.maintenance().handles);
            assert_eq!(seen, if is_gone { (0, 1) } else { (1, 0) }, "{kept_ms:?} after {hours}");
        }
    }
}

/// E5: listing and cleanup need the view and admin permissions.
#[tokio::test]
async fn listing_and_cleaning_up_handles_need_permissions() {
    let engine = kit::start(shop).await.unwrap();
    let flows = flows(&engine, "handle").acting(Actor::new("eve", [Permission::Read]));
    assert!(matches!(flows.handles(HandleQuery::default()).await, Err(FlowError::Engine(_))));
    assert!(matches!(flows.cleanup(Some(0)).await, Err(FlowError::Engine(_))));
    assert!(matches!(flows.start(Start::new("quiet")).await, Err(FlowError::Engine(_))));
}

/// E6: a handle whose data becomes too large reports an error and stays valid.
#[tokio::test]
async fn a_state_that_is_too_large_keeps_the_handle_valid() {
    let limits = stepwell::core::Limits { snapshot_bytes: 3_000, ..Default::default() };
    let store = kit::store_within(limits.clone()).await;
    let build = |builder: Builder| shop(builder).with(|options| options.limits = limits);
    let engine = TestEngine::start_on(store, ground().await.1, build).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "order").await;
    let large = Resume::new(&token).input(&json!({"text": "x".repeat(3_000)}));
    soon(flows.resume(large)).await.unwrap_err();
    assert_eq!(handles(&flows).await[0].owner, None);
    next(&flows, &token).await;
}

/// E12: columns declared after a flow paused are healed in batches, once, without blocking its users.
#[tokio::test]
async fn heal_fills_the_shadow_columns_of_handles() {
    let edition = |version: u32| {
        let spec = walk("visit", &["nothing", "nothing"]).version(version);
        let who = stepwell::core::shadow::Shadow::string("who");
        if version == 1 { spec } else { spec.shadow("who", who) }.build().unwrap()
    };
    let build = |builder: Builder| builder.workflow(edition(1)).action("nothing", super::nothing);
    let engine = kit::start(build).await.unwrap();
    let flows = flows(&engine, "handle");
    let mut tokens = Vec::new();
    for number in 0..5 {
        let input = json!({"who": format!("visitor {number}")});
        tokens.push(soon(flows.start(Start::new("visit").input(&input))).await.unwrap().token.unwrap());
    }
    engine.register(edition(2)).unwrap();
    let found = |name: &str| HandleQuery {
        workflow: Some("visit".into()),
        shadows: vec![ShadowFilter::equals("who", name)],
        limit: 10,
        ..HandleQuery::default()
    };
    assert_eq!(flows.handles(found("visitor 3")).await.unwrap().items.len(), 0);
    let mut heal = stepwell::Heal::of("visit").batch(2);
    let mut batches = 1;
    while soon(engine.heal(&mut heal)).await.unwrap() {
        assert!(heal.place().is_some(), "healing can be resumed from here");
        batches += 1;
    }
    assert_eq!((heal.runs(), heal.changed(), heal.missed(), batches), (5, 5, 0, 3));
    assert_eq!(flows.handles(found("visitor 3")).await.unwrap().items.len(), 1);
    let mut again = stepwell::Heal::of("visit");
    while soon(engine.heal(&mut again)).await.unwrap() {}
    assert_eq!((again.runs(), again.changed()), (5, 0), "a second heal changes nothing");
    for token in tokens {
        next(&flows, &token).await;
    }
}
