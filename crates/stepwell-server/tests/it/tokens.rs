//! The server's routes for flows and for the keys that seal their tokens.

use serde_json::{Value, json};
use stepwell::Permission;
use stepwell::flow::{Key, Message, OutletError};
use stepwell_server::api::{ApiOptions, Server};

use crate::flows::flows_with;
use crate::kit::{TestRequest, get, post};
use crate::site::Site;
use crate::table::key_of;

pub(crate) async fn site(begin: &str) -> Site {
    let send = |_: Message| async { Ok::<(), OutletError>(()) };
    let (engine, flows) = flows_with(begin, |flows| flows.outlet("mail", send)).await;
    let server = Server::new((*engine).clone(), ApiOptions::default()).with_flows(flows);
    Site::of(engine, server).await
}

pub(crate) async fn begun(site: &Site, workflow: &str, input: Value) -> Value {
    let begun = site.post(&format!("/v1/flows/{workflow}"), &json!({"input": input})).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    begun.json()
}

pub(crate) fn token(begun: &Value) -> &str {
    begun["token"].as_str().unwrap()
}

pub(crate) fn resume(token: &str, input: &Value) -> TestRequest {
    post("/v1/flows/resume").json(&json!({"token": token, "input": input}))
}

pub(crate) fn password(password: &str) -> Value {
    json!({"user": "ann", "password": password})
}

/// E1, E2, E3, E9: a resume needs only the token, which names its tenant.
#[tokio::test]
async fn flow_start_needs_a_key_and_resume_only_its_token() {
    for strategy in ["sealed", "handle", "durable"] {
        let site = site(strategy).await;
        post("/v1/flows/login").json(&json!({})).to(&site.router).await.is(401, "unauthorized");
        let begun = begun(&site, "login", json!({})).await;
        assert_eq!((&begun["status"], &begun["strategy"]), (&json!("waiting"), &json!(strategy)));
        assert_eq!(begun["waits"][0]["outcomes"], json!(["PASSWORD"]));
        let token = token(&begun);
        let shown = get("/v1/flows/show").header("x-flow-token", token).to(&site.router).await;
        assert_eq!((shown.status.as_u16(), &shown.json()["waits"]), (200, &begun["waits"]));
        let unfit = resume(token, &json!({"user": ""})).to(&site.router).await.is(422, "validationFailed");
        assert!(unfit["traceId"].is_string() && unfit["errors"].as_array().unwrap().len() == 2, "{unfit}");
        let asked = resume(token, &password("secret")).to(&site.router).await;
        assert_eq!(asked.status, 200, "{asked:?}");
        let next = asked.json()["token"].as_str().unwrap().to_owned();
        let ended = resume(&next, &json!({"code": "1"})).to(&site.router).await.json();
        assert_eq!((&ended["status"], &ended["result"]), (&json!("completed"), &json!({"user": "ann"})));
    }
}

/// E8, E10: used and unknown tokens get the same answer, and the `Authorization` header is not read as a token.
#[tokio::test]
async fn invalid_tokens_get_one_answer_and_bearer_is_ignored() {
    let site = site("handle").await;
    let begun = begun(&site, "login", json!({})).await;
    let token = token(&begun);
    for wrong in ["", "x", "handle.x", &token[..token.len() - 1]] {
        resume(wrong, &json!({})).to(&site.router).await.is(410, "gone");
        get(&format!("/v1/flows/show?token={wrong}")).to(&site.router).await.is(410, "gone");
    }
    post("/v1/flows/resume").by(&format!("Bearer {token}")).to(&site.router).await.is(422, "tokenMissing");
    let two = get(&format!("/v1/flows/show?token={token}")).header("x-flow-token", "other");
    two.to(&site.router).await.is(422, "tokensDiffer");
    post("/v1/flows/resume").json(&json!({"tokne": token})).to(&site.router).await.is(400, "badBody");
    let used = resume(token, &password("secret")).to(&site.router).await;
    assert_eq!(used.status, 200);
    resume(token, &password("secret")).to(&site.router).await.is(410, "gone");
}

/// E6: the same key gets the same answer, including the next token.
#[tokio::test]
async fn same_key_returns_the_same_answer_and_token() {
    let site = site("handle").await;
    let start = || post("/v1/flows/login").header("idempotency-key", "s-1").json(&json!({"input": {}}));
    let (first, again) = (site.ask(start()).await, site.ask(start()).await);
    assert_eq!((first.status.as_u16(), &first.body), (201, &again.body));
    assert_eq!((first.header("idempotency-replayed"), again.header("idempotency-replayed")), ("", "true"));
    let first = first.json();
    let go = |word: &str| resume(token(&first), &password(word)).header("idempotency-key", "r-1");
    let (one, two) = (go("secret").to(&site.router).await, go("secret").to(&site.router).await);
    assert_eq!(
        (one.status.as_u16(), &one.body, two.header("idempotency-replayed")),
        (200, &two.body, "true")
    );
    go("other").to(&site.router).await.is(422, "keyReused");
    // The same idempotency key in another tenant is another key.
    let theirs = site.as_other_tenant(start()).await;
    assert_eq!((theirs.status.as_u16(), theirs.header("idempotency-replayed")), (201, ""));
    assert_ne!(theirs.json()["flow"], first["flow"]);
}

#[tokio::test]
async fn invalid_flow_starts_are_refused() {
    let site = site("handle").await;
    site.post("/v1/flows/nothing", &json!({})).await.is(404, "unknownWorkflow");
    site.post("/v1/flows/login", &json!({"inptu": 1})).await.is(400, "badBody");
    site.post("/v1/flows/login", &json!({"input": 3})).await.is(422, "validationFailed");
    site.get("/v1/flows/login").await.is(405, "methodNotAllowed");
    let bare = site.ask(post("/v1/flows/login")).await;
    assert_eq!(bare.status, 201, "the body is optional");
    let viewer = key_of(&site.server, 2, &[Permission::View]).await;
    post("/v1/flows/login").by(&viewer).to(&site.router).await.is(403, "denied");
}

/// E8: the page can be opened any number of times; the link accepts one answer.
#[tokio::test]
async fn link_shows_a_form_and_is_answered_once() {
    let site = site("handle").await;
    let begun = begun(&site, "invite", json!({"prompt": "Ann invites you"})).await;
    let link = format!("/l/{}", token(&begun));
    for path in [link.clone(), format!("{link}?utm_source=mail")] {
        let page = get(&path).to(&site.router).await;
        assert_eq!((page.status.as_u16(), page.header("content-type")), (200, "text/html; charset=utf-8"));
        assert!(page.body.contains("Ann invites you"), "{page:?}");
        assert!(page.header("content-security-policy").contains("form-action 'self'"), "{page:?}");
        assert_eq!((page.header("referrer-policy"), page.header("x-robots-tag")), ("no-referrer", "noindex"));
        assert!(!page.header("x-request-id").is_empty(), "{page:?}");
    }
    let wrong = post(&link).form("outcome=ACCEPT&name=A&age=20").to(&site.router).await;
    assert_eq!((wrong.status.as_u16(), wrong.header("content-type")), (422, "text/html; charset=utf-8"));
    let json_wanted = || get(&link).header("accept", "application/json");
    assert_eq!(json_wanted().to(&site.router).await.json()["waits"][0]["outcomes"], json!(["ACCEPT"]));
    let taken = post(&link).form("outcome=ACCEPT&name=Bea&age=20").to(&site.router).await;
    assert_eq!(taken.status, 200, "{taken:?}");
    let gone = get(&link).to(&site.router).await;
    assert_eq!((gone.status.as_u16(), gone.header("content-type")), (410, "text/html; charset=utf-8"));
    json_wanted().to(&site.router).await.is(410, "gone");
    let large = post(&link).form(&"x".repeat(300 * 1024)).to(&site.router).await;
    large.is(413, "bodyTooLarge");
}

/// E1: keys have ids and can be rotated; their secrets are never shown.
#[tokio::test]
async fn sealing_keys_are_listed_by_id() {
    let (engine, flows) = flows_with("sealed", |flows| flows).await;
    let ring = flows.keys().clone();
    let server = Server::new((*engine).clone(), ApiOptions::default()).with_flows(flows);
    let site = Site::of(engine, server).await;
    let newer = Key::generate("newer").unwrap();
    ring.rotate(newer.clone()).unwrap();
    let listed = site.get("/v1/keys").await;
    assert_eq!(
        listed.json(),
        json!({"items": [{"id": "newer", "seals": true}, {"id": "test", "seals": false}]})
    );
    assert!(!listed.body.contains(&newer.reveal()));
}

#[tokio::test]
async fn a_server_without_flows_says_what_to_configure() {
    let site = Site::open().await;
    let problem = site.post("/v1/flows/login", &json!({})).await.is(404, "noFlows");
    assert!(problem["detail"].as_str().unwrap().contains("configure a key"), "{problem}");
    for path in ["/v1/flows/show?token=x", "/l/x", "/v1/handles", "/v1/keys"] {
        site.get(path).await.is(404, "noFlows");
    }
    site.post("/v1/handles/revoke", &json!({"actor": "a"})).await.is(404, "noFlows");
}
