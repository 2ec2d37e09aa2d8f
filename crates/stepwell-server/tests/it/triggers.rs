//! Triggers over the API: what starts workflows, and why something did not start.

use axum::http::Method;
use serde_json::{Value, json};

use crate::desk::Desk;
use crate::kit::until;

const RECEIPT: &str = "
triggers:
  - { id: paid, type: event, eventName: PAID, filter: event.cents > 0, correlation: event.order }
  - { type: webhook, path: shop/orders, secret: { $secret: HOOK } }
  - { id: night, type: schedule, cron: '0 3 * * *', timezone: Europe/Vienna }
input: { type: object, required: [order] }
steps: [{ id: done, type: control.return, value: { $expr: payload } }]
";
const LOG: &str = "/v1/triggers/receipt/paid/log";

async fn emit(desk: &Desk, id: &str, data: Value) {
    let event = json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "PAID", "data": data});
    let asked = desk.ask(Method::POST, "/v1/events").header("content-type", "application/cloudevents+json");
    assert_eq!(asked.body(event.to_string()).to(&desk.router).await.status, 202);
    let heard = async || {
        let log = desk.get(LOG).await.json();
        log["items"].as_array().unwrap().iter().any(|entry| entry["id"] == id).then_some(())
    };
    until("the trigger has heard of the event", heard).await;
}

#[tokio::test]
async fn a_trigger_says_what_came_of_every_event() {
    let desk = Desk::open().await;
    desk.publish("receipt", RECEIPT).await;
    emit(&desk, "1", json!({"order": "o-1", "cents": 5})).await;
    emit(&desk, "2", json!({"order": "o-1", "cents": 6})).await;
    emit(&desk, "3", json!({"order": "o-2", "cents": 0})).await;
    emit(&desk, "4", json!({"cents": 7})).await;
    let log = desk.get(LOG).await.json();
    let words: Vec<_> =
        log["items"].as_array().unwrap().iter().map(|entry| entry["outcome"].as_str().unwrap()).collect();
    assert_eq!(words, ["refused", "filtered", "deduplicated", "started"], "{log}");
    assert_eq!(log["items"][2]["run"], log["items"][3]["run"]);
    assert_eq!(log["items"][1]["values"], json!({"cents": 0}));
    assert!(log["items"][0]["error"].as_str().unwrap().contains("order"), "{log}");
    let some = desk.get(&format!("{LOG}?outcome=filtered")).await.json();
    assert_eq!((&some["items"][0]["id"], some["items"].as_array().unwrap().len()), (&json!("3"), 1));
    let page = desk.get(&format!("{LOG}?limit=3")).await.json();
    let rest = desk.get(&format!("{LOG}?cursor={}", page["nextCursor"].as_str().unwrap())).await.json();
    assert_eq!(rest["items"][0]["outcome"], "started", "{rest}");
    desk.get(&format!("{LOG}?outcome=lost")).await.is(400, "badParameter");
    assert_eq!(desk.get("/v1/triggers/receipt/none/log").await.json()["items"], json!([]));
    assert_eq!(desk.elsewhere(Method::GET, LOG, None).await.json()["items"], json!([]));
}

#[tokio::test]
async fn what_starts_workflows_is_listed() {
    let desk = Desk::open().await;
    assert_eq!(desk.get("/v1/triggers").await.json()["items"], json!([]));
    desk.publish("receipt", RECEIPT).await;
    let listed = desk.get("/v1/triggers").await;
    assert!(!listed.body.contains("HOOK"), "what secrets are called is nobody's to see: {}", listed.body);
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
    assert_eq!(desk.elsewhere(Method::GET, "/v1/triggers", None).await.json()["items"], json!([]));
    desk.ask(Method::POST, "/v1/workflows/receipt/archive").to(&desk.router).await;
    assert_eq!(desk.get("/v1/triggers").await.json()["items"], json!([]));
}
