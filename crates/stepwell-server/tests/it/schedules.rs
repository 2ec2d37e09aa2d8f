//! Schedules over the API: put, shown with their next firings, and switched off.

use axum::http::Method;
use serde_json::{Value, json};

use crate::desk::Desk;
use crate::kit::until;

const NIGHTLY: &str = "/v1/schedules/nightly";
const DONE: &str = "steps: [{ id: done, type: control.return }]";

async fn desk() -> Desk {
    let desk = Desk::open().await;
    desk.publish("report", DONE).await;
    desk
}

fn nightly() -> Value {
    json!({"cron": "30 3 * * *", "timeZone": "Europe/Vienna", "workflow": "report", "input": {"n": 1}, "missed": "skip"})
}

#[tokio::test]
async fn a_schedule_is_put_shown_with_its_next_firings_and_switched_off() {
    let desk = desk().await;
    desk.get(NIGHTLY).await.is(404, "noSchedule");
    desk.delete(NIGHTLY).await.is(404, "noSchedule");
    let put = desk.put(NIGHTLY, &nightly()).await;
    assert_eq!(put.status, 200, "{put:?}");
    let put = put.json();
    assert_eq!((&put["name"], put["nextFirings"].as_array().unwrap().len()), (&json!("nightly"), 10));
    let shown = desk.get(&format!("{NIGHTLY}?firings=3")).await.json();
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
    assert_eq!(desk.get(&format!("{NIGHTLY}?firings=0")).await.json()["nextFirings"], json!([]));

    let hourly = json!({"cron": "@hourly", "workflow": "report"});
    assert_eq!(desk.put(NIGHTLY, &hourly).await.status, 200);
    let is_hourly = async || (desk.get(NIGHTLY).await.json()["cron"] == "@hourly").then_some(());
    until("it is another edition", is_hourly).await;
    let off = async || (desk.get(NIGHTLY).await.json()["off"] == true).then_some(());
    for _ in 0..2 {
        assert_eq!(desk.delete(NIGHTLY).await.status, 204, "also if it is off already");
        until("it is off", off).await;
    }
    assert_eq!(desk.get(NIGHTLY).await.json()["nextFirings"], json!([]));
    desk.put(NIGHTLY, &nightly()).await;
    let on = async || (desk.get(NIGHTLY).await.json()["off"] == false).then_some(());
    until("it is on again", on).await;
}

#[tokio::test]
async fn what_cannot_be_a_schedule_is_refused_where_it_is_wrong() {
    let desk = desk().await;
    let with = |field: &str, value: Value| {
        let mut schedule = nightly();
        schedule[field] = value;
        schedule
    };
    for (schedule, status, code, pointer) in [
        (with("cron", json!("61 * * * *")), 422, "unfit", "/cron"),
        (with("timeZone", json!("Europe/Vena")), 422, "unfit", "/timeZone"),
        (with("missed", json!("never")), 400, "badBody", "/missed"),
    ] {
        let wrong = desk.put(NIGHTLY, &schedule).await.is(status, code);
        assert_eq!(wrong["errors"][0]["pointer"], pointer, "{wrong}");
    }
    let unknown = desk.put(NIGHTLY, &with("workflow", json!("reprt"))).await.is(422, "invalid");
    assert!(unknown["detail"].as_str().unwrap().contains("`report`"), "{unknown}");
    desk.put(NIGHTLY, &with("by", json!({}))).await.is(400, "badBody");
    desk.get(NIGHTLY).await.is(404, "noSchedule");
}

#[tokio::test]
async fn schedules_are_listed_and_those_of_triggers_are_changed_there() {
    let desk = desk().await;
    for name in ["a", "b", "c"] {
        desk.put(&format!("/v1/schedules/{name}"), &nightly()).await;
    }
    let timed = "trigger: { id: night, type: schedule, cron: '0 1 * * *' }\nsteps: [{ id: done, type: control.return }]";
    desk.publish("timed", timed).await;
    let path = "/v1/schedules/timed%2Fnight";
    let planned = until("the trigger is a schedule", async || {
        let shown = desk.get(path).await;
        (shown.status == 200).then(|| shown.json())
    })
    .await;
    assert_eq!((&planned["name"], &planned["trigger"]), (&json!("timed/night"), &json!("night")));
    let refused = desk.delete(path).await.is(409, "planned");
    assert_eq!(refused["params"], json!({"workflow": "timed", "trigger": "night"}));
    desk.put(path, &nightly()).await.is(409, "planned");

    let page = desk.get("/v1/schedules?limit=3").await.json();
    let rest =
        desk.get(&format!("/v1/schedules?cursor={}", page["nextCursor"].as_str().unwrap())).await.json();
    let rows = page["items"].as_array().unwrap().iter().chain(rest["items"].as_array().unwrap());
    // What begins in one millisecond has no order.
    let mut names: Vec<_> = rows.map(|row| row["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c", "timed/night"]);
    assert_eq!(page["items"][0]["nextFirings"].as_array().unwrap().len(), 1);
    let runs = desk.get("/v1/runs").await.json();
    assert_eq!(runs["items"], json!([]), "schedules are runs of the engine's own");

    assert_eq!(desk.elsewhere(Method::GET, "/v1/schedules", None).await.json()["items"], json!([]));
    desk.elsewhere(Method::GET, "/v1/schedules/a", None).await.is(404, "noSchedule");
    desk.elsewhere(Method::DELETE, "/v1/schedules/a", None).await.is(404, "noSchedule");
    desk.elsewhere(Method::PUT, "/v1/schedules/a", Some(&nightly())).await.is(422, "invalid");
}
