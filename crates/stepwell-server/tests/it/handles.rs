//! Flow handles over HTTP: list, revoke and clean up.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::Spec;
use stepwell::core::shadow::Shadow;
use stepwell::testing::TestEngine;
use stepwell::{Builder, Permission};
use stepwell_server::api::{ApiOptions, Server};

use crate::flows::{flows_on, workflows};
use crate::kit::{get, post};
use crate::site::Site;
use crate::table::key_of;
use crate::tokens::{begun, password, resume, site, token};

/// E2, E5: the list has only the tenant's handles, without their secrets.
#[tokio::test]
async fn handles_are_filtered_by_workflow_and_flow() {
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
    site.get("/v1/handles?workflow=login&where=city%3DBonn").await.is(422, "invalid");
    assert_eq!(site.as_other_tenant(get("/v1/handles")).await.json(), json!({"items": []}));
}

#[tokio::test]
async fn tokens_are_revoked_by_flow_or_actor_within_the_tenant() {
    let site = site("handle").await;
    let (one, two) = (begun(&site, "login", json!({})).await, begun(&site, "login", json!({})).await);
    let revoke = |which: &Value| post("/v1/handles/revoke").json(which);
    let flow = json!({"flow": one["flow"]});
    assert_eq!(site.as_other_tenant(revoke(&flow)).await.json(), json!({"count": 0}));
    assert_eq!(site.ask(revoke(&flow)).await.json(), json!({"count": 1}));
    resume(token(&one), &password("secret")).to(&site.router).await.is(410, "gone");
    assert_eq!(site.ask(revoke(&json!({"actor": "apikey:test"}))).await.json(), json!({"count": 1}));
    resume(token(&two), &password("secret")).to(&site.router).await.is(410, "gone");
    for wrong in
        [json!({}), json!({"flow": "x"}), json!({"flow": one["flow"], "actor": "a"}), json!({"actor": ""})]
    {
        site.ask(revoke(&wrong)).await.is(400, "badBody");
    }
    // Revoking tokens needs `workflow:admin` only, not a permission to see flows.
    let admin = key_of(&site.server, 2, &[Permission::Admin]).await;
    assert_eq!(revoke(&flow).by(&admin).to(&site.router).await.status, 200);
}

/// E13: a retention removes the handles that expired at least that long ago; `never` removes none.
#[tokio::test]
async fn expired_handles_are_cleaned_up() {
    let keeps = |builder: Builder| workflows(builder).with(|options| options.handle_retention_ms = None);
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
        let theirs = site.as_other_tenant(post("/v1/handles/cleanup")).await;
        assert_eq!(theirs.json(), json!({"count": 0}));
        assert_eq!(clean(body).await.json(), json!({"count": count}));
    }
    clean(json!({"retention": "soon"})).await.is(400, "badBody");
}

/// E11: the list of flows shows their columns and is filtered by them.
#[tokio::test]
async fn handles_are_listed_with_their_columns() {
    let visit = Spec::new("visit").wait("open", "GO").end("over").signal("GO").auto("end", "open", "over");
    let visit =
        visit.initial("open").shadow("city", Shadow::string("city")).shadow("age", Shadow::number("age"));
    let engine = TestEngine::start(|builder| builder.workflow(visit.build().unwrap())).await.unwrap();
    let flows = flows_on(&engine, "handle", |flows| flows);
    let server = Server::new((*engine).clone(), ApiOptions::default()).with_flows(flows);
    let site = Site::of(engine, server).await;
    for (city, age) in [("Bonn", 30), ("Ulm", 20), ("Bo", 10)] {
        begun(&site, "visit", json!({"city": city, "age": age})).await;
    }
    let listed = async |query: &str| {
        let page = site.get(&format!("/v1/handles?{query}")).await.json();
        page["items"].as_array().unwrap().iter().map(|row| row["columns"].clone()).collect::<Vec<_>>()
    };
    let (bonn, ulm, bo) = (
        json!({"city": "Bonn", "age": 30}),
        json!({"city": "Ulm", "age": 20}),
        json!({"city": "Bo", "age": 10}),
    );
    assert_eq!(listed("").await, [bonn.clone(), ulm.clone(), bo.clone()]);
    assert_eq!(listed("workflow=visit&where=city%5E%3DBo").await, [bo.clone(), bonn]);
    assert_eq!(listed("workflow=visit&where=age%3C30").await, [bo, ulm]);
    let unknown = site.get("/v1/handles?workflow=visit&where=town%3DBonn").await;
    assert_eq!(unknown.status, 422, "{unknown:?}");
}
