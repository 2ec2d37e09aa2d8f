//! Events over HTTP: CloudEvents in every format, and webhook calls with their signatures.

use axum::Router;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use stepwell::core::{RunId, WorkflowSource};
use stepwell::events::{Fired, TriggerLog};
use stepwell::host::BoxFuture;
use stepwell::store::TenantScope;
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{EventType, Secrets};
use stepwell_server::routes::{EventRoutes, event_routes};

use crate::kit::{TestRequest, ask, post};

const SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const RECEIPT: &str = "
triggers:
  - { id: paid, type: event, eventName: com.example.paid, input: { order: { $expr: event.order }, from: { $expr: meta.source } } }
  - { id: hook, type: webhook, path: shop/orders, secret: { $secret: HOOK } }
  - { id: hub, type: webhook, path: hub, secret: HOOK, signature: github, filter: 'event.headers.`x-github-event` = \"push\"' }
  - { id: own, type: webhook, path: own, secret: HOOK, signature: { header: X-Sig, prefix: 'v=' }, input: { got: { $expr: event.body } } }
  - { id: open, type: webhook, path: open, input: { order: { $expr: event.query.order }, auth: { $expr: event.headers.authorization ?? 'hidden' } } }
  - { id: lost, type: webhook, path: lost, secret: MISSING }
steps: [{ id: done, type: control.return, value: { $expr: payload } }]
";

struct Hook;

impl Secrets for Hook {
    fn secret(&self, _: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
        let found = (name == "HOOK").then(|| SECRET.to_owned());
        Box::pin(async move { Ok(found) })
    }
}

async fn world() -> (TestEngine, Router) {
    let document =
        WorkflowSource::read(RECEIPT, Some("receipt")).unwrap_or_else(|problems| panic!("{problems}"));
    let definition = document.definition().clone();
    let engine = TestEngine::start(|engine| engine.workflow(definition).secrets(Hook)).await.unwrap();
    let router = event_routes(engine.engine().clone(), EventRoutes::new().body_limit(4_096));
    (engine, router)
}

/// Returns the results of the runs that a trigger started, newest first.
async fn results(engine: &TestEngine, trigger: &str) -> Vec<Value> {
    engine.settle().await;
    let query = TriggerLog { limit: 100, ..TriggerLog::default() };
    let log = engine.trigger_log("receipt", trigger, query).await.unwrap();
    let mut given = Vec::new();
    for entry in log.items {
        if let Fired::Started { run } = entry.result {
            given.push(engine.run(run).result().await.unwrap());
        }
    }
    given
}

fn cloud(id: &str) -> Value {
    json!({
        "specversion": "1.0", "id": id, "source": "/shop", "type": "com.example.paid", "time": "2026-01-01T00:00:00Z",
        "subject": "o-1", "datacontenttype": "application/json", "traceparent": "00-0", "data": {"order": "o-1"},
    })
}

fn structured(body: &Value) -> TestRequest {
    post("/v1/events")
        .header("content-type", "application/cloudevents+json; charset=utf-8")
        .body(body.to_string())
}

#[tokio::test]
async fn cloud_events_are_accepted_once_in_every_format() {
    let (engine, router) = world().await;
    let first = structured(&cloud("1")).to(&router).await;
    assert_eq!((first.status.as_u16(), first.json()["created"].clone()), (202, json!(true)), "{first:?}");
    let event: RunId = first.json()["event"].as_str().unwrap().parse().unwrap();
    let kept = engine.event(event).await.unwrap().unwrap().kept;
    assert_eq!(
        (kept.source.as_str(), kept.subject.as_deref(), kept.time),
        ("/shop", Some("o-1"), Some(BEGINS))
    );
    let batch = json!([cloud("1"), cloud("2")]);
    let batch = post("/v1/events")
        .header("content-type", "application/cloudevents-batch+json")
        .body(batch.to_string());
    let answer = batch.to(&router).await.json();
    assert_eq!(
        (&answer["items"][0]["created"], &answer["items"][1]["created"]),
        (&json!(false), &json!(true))
    );
    let binary = || {
        let ask = post("/v1/events").header("ce-specversion", "1.0").header("CE-Type", "com.example.paid");
        ask.header("ce-source", "/shop%20floor").header("content-type", "application/json")
    };
    let third = binary().header("ce-id", "3").body(r#"{"order": "o-3"}"#).to(&router).await;
    assert_eq!((third.status.as_u16(), third.json()["created"].clone()), (202, json!(true)), "{third:?}");
    let mut given = results(&engine, "paid").await;
    given.sort_by_key(ToString::to_string);
    let o1 = json!({"order": "o-1", "from": "/shop"});
    assert_eq!(given, [json!({"order": "o-3", "from": "/shop floor"}), o1.clone(), o1]);
    let coded = json!({
        "specversion": "1.0", "id": "b", "source": "/shop", "type": "com.example.paid",
        "datacontenttype": "application/json", "data_base64": STANDARD.encode(r#"{"order": "o-b"}"#),
    });
    assert_eq!(structured(&coded).to(&router).await.status, 202);
    assert_eq!(results(&engine, "paid").await[0]["order"], "o-b");
}

#[tokio::test]
async fn an_invalid_cloud_event_is_refused_with_the_reason() {
    let (engine, router) = world().await;
    let without = |field: &str| {
        let mut event = cloud("1");
        event.as_object_mut().unwrap().remove(field);
        event
    };
    let with = |field: &str, value: Value| {
        let mut event = cloud("1");
        event[field] = value;
        event
    };
    for (event, said) in [
        (without("id"), "`id` is missing"),
        (without("source"), "`source` is missing"),
        (without("type"), "`type` is missing"),
        (without("specversion"), "`specversion` is missing"),
        (with("specversion", json!("0.3")), "(got `0.3`)"),
        (with("id", json!(7)), "`id` must be a non-empty string"),
        (with("time", json!("yesterday")), "`time` must be a timestamp"),
        (with("Bad-Name", json!("x")), "`Bad-Name` is not a valid attribute name"),
        (with("data_base64", json!("eA==")), "mutually exclusive"),
        (json!([1]), "a JSON object"),
    ] {
        let problem = structured(&event).to(&router).await.is(400, "malformedEvent");
        assert!(problem["detail"].as_str().unwrap().contains(said), "{said}: {problem}");
    }
    let bare = post("/v1/events").json(&json!({"order": 1})).to(&router).await.is(400, "malformedEvent");
    assert!(bare["detail"].as_str().unwrap().contains("ce-specversion"), "{bare}");
    let batch = json!([cloud("1"), without("id")]);
    let batch = post("/v1/events")
        .header("content-type", "application/cloudevents-batch+json")
        .body(batch.to_string());
    assert_eq!(batch.to(&router).await.is(400, "malformedEvent")["params"]["index"], 1);
    structured(&with("data", json!("x".repeat(5_000)))).to(&router).await.is(413, "bodyTooLarge");
    let protobuf = post("/v1/events").header("content-type", "application/cloudevents+protobuf").body("x");
    protobuf.to(&router).await.is(400, "malformedEvent");
    let kind = EventType::new("com.example.paid").schema(json!({"type": "object", "required": ["order"]}));
    engine.put_event_type(kind).await.unwrap();
    let refused = structured(&with("data", json!({}))).to(&router).await.is(422, "eventRefused");
    assert!(refused["detail"].as_str().unwrap().contains("order"), "{refused}");
    ask(axum::http::Method::GET, "/v1/events").to(&router).await.is(405, "methodNotAllowed");
    assert_eq!(results(&engine, "paid").await, [] as [Value; 0]);
}

fn sign(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn path(path: &str) -> String {
    format!("/hooks/{}/{path}", TenantScope::single().tenant())
}

/// A call signed with the Standard Webhooks scheme, with a timestamp `late_s` seconds in the past.
fn standard(id: &str, late_s: i64, body: &str) -> TestRequest {
    signed_as(id, id, late_s, body)
}

/// The same, but sent with `id` and signed for the id `signed`.
fn signed_as(signed: &str, id: &str, late_s: i64, body: &str) -> TestRequest {
    let time = BEGINS.micros() / 1_000_000 - late_s;
    let key = STANDARD.decode(SECRET.strip_prefix("whsec_").unwrap()).unwrap();
    let signature = STANDARD.encode(sign(&key, &format!("{signed}.{time}.{body}")));
    post(&path("shop/orders"))
        .header("webhook-id", id)
        .header("webhook-timestamp", &time.to_string())
        .header("webhook-signature", &format!("v1a,none v1,{signature}"))
        .header("content-type", "application/json")
        .body(body.to_owned())
}

#[tokio::test]
async fn a_signed_call_starts_the_workflow_once_per_id() {
    let (engine, router) = world().await;
    for is_new in [true, false] {
        let answer = standard("m-1", 10, r#"{"order":"o-1"}"#).to(&router).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        assert_eq!(answer.json()["items"][0]["created"], json!(is_new));
    }
    standard("m-2", -10, r#"{"order":"o-2"}"#).to(&router).await;
    assert_eq!(results(&engine, "hook").await, [json!({"order": "o-2"}), json!({"order": "o-1"})]);
}

#[tokio::test]
async fn a_wrongly_signed_call_is_refused() {
    let (engine, router) = world().await;
    let body = r#"{"order":"o-1"}"#;
    standard("m-1", 301, body).to(&router).await.is(401, "unsigned");
    standard("m-1", -301, body).to(&router).await.is(401, "unsigned");
    standard("m-1", 0, body).body("{}").to(&router).await.is(401, "unsigned");
    post(&path("shop/orders")).body(body).to(&router).await.is(401, "unsigned");
    signed_as("m-1", "m-2", 0, body).to(&router).await.is(401, "unsigned");
    let hub = |given: &str| post(&path("hub")).header("x-hub-signature-256", given).body(body);
    for given in ["", "sha256=", "sha256=00", "sha1=00", &hex(&sign(SECRET.as_bytes(), body))] {
        hub(given).to(&router).await.is(401, "unsigned");
    }
    post(&path("elsewhere")).to(&router).await.is(404, "notFound");
    post("/hooks/not-a-tenant/hub").to(&router).await.is(404, "notFound");
    let nobody = "/hooks/0197e0c2-0000-7000-8000-000000000000/open";
    post(nobody).to(&router).await.is(404, "notFound");
    post(&path("lost")).body(body).to(&router).await.is(500, "internal");
    for trigger in ["hook", "hub", "own", "lost"] {
        assert_eq!(results(&engine, trigger).await, [] as [Value; 0], "{trigger}");
    }
}

#[tokio::test]
async fn webhooks_support_other_signatures_and_filters() {
    let (engine, router) = world().await;
    let body = r#"{"ref":"main"}"#;
    let signature = format!("sha256={}", hex(&sign(SECRET.as_bytes(), body)));
    let hub = |event: &str, id: &str| {
        let ask =
            post(&path("hub")).header("x-hub-signature-256", &signature).header("x-github-event", event);
        ask.header("x-github-delivery", id).header("content-type", "application/json").body(body)
    };
    assert_eq!(hub("push", "d-1").to(&router).await.status, 202);
    assert_eq!(hub("ping", "d-2").to(&router).await.status, 202);
    assert_eq!(results(&engine, "hub").await, [json!({"ref": "main"})]);
    let query = TriggerLog { outcome: Some("filtered".to_owned()), limit: 9, cursor: None };
    let filtered = engine.trigger_log("receipt", "hub", query).await.unwrap().items;
    assert_eq!((filtered.len(), filtered[0].id.as_str()), (1, "d-2"));
    let own = || {
        let given = format!("v={}", hex(&sign(SECRET.as_bytes(), "plain")));
        post(&path("own")).header("x-sig", &given).body("plain")
    };
    assert_eq!(own().to(&router).await.json()["items"][0]["created"], json!(true));
    assert_eq!(
        own().to(&router).await.json()["items"][0]["created"],
        json!(false),
        "the same body is the same call"
    );
    assert_eq!(results(&engine, "own").await, [json!({"got": "plain"})]);
    let open = post(&format!("{}?order=o-9", path("open"))).header("authorization", "Bearer secret");
    assert_eq!(open.to(&router).await.status, 202);
    assert_eq!(results(&engine, "open").await, [json!({"order": "o-9", "auth": "hidden"})]);
    let broken = post(&path("open")).header("content-type", "application/json").body("{");
    broken.to(&router).await.is(400, "malformedBody");
}
