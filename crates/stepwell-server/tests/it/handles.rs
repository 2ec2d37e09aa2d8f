//! Handles over HTTP: listed, revoked and cleaned up.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::testing::TestEngine;
use stepwell::{Builder, Permission};
use stepwell_server::api::{ApiOptions, Server};

use crate::flows::{flows_on, workflows};
use crate::kit::{get, post};
use crate::site::Site;
use crate::table::key_of;
use crate::tokens::{begun, password, resume, site, token};

/// E2, E5: handles of the tenant, without their secrets.
#[tokio::test]
async fn handles_are_listed_and_found_by_workflow_and_flow() {
    let site = site("handle").await;
    let (login, invite) = (begun(&site, "login", json!({})).await, begun(&site, "invite", json!({})).await);
    let handles = async |query: &str| site.get(&format!("/v1/handles?{query}")).await.json()["items"].clone();
    let all = handles("").await;
    assert_eq!(all.as_array().unwrap().len(), 2, "{all}");
    assert!(!all.to_string().contains(token(&login).rsplit('.').next().unwrap()));
    let one = handles("workflow=login").await;
    assert_eq!((&one[0]["run"], &one[0]["kind"]), (&login["flow"], &json!("flow")), "{one}");
    assert_eq!((&one[0]["createdBy"], &one[0]["reserved"]), (&json!("apikey:test"), &json!(false)));
    assert_eq!(one[0]["expiresAt"], "2026-01-01T01:00:00Z");
    let flow = invite["flow"].as_str().unwrap();
    assert_eq!(handles(&format!("run={flow}")).await[0]["workflow"], "invite");
    assert_eq!(handles("createdBy=apikey:nobody").await, json!([]));
    let page = site.get("/v1/handles?limit=1").await.json();
    let next = page["nextCursor"].as_str().unwrap();
    assert_eq!(handles(&format!("cursor={next}")).await.as_array().unwrap().len(), 1);
    site.get("/v1/handles?cursor=nonsense").await.is(422, "invalid");
    site.get("/v1/handles?where=city%3DBonn").await.is(422, "invalid");
    assert_eq!(handles("workflow=login&where=city%3DBonn").await, json!([]));
    assert_eq!(site.elsewhere(get("/v1/handles")).await.json(), json!({"items": []}));
}

#[tokio::test]
async fn tokens_are_revoked_by_their_flow_or_by_who_began_it_and_only_in_their_tenant() {
    let site = site("handle").await;
    let (one, two) = (begun(&site, "login", json!({})).await, begun(&site, "login", json!({})).await);
    let revoke = |which: &Value| post("/v1/handles/revoke").json(which);
    let flow = json!({"flow": one["flow"]});
    assert_eq!(site.elsewhere(revoke(&flow)).await.json(), json!({"count": 0}));
    assert_eq!(site.ask(revoke(&flow)).await.json(), json!({"count": 1}));
    resume(token(&one), &password("secret")).to(&site.router).await.is(410, "gone");
    assert_eq!(site.ask(revoke(&json!({"actor": "apikey:test"}))).await.json(), json!({"count": 1}));
    resume(token(&two), &password("secret")).to(&site.router).await.is(410, "gone");
    for wrong in
        [json!({}), json!({"flow": "x"}), json!({"flow": one["flow"], "actor": "a"}), json!({"actor": ""})]
    {
        site.ask(revoke(&wrong)).await.is(400, "badBody");
    }
    // Whoever administers tokens need not see flows.
    let admin = key_of(&site.server, 2, &[Permission::Admin]).await;
    assert_eq!(revoke(&flow).by(&admin).to(&site.router).await.status, 200);
}

/// E13: `never` is a value of its own.
#[tokio::test]
async fn handles_that_are_over_are_cleaned_up() {
    let keeps = |builder: Builder| workflows(builder).with(|options| options.handles_kept_ms = None);
    let engine = TestEngine::start(keeps).await.unwrap();
    let flows = flows_on(&engine, "handle", |flows| flows);
    let server = Server::new((*engine).clone(), ApiOptions::default()).with_flows(flows);
    let site = Site::of(engine, server).await;
    begun(&site, "login", json!({})).await;
    let clean = async |body: Value| site.post("/v1/handles/cleanup", &body).await;
    assert_eq!(clean(json!({})).await.json(), json!({"count": 0}));
    site.engine.advance(Duration::from_secs(3_600)).await;
    for (body, count) in [
        (json!({"retention": "never"}), 0),
        (json!({"retention": "1h"}), 0),
        (json!({"retention": "PT0S"}), 1),
    ] {
        let theirs = site.elsewhere(post("/v1/handles/cleanup")).await;
        assert_eq!(theirs.json(), json!({"count": 0}));
        assert_eq!(clean(body).await.json(), json!({"count": count}));
    }
    clean(json!({"retention": "soon"})).await.is(400, "badBody");
}
