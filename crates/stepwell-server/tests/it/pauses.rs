//! Pauses of schedules and triggers, and runs that are started from them by hand, over HTTP and the command line.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::Permission;

use crate::cli;
use crate::kit::{Reply, post};
use crate::serving::dev;
use crate::site::Site;
use crate::table::key_of;

const MINUTE: Duration = Duration::from_secs(60);
const ECHO: &str = "steps: [{ id: done, type: control.return, value: { $expr: payload } }]";

async fn publish(site: &Site, name: &str, text: &str) {
    let asked = post(&format!("/v1/workflows/{name}/versions?activate=true"));
    let asked = asked.header("content-type", "application/yaml").body(text.to_owned());
    let published = site.ask(asked).await;
    assert!(published.status.is_success(), "{published:?}");
}

async fn runs(site: &Site, workflow: &str) -> usize {
    let listed = site.get(&format!("/v1/runs?workflow={workflow}&limit=200")).await.json();
    listed["items"].as_array().unwrap().len()
}

async fn keyed(site: &Site, path: &str, key: &str, body: &Value) -> Reply {
    site.ask(post(path).header("idempotency-key", key).json(body)).await
}

async fn audited(site: &Site, operation: &str) -> Vec<Value> {
    let listed = site.get("/v1/audit?limit=200").await.json();
    let rows = listed["items"].as_array().unwrap().iter().filter(|row| row["operation"] == operation);
    rows.cloned().collect()
}

/// B12: a paused schedule starts nothing until it is resumed, also after it is put again.
#[tokio::test]
async fn schedule_is_paused_and_resumed() {
    let site = Site::open().await;
    publish(&site, "echo", ECHO).await;
    let path = "/v1/schedules/each";
    let each = json!({"cron": "* * * * *", "workflow": "echo", "input": {"n": 1}, "missed": "all"});
    site.post(&format!("{path}/pause"), &json!({})).await.is(404, "noSchedule");
    site.put(path, &each).await.json();
    let viewer = key_of(&site.server, 2, &[Permission::View, Permission::Manage]).await;
    post(&format!("{path}/pause")).by(&viewer).to(&site.router).await.is(403, "denied");
    let paused = site.post(&format!("{path}/pause"), &json!({"reason": "holidays"})).await.json();
    assert_eq!(paused["reason"], "holidays");
    assert!(paused["by"].is_string() && paused["at"].is_string(), "{paused}");
    let again = site.post(&format!("{path}/pause"), &json!({"reason": "other"})).await.json();
    assert_eq!(again, paused, "it is paused already");
    let shown = site.get(path).await.json();
    assert_eq!((&shown["paused"], &shown["nextFirings"]), (&paused, &json!([])), "{shown}");
    assert_eq!(site.get("/v1/schedules").await.json()["items"][0]["paused"], paused);
    site.engine.advance(3 * MINUTE).await;
    site.put(path, &each).await.json();
    site.engine.advance(2 * MINUTE).await;
    assert_eq!(runs(&site, "echo").await, 0);
    let shown = site.get(path).await.json();
    assert!(shown["skipped"].as_u64().unwrap() >= 3 && shown["lastError"].is_null(), "{shown}");
    let doctor = site.get("/v1/doctor").await.json();
    let found =
        doctor["findings"].as_array().unwrap().iter().find(|found| found["kind"] == "paused").unwrap();
    assert_eq!(found["severity"], "info", "{found}");
    assert!(
        found.to_string().contains("holidays") && found.to_string().contains("stepwell schedule resume each")
    );

    for _ in 0..2 {
        assert_eq!(site.post(&format!("{path}/resume"), &json!({"reason": "back"})).await.status, 204);
    }
    assert_eq!(site.get(path).await.json()["paused"], Value::Null);
    site.engine.settle().await;
    assert_eq!(runs(&site, "echo").await, 0, "firings during the pause are not made up for");
    site.engine.advance(MINUTE).await;
    assert_eq!(runs(&site, "echo").await, 1);
    for operation in ["schedule.pause", "schedule.resume"] {
        let rows = audited(&site, operation).await;
        assert_eq!((rows.len(), &rows[0]["subject"]), (1, &json!("each")), "{rows:?}");
        assert!(rows[0]["actor"].is_string(), "{rows:?}");
    }
}

/// B12: a run is started now, once per key, with the schedule's input or another one.
#[tokio::test]
async fn schedule_is_run_now() {
    let site = Site::open().await;
    publish(&site, "echo", ECHO).await;
    site.put("/v1/schedules/yearly", &json!({"cron": "@yearly", "workflow": "echo", "input": {"n": 1}}))
        .await
        .json();
    site.post("/v1/schedules/yearly/pause", &json!({})).await.json();
    let path = "/v1/schedules/yearly/run";
    let first = keyed(&site, path, "k", &json!({})).await;
    assert_eq!((first.status.as_u16(), &first.json()["created"]), (201, &json!(true)), "{first:?}");
    let again = keyed(&site, path, "k", &json!({})).await;
    assert_eq!((again.status.as_u16(), &again.json()["id"]), (200, &first.json()["id"]), "{again:?}");
    assert_eq!(again.header("idempotency-replayed"), "true");
    keyed(&site, path, "k", &json!({"input": {"n": 2}})).await.is(422, "keyReused");
    let other = site.post(path, &json!({"input": {"n": 2}})).await.json();
    site.engine.settle().await;
    for (run, n) in [(&first.json()["id"], 1), (&other["id"], 2)] {
        let ended = site.get(&format!("/v1/runs/{}", run.as_str().unwrap())).await.json();
        assert_eq!((&ended["status"], &ended["result"]), (&json!("completed"), &json!({"n": n})), "{ended}");
    }
    assert_eq!(runs(&site, "echo").await, 2);
    let rows = audited(&site, "run.start").await;
    assert!(rows.iter().any(|row| row["run"] == other["id"] && row["actor"].is_string()), "{rows:?}");
    site.post("/v1/schedules/none/run", &json!({})).await.is(404, "noSchedule");
}

/// A past bug: a request that followed a put could show the schedule as it was before.
#[tokio::test]
async fn put_schedule_is_shown_at_once() {
    let site = Site::open().await;
    publish(&site, "echo", ECHO).await;
    let path = "/v1/schedules/busy";
    for round in 0..20 {
        // Every change is still pending when the next one arrives.
        let cron = format!("{round} 3 * * *");
        site.put(path, &json!({"cron": cron, "workflow": "echo"})).await.json();
        assert_eq!(site.get(path).await.json()["cron"], cron.as_str());
        assert_eq!(site.get("/v1/schedules").await.json()["items"][0]["cron"], cron.as_str());
        if round % 5 == 4 {
            assert_eq!(site.delete(path).await.status, 204);
            assert_eq!(site.get(path).await.json()["off"], true);
        }
    }
    site.engine.settle().await;
    let shown = site.get(path).await.json();
    assert_eq!((&shown["off"], &shown["cron"]), (&json!(true), &json!("19 3 * * *")));
}

const SHOP: &str = "
triggers:
  - { id: paid, type: event, eventName: PAID }
  - { id: fixed, type: event, eventName: PAID, input: { n: 7 } }
  - { id: open, type: webhook, path: open }
  - { id: each, type: schedule, cron: '* * * * *', input: { n: 3 } }
  - { id: hand, type: manual }
steps: [{ id: done, type: control.return, value: { $expr: payload } }]
";

async fn emit(site: &Site, id: &str) {
    let event = json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "PAID", "data": {"n": 1}});
    let asked = post("/v1/events").header("content-type", "application/cloudevents+json");
    assert_eq!(site.ask(asked.body(event.to_string())).await.status, 202);
    site.engine.settle().await;
}

/// F7: a paused trigger of any type starts nothing, and its log says why. The pause survives the next version.
#[tokio::test]
async fn paused_trigger_starts_nothing_and_says_why() {
    let site = Site::open().await;
    publish(&site, "shop", SHOP).await;
    let verb = |trigger: &str, verb: &str| format!("/v1/triggers/shop/{trigger}/{verb}");
    for trigger in ["paid", "fixed", "open", "each"] {
        let paused = site.post(&verb(trigger, "pause"), &json!({"reason": "stocktaking"})).await;
        assert_eq!(paused.status, 200, "{paused:?}");
    }
    site.post(&verb("hand", "pause"), &json!({})).await.is(422, "invalid");
    site.post(&verb("none", "pause"), &json!({})).await.is(404, "noTrigger");
    site.post("/v1/triggers/none/paid/pause", &json!({})).await.is(404, "noTrigger");
    publish(&site, "shop", &SHOP.replace("id: done", "id: ended")).await;
    let listed = site.get("/v1/triggers").await.json();
    let paused: Vec<_> =
        listed["items"].as_array().unwrap().iter().map(|row| row["paused"]["reason"].clone()).collect();
    let why = json!("stocktaking");
    assert_eq!(paused, [why.clone(), why.clone(), why.clone(), why.clone(), Value::Null], "{listed}");
    emit(&site, "1").await;
    let hook = format!("/hooks/{}/open", uuid::Uuid::from_u128(2));
    let called = post(&hook).header("content-type", "application/json").body("{}").to(&site.router).await;
    assert_eq!(called.status, 202, "{called:?}");
    site.engine.advance(2 * MINUTE).await;
    assert_eq!(runs(&site, "shop").await, 0);
    for trigger in ["paid", "fixed", "open"] {
        let log = site.get(&verb(trigger, "log?outcome=paused")).await.json();
        assert_eq!(
            (&log["items"][0]["outcome"], &log["items"][0]["paused"]["reason"]),
            (&json!("paused"), &why),
            "{log}"
        );
    }
    assert_eq!(site.get("/v1/schedules/shop%2Feach").await.json()["paused"]["reason"], why);

    assert_eq!(site.post(&verb("fixed", "resume"), &json!({})).await.status, 204);
    emit(&site, "2").await;
    assert_eq!(runs(&site, "shop").await, 1);
    // A trigger that the next version lacks can still be resumed.
    publish(&site, "shop", ECHO).await;
    assert_eq!(site.post(&verb("paid", "resume"), &json!({})).await.status, 204);
    site.post(&verb("paid", "run"), &json!({})).await.is(404, "noTrigger");
    assert_eq!(audited(&site, "trigger.pause").await.len(), 4);
}

/// A trigger is run now with its own input or a given one, also while it is paused.
#[tokio::test]
async fn trigger_is_run_now() {
    let site = Site::open().await;
    publish(&site, "shop", SHOP).await;
    site.post("/v1/triggers/shop/fixed/pause", &json!({})).await.json();
    let run = async |trigger: &str, body: Value| {
        site.post(&format!("/v1/triggers/shop/{trigger}/run"), &body).await
    };
    let wrong = run("paid", json!({})).await.is(422, "invalid");
    assert!(wrong["detail"].as_str().unwrap().contains("give `input`"), "{wrong}");
    for (trigger, body, result) in [
        ("paid", json!({"input": {"n": 5}}), json!({"n": 5})),
        ("fixed", json!({}), json!({"n": 7})),
        ("each", json!({}), json!({"n": 3})),
        ("hand", json!({}), json!({})),
    ] {
        let started = run(trigger, body).await;
        assert_eq!(started.status, 201, "{trigger}: {started:?}");
        site.engine.settle().await;
        let ended = site.get(started.header("location")).await.json();
        assert_eq!(ended["result"], result, "{trigger}: {ended}");
    }
}

/// A pause survives `kill -9`, through the command line.
#[test]
fn pause_survives_a_kill_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = dev(folder.path());
    let publish = server.send("POST", "/v1/workflows/shop/versions?activate=true", "application/yaml", SHOP);
    assert_eq!(publish.status, 201, "{publish:?}");
    let url = |address: &str| format!("http://{address}");
    let ask = |server: &crate::serving::Serving, arguments: &[&str]| {
        let way =
            ["--server", &url(&server.address), "--api-key-file", "stepwell-data/dev.key"].map(str::to_owned);
        let way: Vec<&str> = way.iter().map(String::as_str).collect();
        cli::json(folder.path(), &[arguments, &way].concat())
    };
    let paused = ask(&server, &["schedule", "pause", "shop/each", "--reason", "holidays"]);
    assert_eq!(paused["reason"], "holidays", "{paused}");
    ask(&server, &["trigger", "pause", "shop", "paid", "--reason", "holidays"]);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let server = dev(folder.path());
    assert_eq!(ask(&server, &["schedule", "show", "shop/each"])["paused"]["reason"], "holidays");
    let triggers = ask(&server, &["trigger", "list"]);
    let mut listed = triggers["items"].as_array().unwrap().iter();
    let paid = listed.find(|row| row["workflow"] == "shop" && row["trigger"] == "paid").unwrap();
    assert_eq!(paid["paused"]["reason"], "holidays", "{triggers}");
    let started = ask(&server, &["schedule", "run", "shop/each", "--input", r#"{"n": 9}"#]);
    let run = started["id"].as_str().unwrap();
    let ended = server.get(&format!("/v1/runs/{run}?wait=20s")).json();
    assert_eq!(ended["result"], json!({"n": 9}), "{ended}");
    let log = ask(&server, &["trigger", "run", "shop", "fixed"]);
    assert!(log["id"].is_string(), "{log}");
}
