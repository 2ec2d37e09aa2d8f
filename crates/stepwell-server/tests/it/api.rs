//! Flows over HTTP: start, resume, show, and the errors of each.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};
use stepwell::flow::{Message, OutletError};
use stepwell_server::routes::FlowRoutes;

use crate::flows::{World, world, world_with};
use crate::kit::{Reply, TestRequest, ask, get, post, until};

fn resume(token: &str, input: &Value) -> TestRequest {
    post("/v1/flows/resume").json(&json!({"token": token, "input": input}))
}

fn password(password: &str) -> Value {
    json!({"user": "ann", "password": password})
}

/// E1, E2, E9 over HTTP: a flow goes from pause to pause, and an invalid input keeps the token valid.
#[tokio::test]
async fn a_flow_resumes_from_pause_to_pause_under_every_strategy() {
    for strategy in ["sealed", "handle", "durable"] {
        let world = world(strategy).await;
        let begun = world.start("login", json!({})).await;
        assert_eq!(begun.header("content-type"), "application/json");
        assert_eq!(begun.header("cache-control"), "no-store");
        let begun = begun.json();
        assert_eq!((begun["status"].as_str(), begun["strategy"].as_str()), (Some("waiting"), Some(strategy)));
        assert_eq!(begun["waits"][0]["outcomes"], json!(["PASSWORD"]));
        let token = begun["token"].as_str().unwrap();

        let shown = get(&format!("/v1/flows/show?token={token}")).to(&world.router).await;
        assert_eq!((shown.status.as_u16(), &shown.json()["waits"]), (200, &begun["waits"]));
        let unfit = resume(token, &json!({"user": ""})).to(&world.router).await.is(422, "validationFailed");
        let errors = unfit["errors"].as_array().unwrap();
        assert_eq!(errors.len(), 2, "{unfit}");
        let pointers: Vec<_> = errors.iter().map(|error| (&error["pointer"], &error["code"])).collect();
        assert!(pointers.contains(&(&json!("/user"), &json!("minLength"))), "{unfit}");
        assert!(pointers.contains(&(&json!(""), &json!("required"))), "{unfit}");
        if strategy != "durable" {
            let wrong = resume(token, &password("guess")).to(&world.router).await.is(422, "validationFailed");
            assert_eq!(wrong["errors"][0]["pointer"], "/password");
            assert_eq!(wrong["errors"][0]["message"], "this is not the password");
        }
        let asked = resume(token, &password("secret")).to(&world.router).await;
        assert_eq!(asked.status, 200, "{asked:?}");
        let next = asked.json()["token"].as_str().unwrap().to_owned();
        let ended = resume(&next, &json!({"code": "1"})).to(&world.router).await.json();
        assert_eq!(
            (ended["status"].as_str(), &ended["result"]),
            (Some("completed"), &json!({"user": "ann"}))
        );
        assert_eq!((ended.get("token"), ended.get("strategy")), (None, None));
    }
}

#[tokio::test]
async fn same_key_returns_the_same_answer_and_token() {
    let world = world("handle").await;
    let start = || post("/v1/flows/login").header("idempotency-key", "start-1").json(&json!({"input": {}}));
    let first = start().to(&world.router).await;
    let again = start().to(&world.router).await;
    assert_eq!((first.header("idempotency-replayed"), again.header("idempotency-replayed")), ("", "true"));
    assert_eq!((first.status.as_u16(), &first.body), (again.status.as_u16(), &again.body));
    let token = first.json()["token"].as_str().unwrap().to_owned();
    let go = |password: Value| resume(&token, &password).header("idempotency-key", "resume-1");
    let first = go(password("secret")).to(&world.router).await;
    let again = go(password("secret")).to(&world.router).await;
    assert_eq!((first.status.as_u16(), &first.body), (200, &again.body));
    assert_eq!(again.header("idempotency-replayed"), "true");
    go(password("other")).to(&world.router).await.is(422, "keyReused");
    let other =
        post("/v1/flows/login").header("idempotency-key", "start-1").json(&json!({"input": {"a": 1}}));
    other.to(&world.router).await.is(422, "keyReused");
    resume(&token, &password("secret")).to(&world.router).await.is(410, "gone");
    for key in ["", "ä", &"x".repeat(256)] {
        let malformed = post("/v1/flows/login").header("idempotency-key", key).json(&json!({}));
        malformed.to(&world.router).await.is(400, "malformedKey");
    }
}

/// E6: while a step runs, other requests for its handle get 409 with `Retry-After`, as JSON and as a page.
#[tokio::test]
async fn a_busy_flow_is_answered_with_retry_after() {
    let world = world("handle").await;
    let token = world.token("login", json!({})).await;
    let (router, slow) = (world.router.clone(), resume(&token, &password("slow")));
    tokio::spawn(async move { slow.to(&router).await });
    until("the step runs", async || {
        world.handles().await.iter().any(|row| row.owner.is_some()).then_some(())
    })
    .await;
    let busy = resume(&token, &password("secret")).to(&world.router).await;
    assert_eq!(busy.header("retry-after"), "1");
    assert_eq!(busy.is(409, "busy")["retryable"], true);
    let page = post(&format!("/l/{token}"))
        .form("outcome=PASSWORD&user=ann&password=secret")
        .to(&world.router)
        .await;
    assert_eq!((page.status.as_u16(), page.header("retry-after")), (409, "1"));
    assert!(page.header("content-type").starts_with("text/html"));
}

#[tokio::test]
async fn internal_step_errors_are_hidden_from_clients() {
    let world = world("handle").await;
    let token = world.token("login", json!({})).await;
    let locked = resume(&token, &password("locked")).to(&world.router).await.is(422, "stepFailed");
    assert_eq!(locked["detail"], "The account is locked.");
    assert_eq!(locked["params"]["code"], "accountLocked");
    let broken = resume(&token, &password("broken")).to(&world.router).await;
    broken.is(500, "stepFailed");
    assert!(!broken.body.contains("accounts") && !broken.body.contains("app.rs"), "{}", broken.body);
    let page = post(&format!("/l/{token}")).form("user=ann&password=broken").to(&world.router).await;
    assert!(page.status == 500 && !page.body.contains("accounts"), "{}", page.body);
    assert_eq!(
        resume(&token, &password("secret")).to(&world.router).await.status,
        200,
        "the token is still valid"
    );
}

#[tokio::test]
async fn unknown_outcomes_and_workflows_are_refused() {
    let world = world_with("handle", FlowRoutes::new(), |flows| flows.block(["invite"])).await;
    let token = world.token("decision", json!({})).await;
    let which = resume(&token, &Value::Null).to(&world.router).await.is(422, "outcome");
    assert_eq!(which["params"], json!({"given": null, "outcomes": ["APPROVE", "SEND_BACK"]}));
    let wrong = post("/v1/flows/resume").json(&json!({"token": token, "outcome": "MAYBE"}));
    assert_eq!(wrong.to(&world.router).await.is(422, "outcome")["params"]["given"], "MAYBE");
    let right = post("/v1/flows/resume").json(&json!({"token": token, "outcome": "SEND_BACK"}));
    assert_eq!(right.to(&world.router).await.json()["result"], "rejected");
    post("/v1/flows/invite").json(&json!({})).to(&world.router).await.is(403, "notAllowed");
    let unknown = post("/v1/flows/nothing").json(&json!({})).to(&world.router).await;
    assert!(!unknown.is(404, "unknownWorkflow").to_string().contains("login"), "{unknown:?}");
}

#[tokio::test]
async fn a_failed_delivery_is_reported_without_secrets() {
    let send =
        |_: Message| async { Err::<(), _>(OutletError::new("smtp://user:password@host").non_retryable()) };
    let world = world_with("sealed", FlowRoutes::new(), |flows| flows.outlet("mail", send)).await;
    let start = post("/v1/flows/invite").json(&json!({"input": {"outlet": "mail", "to": "ann@example.com"}}));
    let reply = start.to(&world.router).await;
    let problem = reply.is(502, "notSent");
    assert_eq!((&problem["params"]["outlet"], &problem["retryable"]), (&json!("mail"), &json!(true)));
    assert!(!reply.body.contains("password"), "{}", reply.body);
}

async fn refused(world: &World, ask: TestRequest) -> Reply {
    let reply = ask.to(&world.router).await;
    assert_eq!(world.handles().await, [], "nothing was started: {reply:?}");
    reply
}

#[tokio::test]
async fn invalid_requests_are_refused_with_a_code() {
    let world = world_with("handle", FlowRoutes::new().body_limit(1_000), |flows| flows).await;
    let login = || post("/v1/flows/login");
    let json_kind = |ask: TestRequest| ask.header("content-type", "application/json; charset=utf-8");
    let world = &world;
    refused(world, json_kind(login()).body("{\"input\": ")).await.is(400, "malformedJson");
    refused(world, json_kind(login()).body("[".repeat(900))).await.is(400, "malformedJson");
    refused(world, json_kind(login()).body("[]")).await.is(400, "malformedBody");
    let unknown = refused(world, login().json(&json!({"inptu": {}}))).await.is(400, "unknownField");
    assert_eq!(unknown["params"]["field"], "inptu");
    refused(world, login().json(&json!({"input": "x".repeat(1_000)}))).await.is(413, "bodyTooLarge");
    refused(world, login().header("content-type", "text/plain").body("{}"))
        .await
        .is(415, "unsupportedMediaType");
    refused(world, login().form("input=1")).await.is(415, "unsupportedMediaType");
    refused(world, login().body("{}")).await.is(415, "unsupportedMediaType");
    let unknown = refused(world, post("/v1/flows/login?dry=1").json(&json!({}))).await;
    assert_eq!(unknown.is(400, "unknownParameter")["params"]["parameter"], "dry");
    refused(world, get("/v1/flows/show?tokne=x")).await.is(400, "unknownParameter");
    refused(world, post("/v1/flows/resume").json(&json!({"token": 3}))).await.is(400, "malformedBody");
    refused(world, post("/v1/flows/resume").json(&json!({}))).await.is(422, "tokenMissing");
    refused(world, get("/v1/nothing")).await.is(404, "notFound");
    let method = refused(world, ask(Method::DELETE, "/v1/flows/show")).await;
    method.is(405, "methodNotAllowed");
    assert!(method.header("allow").contains("GET"), "{method:?}");
    refused(world, get("/v1/flows/login")).await.is(405, "methodNotAllowed");

    let number = refused(world, login().json(&json!({"input": 3}))).await.is(422, "validationFailed");
    assert_eq!(number["errors"][0]["pointer"], "", "{number}");

    let deep = format!("{{\"input\": {}{}}}", "{\"a\":".repeat(80) + "1", "}".repeat(80));
    refused(world, json_kind(login()).body(deep)).await.is(422, "limit");

    let empty = post("/v1/flows/login").header("x-request-id", "abc-1").to(&world.router).await;
    assert_eq!(
        (empty.status.as_u16(), empty.header("x-request-id")),
        (201, "abc-1"),
        "no body means no input"
    );
    let lost = get("/v1/nothing").header("x-request-id", "abc-2").to(&world.router).await;
    assert_eq!(lost.header("x-request-id"), "abc-2");
}

/// A program that authenticates its callers adds the flows of their tenant to the request.
#[tokio::test]
async fn a_request_may_carry_the_flows_of_another_tenant() {
    let world = world("handle").await;
    let other = stepwell::store::TenantScope::trusted(stepwell::store::TenantId::new(
        "018f0000-0000-7000-8000-000000000001".parse().unwrap(),
    ));
    let router = world.router.clone().layer(axum::Extension(world.flows.for_tenant(other)));
    let begun = post("/v1/flows/login").json(&json!({})).to(&router).await.json();
    let token = begun["token"].as_str().unwrap();
    let show = || get("/v1/flows/show").header("x-flow-token", token);
    assert_eq!(show().to(&router).await.status, 200);
    show().to(&world.router).await.is(410, "gone");
    let page = get(&format!("/l/{token}")).to(&world.router).await;
    assert_eq!(page.status, 200, "a link names its tenant");
    world.engine.advance(Duration::from_secs(1)).await;
}
