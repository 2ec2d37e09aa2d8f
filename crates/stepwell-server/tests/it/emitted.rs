//! Events over the API: accepted once, looked up, described by event types, and received by webhooks.

use axum::http::Method;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use stepwell::Secrets;
use stepwell::host::BoxFuture;
use stepwell::store::TenantScope;
use uuid::Uuid;

use crate::kit::{Reply, TestRequest, post, until};
use crate::test_server::{TestServer, our_tenant};

const RECEIPT: &str = "
triggers:
  - { id: paid, type: event, eventName: PAID, filter: event.cents > 0 }
  - { id: hub, type: webhook, path: hub/orders, secret: HOOK, signature: github }
  - { id: open, type: webhook, path: open, input: { order: { $expr: event.query.order }, body: { $expr: event.body } } }
steps: [{ id: done, type: control.return, value: { $expr: payload } }]
";
const SECRET: &str = "not a secret";

struct Hook;

impl Secrets for Hook {
    fn secret(&self, _: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
        let found = (name == "HOOK").then(|| SECRET.to_owned());
        Box::pin(async move { Ok(found) })
    }
}

async fn server() -> TestServer {
    let server = TestServer::with(|engine| engine.secrets(Hook)).await;
    server.publish("receipt", RECEIPT).await;
    server
}

fn paid(id: &str, cents: i64) -> Value {
    json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "PAID", "data": {"cents": cents}})
}

async fn emit(server: &TestServer, event: &Value) -> Reply {
    let kind =
        if event.is_array() { "application/cloudevents-batch+json" } else { "application/cloudevents+json" };
    let asked = server.ask(Method::POST, "/v1/events").header("content-type", kind);
    asked.body(event.to_string()).to(&server.router).await
}

/// Waits until an event is delivered to all its triggers and waiting runs, and returns it.
async fn delivered(server: &TestServer, event: &Value) -> Value {
    let path = format!("/v1/events/{}", event.as_str().unwrap());
    let shown = async || Some(server.get(&path).await.json()).filter(|event| event["delivered"] == true);
    until("the event is delivered", shown).await
}

#[tokio::test]
async fn an_event_is_accepted_once_in_every_format() {
    let server = server().await;
    let first = emit(&server, &paid("1", 5)).await;
    assert_eq!((first.status.as_u16(), &first.json()["created"]), (202, &json!(true)), "{first:?}");
    let event = first.json()["event"].clone();
    assert_eq!(first.header("location"), format!("/v1/events/{}", event.as_str().unwrap()));
    let shown = delivered(&server, &event).await;
    assert_eq!(
        (&shown["name"], &shown["source"], &shown["data"]),
        (&json!("PAID"), &json!("/shop"), &json!({"cents": 5}))
    );
    let outcome = &shown["triggers"][0];
    assert_eq!(
        (&outcome["workflow"], &outcome["trigger"], &outcome["outcome"]),
        (&json!("receipt"), &json!("paid"), &json!("started"))
    );
    let run = format!("/v1/runs/{}?wait=20s", outcome["run"].as_str().unwrap());
    assert_eq!(server.get(&run).await.json()["result"], json!({"cents": 5}));

    let batch = emit(&server, &json!([paid("1", 9), paid("2", 0)])).await.json();
    assert_eq!((&batch["items"][0]["created"], &batch["items"][1]["created"]), (&json!(false), &json!(true)));
    assert_eq!(batch["items"][0]["event"], event);
    assert_eq!(delivered(&server, &event).await["duplicates"], 1);
    let filtered = delivered(&server, &batch["items"][1]["event"]).await;
    assert_eq!(
        (&filtered["triggers"][0]["outcome"], &filtered["triggers"][0]["values"]),
        (&json!("filtered"), &json!({"cents": 0}))
    );
    let binary = server.ask(Method::POST, "/v1/events").header("ce-specversion", "1.0").header("ce-id", "3");
    let binary = binary.header("ce-source", "/shop").header("ce-type", "PAID").json(&json!({"cents": 1}));
    assert_eq!(binary.to(&server.router).await.status, 202);
    let plain = server.ask(Method::POST, "/v1/events").header("ce-specversion", "1.0").header("ce-id", "4");
    let plain = plain.header("ce-source", "/shop").header("ce-type", "SAID").to(&server.router).await;
    assert_eq!(plain.status, 202, "an event may have no data: {plain:?}");
}

#[tokio::test]
async fn events_before_a_refused_one_are_accepted() {
    let server = server().await;
    let bad = emit(&server, &json!([paid("1", 1), {"id": "2"}])).await.is(400, "malformedEvent");
    assert_eq!(bad["params"]["index"], 1);
    server.post("/v1/events", &json!({"cents": 1})).await.is(415, "unsupportedMediaType");
    let kind = json!({"schema": {"type": "object", "required": ["cents"]}});
    assert_eq!(server.put("/v1/event-types/PAID", &kind).await.status, 200);
    let mut other = paid("b", 1);
    other["data"] = json!({});
    let some = emit(&server, &json!([paid("a", 1), other])).await.is(422, "eventRefused");
    assert_eq!(some["params"]["accepted"], 1, "{some}");
    assert_eq!(emit(&server, &paid("a", 1)).await.json()["created"], false);
    server.get(&format!("/v1/events/{}", Uuid::now_v7())).await.is(404, "noEvent");
    server.get("/v1/events/x").await.is(400, "badParameter");
    let asked = server.ask(Method::POST, "/v1/events?dry=1").to(&server.router).await;
    asked.is(400, "unknownParameter");
}

#[tokio::test]
async fn event_types_can_be_described() {
    let server = server().await;
    let path = "/v1/event-types/com.example.paid";
    server.get(path).await.is(404, "noEventType");
    server.delete(path).await.is(404, "noEventType");
    let kind =
        json!({"about": "Something was paid.", "schema": {"type": "object"}, "correlation": "event.order"});
    let put = server.put(path, &kind).await.json();
    assert_eq!((&put["name"], &put["about"]), (&json!("com.example.paid"), &kind["about"]));
    assert_eq!(server.get(path).await.json(), put);
    server.put("/v1/event-types/B", &json!({})).await;
    let page = server.get("/v1/event-types?limit=1").await.json();
    let next = page["nextCursor"].as_str().unwrap();
    let rest = server.get(&format!("/v1/event-types?limit=1&cursor={next}")).await.json();
    assert_eq!((&page["items"][0]["name"], &rest["items"][0]), (&json!("B"), &put));
    for bad in [json!({"schema": {"type": "objet"}}), json!({"correlation": "event.("})] {
        server.put(path, &bad).await.is(422, "invalid");
    }
    server.put(path, &json!({"name": "x"})).await.is(400, "badBody");

    assert_eq!(server.as_other_tenant(Method::GET, "/v1/event-types", None).await.json()["items"], json!([]));
    server.as_other_tenant(Method::GET, path, None).await.is(404, "noEventType");
    server.as_other_tenant(Method::DELETE, path, None).await.is(404, "noEventType");
    assert_eq!(server.delete(path).await.status, 204);
    server.get(path).await.is(404, "noEventType");
}

#[tokio::test]
async fn events_are_visible_only_to_their_tenant() {
    let server = server().await;
    let ours = emit(&server, &paid("1", 5)).await.json();
    delivered(&server, &ours["event"]).await;
    let path = format!("/v1/events/{}", ours["event"].as_str().unwrap());
    server.as_other_tenant(Method::GET, &path, None).await.is(404, "noEvent");
    let theirs = server.as_other_tenant(Method::GET, "/v1/runs?workflow=stepwell.event", None).await.json();
    assert_eq!(theirs["items"], json!([]));
}

fn signed(body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A webhook call, which has no credentials.
fn hook(path: &str) -> TestRequest {
    post(&format!("/hooks/{}/{path}", our_tenant()))
}

#[tokio::test]
async fn a_webhook_call_needs_only_its_signature() {
    let server = server().await;
    let body = r#"{"order":"o-1"}"#;
    let call = |signature: &str| {
        let asked = hook("hub/orders").header("x-hub-signature-256", &format!("sha256={signature}"));
        asked.header("x-github-delivery", "d-1").header("content-type", "application/json").body(body)
    };
    for created in [true, false] {
        let taken = call(&signed(body)).to(&server.router).await;
        assert_eq!((taken.status.as_u16(), &taken.json()["items"][0]["created"]), (202, &json!(created)));
    }
    call(&signed("other")).to(&server.router).await.is(401, "unsigned");
    hook("hub/orders").body(body).to(&server.router).await.is(401, "unsigned");
    hook("hub").to(&server.router).await.is(404, "notFound");
    post("/hooks/not-a-tenant/open").to(&server.router).await.is(404, "notFound");
    let theirs = post(&format!("/hooks/{}/open", Uuid::from_u128(2))).to(&server.router).await;
    theirs.is(404, "notFound");
    let open = hook("open?order=o-9&order=o-10&x=").header("content-type", "text/plain").body("plain");
    let open = open.to(&server.router).await;
    assert_eq!(open.status, 202, "{open:?}");
    let shown = delivered(&server, &open.json()["items"][0]["event"]).await;
    let run = format!("/v1/runs/{}?wait=20s", shown["triggers"][0]["run"].as_str().unwrap());
    assert_eq!(server.get(&run).await.json()["result"], json!({"order": "o-10", "body": "plain"}));
    let broken = hook("open").header("content-type", "application/json").body("{").to(&server.router).await;
    broken.is(400, "malformedBody");
}
