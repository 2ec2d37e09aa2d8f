//! Schedules over the API: put, show with the next firings, switch off and list.

use axum::http::Method;
use serde_json::{Value, json};

use crate::kit::until;
use crate::test_server::TestServer;

const NIGHTLY: &str = "/v1/schedules/nightly";
const DONE: &str = "steps: [{ id: done, type: control.return }]";

async fn server() -> TestServer {
    let server = TestServer::open().await;
    server.publish("report", DONE).await;
    server
}

fn nightly() -> Value {
    json!({"cron": "30 3 * * *", "timeZone": "Europe/Vienna", "workflow": "report", "input": {"n": 1}, "missed": "skip"})
}

#[tokio::test]
async fn schedule_is_put_shown_and_switched_off() {
    let server = server().await;
    server.get(NIGHTLY).await.is(404, "noSchedule");
    server.delete(NIGHTLY).await.is(404, "noSchedule");
    let put = server.put(NIGHTLY, &nightly()).await;
    assert_eq!(put.status, 200, "{put:?}");
    let put = put.json();
    assert_eq!((&put["name"], put["nextFirings"].as_array().unwrap().len()), (&json!("nightly"), 10));
    let shown = server.get(&format!("{NIGHTLY}?firings=3")).await.json();
    let firings = shown["nextFirings"].as_array().unwrap();
    assert_eq!(firings.as_slice(), &put["nextFirings"].as_array().unwrap()[..3]);
    assert!(firings.iter().all(|at| at.as_str().unwrap().ends_with(":30:00Z")), "{shown}");
    let said =
        ["cron", "timeZone", "workflow", "input", "missed", "overlap", "off"].map(|part| shown[part].clone());
    let is = [
        json!("30 3 * * *"),
        json!("Europe/Vienna"),
        json!("report"),
        json!({"n": 1}),
        json!("skip"),
        json!("start"),
        json!(false),
    ];
    assert_eq!(said, is);
    assert_eq!(server.get(&format!("{NIGHTLY}?firings=0")).await.json()["nextFirings"], json!([]));

    let hourly = json!({"cron": "@hourly", "workflow": "report"});
    assert_eq!(server.put(NIGHTLY, &hourly).await.status, 200);
    assert_eq!(server.get(NIGHTLY).await.json()["cron"], "@hourly");
    for _ in 0..2 {
        assert_eq!(server.delete(NIGHTLY).await.status, 204, "also if it is already off");
        assert_eq!(server.get(NIGHTLY).await.json()["off"], true);
    }
    assert_eq!(server.get(NIGHTLY).await.json()["nextFirings"], json!([]));
    server.put(NIGHTLY, &nightly()).await;
    assert_eq!(server.get(NIGHTLY).await.json()["off"], false);
}

#[tokio::test]
async fn invalid_schedule_is_refused_with_its_pointer() {
    let server = server().await;
    let with = |field: &str, value: Value| {
        let mut schedule = nightly();
        schedule[field] = value;
        schedule
    };
    for (schedule, status, code, pointer) in [
        (with("cron", json!("61 * * * *")), 422, "validationFailed", "/cron"),
        (with("timeZone", json!("Europe/Vena")), 422, "validationFailed", "/timeZone"),
        (with("missed", json!("never")), 400, "badBody", "/missed"),
    ] {
        let wrong = server.put(NIGHTLY, &schedule).await.is(status, code);
        assert_eq!(wrong["errors"][0]["pointer"], pointer, "{wrong}");
    }
    let unknown = server.put(NIGHTLY, &with("workflow", json!("reprt"))).await.is(422, "invalid");
    assert!(unknown["detail"].as_str().unwrap().contains("`report`"), "{unknown}");
    server.put(NIGHTLY, &with("by", json!({}))).await.is(400, "badBody");
    server.get(NIGHTLY).await.is(404, "noSchedule");
}

#[tokio::test]
async fn trigger_schedules_are_listed_but_not_editable() {
    let server = server().await;
    for name in ["a", "b", "c"] {
        server.put(&format!("/v1/schedules/{name}"), &nightly()).await;
    }
    let timed = "trigger: { id: night, type: schedule, cron: '0 1 * * *' }\nsteps: [{ id: done, type: control.return }]";
    server.publish("timed", timed).await;
    let path = "/v1/schedules/timed%2Fnight";
    let planned = until("the trigger is a schedule", async || {
        let shown = server.get(path).await;
        (shown.status == 200).then(|| shown.json())
    })
    .await;
    assert_eq!((&planned["name"], &planned["trigger"]), (&json!("timed/night"), &json!("night")));
    let refused = server.delete(path).await.is(409, "managedByTrigger");
    assert_eq!(refused["params"], json!({"workflow": "timed", "trigger": "night"}));
    server.put(path, &nightly()).await.is(409, "managedByTrigger");

    let page = server.get("/v1/schedules?limit=3").await.json();
    let rest =
        server.get(&format!("/v1/schedules?cursor={}", page["nextCursor"].as_str().unwrap())).await.json();
    let rows = page["items"].as_array().unwrap().iter().chain(rest["items"].as_array().unwrap());
    // Schedules that are created within one millisecond have no defined order.
    let mut names: Vec<_> = rows.map(|row| row["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c", "timed/night"]);
    assert_eq!(page["items"][0]["nextFirings"].as_array().unwrap().len(), 1);
    let runs = server.get("/v1/runs").await.json();
    assert_eq!(runs["items"], json!([]), "the runs of schedules are the engine's");

    assert_eq!(server.as_other_tenant(Method::GET, "/v1/schedules", None).await.json()["items"], json!([]));
    server.as_other_tenant(Method::GET, "/v1/schedules/a", None).await.is(404, "noSchedule");
    server.as_other_tenant(Method::DELETE, "/v1/schedules/a", None).await.is(404, "noSchedule");
    server.as_other_tenant(Method::PUT, "/v1/schedules/a", Some(&nightly())).await.is(422, "invalid");
}
