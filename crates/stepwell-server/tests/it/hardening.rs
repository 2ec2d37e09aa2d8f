//! Protection against hostile clients and a slow store: requests in progress, streams, rate limits and timeouts.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use serde_json::{Value, json};
use stepwell::Permission;
use stepwell::core::{Definition, Spec};
use stepwell::manual_clock::ManualClock;
use stepwell::store::{Fault, Faulty, MemoryStore};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell_server::api::{ApiOptions, IssuerOptions, Server, TenantOf};
use stepwell_server::serve::Peer;

use crate::issuer::{AUDIENCE, Issuer, SigningKey};
use crate::kit::{Reply, TestRequest, delete, get, post, put, until};
use crate::site::Site;
use crate::table::key_of;

fn waits() -> Definition {
    let waits = Spec::new("waits").wait("here", "GO").end("done").signal("GO").auto("end", "here", "done");
    waits.initial("here").build().unwrap()
}

async fn site_of(options: ApiOptions) -> Site {
    let engine = TestEngine::start(|builder| builder.workflow(waits())).await.unwrap();
    let server = Server::new((*engine).clone(), options);
    Site::of(engine, server).await
}

fn start(key: &str, wait: &str) -> TestRequest {
    post(&format!("/v1/runs{wait}")).header("idempotency-key", key).json(&json!({"workflow": "waits"}))
}

async fn runs(site: &Site) -> Vec<Value> {
    site.get("/v1/runs").await.json()["items"].as_array().unwrap().clone()
}

/// Sends a request of our tenant in a background task.
fn asking(site: &Site, ask: TestRequest) -> tokio::task::JoinHandle<Reply> {
    let (router, key) = (site.router.clone(), site.ours.clone());
    tokio::spawn(async move { ask.by(&key).to(&router).await })
}

async fn one_run(site: &Site) -> String {
    until("the first request has started its run", async || {
        runs(site).await.first().map(|run| run["id"].as_str().unwrap().to_owned())
    })
    .await
}

#[tokio::test]
async fn same_key_is_busy_during_the_first_request_then_replayed() {
    let site = site_of(ApiOptions::default()).await;
    let first = asking(&site, start("k", "?wait=20s"));
    let run = one_run(&site).await;
    let second = site.ask(start("k", "")).await;
    assert_eq!(second.is(409, "busy")["retryable"], true);
    assert_eq!(second.header("retry-after"), "1");
    assert_eq!(site.ask(start("other", "")).await.status, 201, "another key is another request");
    assert_eq!(site.as_other_tenant(start("k", "")).await.status, 201, "and so is another tenant's");
    let signal =
        post(&format!("/v1/runs/{run}/signals/GO")).header("idempotency-key", "k").json(&json!(null));
    assert_eq!(site.ask(signal).await.status, 200, "and another operation");
    let first = first.await.unwrap();
    assert_eq!((first.status.as_u16(), &first.json()["run"]["status"]), (201, &json!("completed")));
    let again = site.ask(start("k", "")).await;
    assert_eq!((again.status.as_u16(), again.header("idempotency-replayed")), (200, "true"));
    assert_eq!(again.json()["id"], run);
}

#[tokio::test]
async fn idempotency_key_is_freed_on_disconnect_or_refusal() {
    let site = site_of(ApiOptions::default()).await;
    let first = asking(&site, start("k", "?wait=20s"));
    let run = one_run(&site).await;
    site.ask(start("k", "")).await.is(409, "busy");
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let again = site.ask(start("k", "")).await;
    assert_eq!((again.status.as_u16(), &again.json()["id"]), (200, &json!(run)));
    let unknown = || post("/v1/runs").header("idempotency-key", "u").json(&json!({"workflow": "none"}));
    for _ in 0..2 {
        site.ask(unknown()).await.is(404, "unknownWorkflow");
    }
}

/// Creates an API key of our tenant. Returns the credential and the path of the key.
async fn key(site: &Site) -> (String, String) {
    let asked = json!({"name": "k", "permissions": ["workflow:view", "workflow:read", "workflow:manage"]});
    let made = site.post("/v1/apikeys", &asked).await;
    (format!("Bearer {}", made.json()["secret"].as_str().unwrap()), made.header("location").to_owned())
}

#[tokio::test]
async fn a_stream_ends_when_its_key_is_revoked() {
    let site = site_of(ApiOptions::default()).await;
    let (key, path) = key(&site).await;
    site.put("/v1/kv/n/k", &json!({"value": 1})).await;
    let mut events = get("/v1/kv/n/k/watch").by(&key).events(&site.router).await;
    assert_eq!(events.next().await.unwrap().2["value"], 1);
    let mut others = get("/v1/kv/n/k/watch").by(&site.ours).events(&site.router).await;
    assert_eq!(others.next().await.unwrap().2["value"], 1);
    assert_eq!(site.delete(&path).await.status, 204);
    assert_eq!(events.next().await, None);
    site.put("/v1/kv/n/k", &json!({"value": 2})).await;
    assert_eq!(others.next().await.unwrap().2["value"], 2, "other streams continue");
}

#[tokio::test]
async fn suspending_a_tenant_ends_its_waits_and_streams() {
    let site = site_of(ApiOptions::default()).await;
    let id = "00000000-0000-0000-0000-000000000002";
    let made = post("/v1/tenants").json(&json!({"name": "a", "id": id})).by(&site.host);
    assert_eq!(made.to(&site.router).await.status, 201);
    let waiting = asking(&site, start("k", "?wait=60s"));
    let run = one_run(&site).await;
    let following = get(&format!("/v1/runs/{run}/events")).by(&site.ours);
    let mut events = following.events(&site.router).await;
    assert!(events.next().await.is_some());
    let suspend = put(&format!("/v1/tenants/{id}")).json(&json!({"suspended": true})).by(&site.host);
    assert_eq!(suspend.to(&site.router).await.status, 200);
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap().is(403, "tenantSuspended");
    while events.next().await.is_some() {}
}

#[tokio::test]
async fn a_stream_ends_when_its_token_expires() {
    let signs = SigningKey::p256("e");
    let issuer = Issuer::start(&[&signs]).await;
    let engine = TestEngine::start(|builder| builder).await.unwrap();
    let tenant = TenantOf::Fixed(stepwell::store::TenantScope::SINGLE);
    let options = IssuerOptions::new("main", issuer.url(), AUDIENCE, tenant);
    let server = Server::new((*engine).clone(), ApiOptions::default()).with_issuers(vec![options]).unwrap();
    let site = Site::of(engine, server).await;
    let mut claims = issuer.claims();
    claims["scope"] = json!("workflow:read");
    let mut events = get("/v1/kv/n/k/watch").by(&signs.token(&claims)).events(&site.router).await;
    assert_eq!(events.next().await.unwrap().2["found"], false);
    site.engine.advance(Duration::from_secs(700)).await;
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn unauthenticated_calls_are_rate_limited_separately() {
    let site = site_of(ApiOptions { anonymous_requests_per_second: 1, ..ApiOptions::default() }).await;
    let hook = async |tenant: u128| {
        let tenant = uuid::Uuid::from_u128(tenant);
        post(&format!("/hooks/{tenant}/x")).json(&json!({})).to(&site.router).await
    };
    let mut last = hook(2).await;
    last.is(404, "notFound");
    for _ in 0..8 {
        last = hook(2).await;
    }
    last.is(429, "tooManyRequests");
    assert!(last.header("retry-after").parse::<u64>().unwrap() >= 1);
    hook(3).await.is(404, "notFound");
    assert_eq!(site.get("/v1/kv").await.status, 200, "requests with a credential have another limit");
    let mut refused = 0;
    for n in 0..100 {
        refused += u32::from(hook(100 + n).await.status == 429);
        assert_eq!(get("/livez").to(&site.router).await.status, 200);
    }
    assert!(refused > 30, "all tenants together have a limit too: {refused}");
}

/// The router for a client at the address 192.0.2.`last`.
fn from(site: &Site, last: u8) -> Router {
    site.router.clone().layer(Extension(Peer(IpAddr::from(Ipv4Addr::new(192, 0, 2, last)))))
}

#[tokio::test]
async fn failed_credentials_are_throttled_without_lockout() {
    let (store, site) = faulty(ApiOptions { auth_failures_per_minute: 5, ..ApiOptions::default() }).await;
    let (here, there) = (from(&site, 1), from(&site, 2));
    let who = async |router: &Router, key: &str| get("/v1/whoami").by(key).to(router).await;
    assert_eq!(who(&here, &site.ours).await.status, 200);
    let guess = |n: usize| format!("Bearer swk_{}_{n:016x}_{}", "0".repeat(32), "x".repeat(43));
    for n in 0..5 {
        assert_eq!(get("/v1/whoami").to(&here).await.status, 401, "no credential, no guess");
        who(&here, &guess(n)).await.is(401, "unauthorized");
    }
    for n in 5..50 {
        let refused = who(&here, &guess(n)).await;
        refused.is(429, "tooManyRequests");
        assert!((1..=61).contains(&refused.header("retry-after").parse::<u64>().unwrap()));
    }
    who(&here, &site.theirs).await.is(429, "tooManyRequests");
    assert_eq!(who(&here, &site.ours).await.status, 200, "a known credential still works");
    assert_eq!(who(&there, &site.theirs).await.status, 200, "other addresses are not throttled");
    store.then(Fault::Before);
    who(&here, &guess(50)).await.is(429, "tooManyRequests");
    let asked = who(&there, &guess(51)).await;
    asked.is(503, "unavailable");
    assert!(!asked.header("retry-after").is_empty(), "throttled requests do not reach the store");
}

/// A site whose store is slow or fails when the test injects a fault.
async fn faulty(options: ApiOptions) -> (Arc<Faulty<MemoryStore>>, Site) {
    let store = Arc::new(Faulty::new(MemoryStore::new(), []));
    let clock = ManualClock::new(BEGINS);
    let engine = TestEngine::start_on(store.clone(), clock, |builder| builder).await.unwrap();
    let server = Server::new((*engine).clone(), options);
    (store, Site::of(engine, server).await)
}

#[tokio::test]
async fn slow_request_times_out_and_its_work_completes() {
    let options = ApiOptions { answer_timeout: Duration::from_secs(2), ..ApiOptions::default() };
    let (store, site) = faulty(options).await;
    let write = || put("/v1/kv/n/k").header("idempotency-key", "k").json(&json!({"value": 7}));
    assert_eq!(site.get("/v1/whoami").await.status, 200, "the API key is cached now");
    store.then(Fault::Delay(Duration::from_secs(5)));
    let late = site.ask(write()).await;
    let problem = late.is(503, "answerTimeout");
    assert!(problem["detail"].as_str().unwrap().contains("same idempotency key"), "{problem}");
    assert_eq!((&problem["retryable"], late.header("retry-after")), (&json!(true), "5"));
    site.ask(write()).await.is(409, "busy");
    let again =
        until("it is written", async || Some(site.ask(write()).await).filter(|reply| reply.status != 409))
            .await;
    assert_eq!(again.header("idempotency-replayed"), "true", "{again:?}");
    assert_eq!(site.get("/v1/kv/n/k").await.json()["value"], 7);
    store.then(Fault::Delay(Duration::from_secs(5)));
    let late = site.get("/v1/kv/n/other").await;
    late.is(503, "answerTimeout");
}

#[tokio::test]
async fn requested_wait_does_not_count_toward_the_timeout() {
    let site = site_of(ApiOptions { answer_timeout: Duration::from_secs(1), ..ApiOptions::default() }).await;
    let waited = site.ask(start("k", "?wait=3s")).await;
    assert_eq!((waited.status.as_u16(), &waited.json()["run"]["status"]), (201, &json!("waiting")));
    let preferred = start("l", "").header("prefer", "wait=3");
    assert_eq!(site.ask(preferred).await.status, 201);
}

#[tokio::test]
async fn challenge_header_matches_the_auth_failure() {
    let site = site_of(ApiOptions::default()).await;
    let view = key_of(&site.server, 2, &[Permission::View]).await;
    let two = get("/v1/whoami").by(&view).by(&site.ours).to(&site.router).await;
    two.is(401, "unauthorized");
    assert_eq!(two.header("www-authenticate"), "Bearer");
    let wrong = get("/v1/whoami").by("Bearer swk_x").to(&site.router).await;
    assert_eq!(wrong.header("www-authenticate"), r#"Bearer error="invalid_token""#);
    let lacks = delete("/v1/kv/n/k").by(&view).to(&site.router).await;
    lacks.is(403, "denied");
    assert_eq!(lacks.header("www-authenticate"), "");
}
