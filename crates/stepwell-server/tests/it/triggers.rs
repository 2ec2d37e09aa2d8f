//! Triggers over the API: the list of triggers, and the log that says why an event did or did not start a run.

use axum::http::Method;
use serde_json::{Value, json};

use crate::kit::until;
use crate::test_server::TestServer;

const RECEIPT: &str = "
triggers:
  - { id: paid, type: event, eventName: PAID, filter: event.cents > 0, correlation: event.order }
  - { type: webhook, path: shop/orders, secret: { $secret: HOOK } }
  - { id: night, type: schedule, cron: '0 3 * * *', timezone: Europe/Vienna }
input: { type: object, required: [order] }
steps: [{ id: done, type: control.return, value: { $expr: payload } }]
";
const LOG: &str = "/v1/triggers/receipt/paid/log";

async fn emit(server: &TestServer, id: &str, data: Value) {
    let event = json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "PAID", "data": data});
    let asked = server.ask(Method::POST, "/v1/events").header("content-type", "application/cloudevents+json");
    assert_eq!(asked.body(event.to_string()).to(&server.router).await.status, 202);
    let heard = async || {
        let log = server.get(LOG).await.json();
        log["items"].as_array().unwrap().iter().any(|entry| entry["id"] == id).then_some(())
    };
    until("the event is in the trigger's log", heard).await;
}

#[tokio::test]
async fn trigger_log_records_the_outcome_of_every_event() {
    let server = TestServer::open().await;
    server.publish("receipt", RECEIPT).await;
    emit(&server, "1", json!({"order": "o-1", "cents": 5})).await;
    emit(&server, "2", json!({"order": "o-1", "cents": 6})).await;
    emit(&server, "3", json!({"order": "o-2", "cents": 0})).await;
    emit(&server, "4", json!({"cents": 7})).await;
    let log = server.get(LOG).await.json();
    let words: Vec<_> =
        log["items"].as_array().unwrap().iter().map(|entry| entry["outcome"].as_str().unwrap()).collect();
    assert_eq!(words, ["refused", "filtered", "deduplicated", "started"], "{log}");
    assert_eq!(log["items"][2]["run"], log["items"][3]["run"]);
    assert_eq!(log["items"][1]["values"], json!({"cents": 0}));
    assert!(log["items"][0]["error"].as_str().unwrap().contains("order"), "{log}");
    let some = server.get(&format!("{LOG}?outcome=filtered")).await.json();
    assert_eq!((&some["items"][0]["id"], some["items"].as_array().unwrap().len()), (&json!("3"), 1));
    let page = server.get(&format!("{LOG}?limit=3")).await.json();
    let rest = server.get(&format!("{LOG}?cursor={}", page["nextCursor"].as_str().unwrap())).await.json();
    assert_eq!(rest["items"][0]["outcome"], "started", "{rest}");
    server.get(&format!("{LOG}?outcome=lost")).await.is(400, "badParameter");
    assert_eq!(server.get("/v1/triggers/receipt/none/log").await.json()["items"], json!([]));
    assert_eq!(server.as_other_tenant(Method::GET, LOG, None).await.json()["items"], json!([]));
}

#[tokio::test]
async fn triggers_are_listed() {
    let server = TestServer::open().await;
    assert_eq!(server.get("/v1/triggers").await.json()["items"], json!([]));
    server.publish("receipt", RECEIPT).await;
    let listed = server.get("/v1/triggers").await;
    assert!(!listed.body.contains("HOOK"), "names of secrets are not shown: {}", listed.body);
    let listed = listed.json();
    let [paid, hook, night] = listed["items"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!(
        (&paid["trigger"], &paid["type"], &paid["eventName"]),
        (&json!("paid"), &json!("event"), &json!("PAID"))
    );
    assert_eq!(
        (&hook["trigger"], &hook["path"], &hook["signed"]),
        (&json!("trigger2"), &json!("shop/orders"), &json!(true))
    );
    assert_eq!(
        (&night["cron"], &night["timeZone"], &night["version"]),
        (&json!("0 3 * * *"), &json!("Europe/Vienna"), &json!(1))
    );
    assert_eq!(server.as_other_tenant(Method::GET, "/v1/triggers", None).await.json()["items"], json!([]));
    server.ask(Method::POST, "/v1/workflows/receipt/archive").to(&server.router).await;
    assert_eq!(server.get("/v1/triggers").await.json()["items"], json!([]));
}
