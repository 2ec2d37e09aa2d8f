//! Tasks of remote workers over the API.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use crate::test_server::TestServer;

const ORDER: &str = "
steps:
  - id: charge
    type: action.call
    action: pay.charge
    input: { cents: { $expr: payload.cents } }
    saveAs: receipt
  - id: done
    type: control.return
    value: { $expr: vars.receipt }
";

fn schema() -> Value {
    let cents = json!({"type": "integer"});
    json!({"type": "object", "required": ["cents"], "properties": {"cents": cents}, "additionalProperties": false})
}

/// A server with the remote action `pay.charge` and a workflow that calls it.
async fn shop() -> TestServer {
    let server = TestServer::open().await;
    let action = json!({"about": "Takes money.", "input": schema()});
    let put = server.put("/v1/actions/pay.charge", &action).await;
    assert_eq!((put.status.as_u16(), &put.json()["remote"]), (200, &json!(true)), "{put:?}");
    server.publish("order", ORDER).await;
    server
}

async fn start(server: &TestServer, cents: u32) -> String {
    let body = json!({"workflow": "order", "input": {"cents": cents}});
    let started = server.post("/v1/runs", &body).await;
    assert_eq!(started.status, 201, "{started:?}");
    started.json()["id"].as_str().unwrap().to_owned()
}

/// Leases the only task, and waits up to 20 seconds for it.
async fn task(server: &TestServer) -> Value {
    let body = json!({"actions": ["pay.charge"], "worker": "ann", "max": 10});
    let given = server.post("/v1/tasks/poll?wait=20s", &body).await;
    assert_eq!(given.status, 200, "{given:?}");
    let tasks = given.json()["tasks"].as_array().unwrap().clone();
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    tasks[0].clone()
}

fn path(task: &Value, verb: &str) -> String {
    format!("/v1/tasks/{}/{verb}", task["id"].as_str().unwrap())
}

/// B23: changes that a worker reports are committed with the result, or refused with it.
#[tokio::test]
async fn changes_of_a_worker_are_committed_with_its_result() {
    let server = shop().await;
    let run = start(&server, 5).await;
    let task = task(&server).await;
    let complete = async |writes: Value| {
        let body = json!({"fence": task["fence"], "output": {"paid": true}, "writes": writes});
        server.post(&path(&task, "complete"), &body).await
    };
    let add = json!({"action": "store.increment", "input": {"namespace": "n", "key": "paid", "by": 5},
        "saveAs": "sum"});
    let unknown = complete(json!([add, {"action": "store.add", "input": {}}])).await.is(422, "invalid");
    assert!(unknown["detail"].as_str().unwrap().starts_with("Write 2: a worker cannot stage"), "{unknown}");
    complete(json!([{"action": "store.set"}])).await.is(400, "badBody");
    server.get("/v1/kv/n/paid").await.is(404, "noKey");
    let keep = json!({"action": "document.put", "input": {"key": "receipt", "kind": "receipt", "body": 5}});
    let done = complete(json!([add, keep])).await;
    assert_eq!(done.json(), json!({"outcome": "completed"}), "{done:?}");
    let ended = server.get(&format!("/v1/runs/{run}?wait=20s")).await.json();
    assert_eq!(ended["result"], json!({"paid": true, "sum": {"value": 5, "revision": 1}}), "{ended}");
    let again = complete(json!([add, keep])).await;
    assert_eq!((again.json(), again.header("idempotency-replayed")), (done.json(), "true"));
    assert_eq!(server.get("/v1/kv/n/paid").await.json()["value"], 5);
    let documents = server.get(&format!("/v1/runs/{run}/documents")).await.json();
    assert_eq!(documents["items"][0]["key"], "receipt", "{documents}");
    let stageable = server.get("/v1/actions/store.increment").await.json();
    assert_eq!(stageable["stageable"], true, "{stageable}");
}

#[tokio::test]
async fn remote_actions_are_listed_and_can_be_deleted() {
    let server = shop().await;
    let listed = server.get("/v1/actions").await.json();
    let names: Vec<_> = listed["items"].as_array().unwrap().iter().map(|item| item["name"].clone()).collect();
    assert!(names.contains(&json!("pay.charge")) && names.contains(&json!("store.set")), "{names:?}");
    assert!(names.is_sorted_by_key(|name| name.as_str().unwrap().to_owned()), "{names:?}");
    let shown = server.get("/v1/actions/pay.charge").await.json();
    assert_eq!(
        (&shown["about"], &shown["group"], &shown["input"]),
        (&json!("Takes money."), &json!("pay"), &schema())
    );
    assert_eq!(server.get("/v1/actions/store.set").await.json()["remote"], json!(false));
    server.put("/v1/actions/store.set", &json!({})).await.is(422, "invalid");
    server.put("/v1/actions/bad", &json!({"input": {"type": "nonsense"}})).await.is(422, "invalid");
    server.as_other_tenant(Method::GET, "/v1/actions/pay.charge", None).await.is(404, "noAction");
    let wrong = ORDER.replace("cents: {", "amount: {");
    let checked = server.post_yaml("/v1/catalogue/validate?name=order", &wrong).await;
    assert_eq!(checked.json()["valid"], json!(false), "{checked:?}");
    let refused = server.post_yaml("/v1/workflows/order/versions", &wrong).await;
    let refused = refused.is(422, "invalidDocument").to_string();
    assert!(refused.contains("needs `cents`"), "{refused}");
    assert_eq!(server.delete("/v1/actions/pay.charge").await.status, 204);
    server.delete("/v1/actions/pay.charge").await.is(404, "noAction");
}

#[tokio::test]
async fn worker_polls_heartbeats_and_completes_a_task() {
    let server = shop().await;
    let nothing = server.post("/v1/tasks/poll", &json!({"actions": ["pay.charge"], "worker": "ann"})).await;
    assert_eq!(nothing.json(), json!({"tasks": []}));
    let run = start(&server, 700).await;
    let task = task(&server).await;
    assert_eq!(
        (&task["input"], &task["attempt"], &task["run"]),
        (&json!({"cents": 700}), &json!(1), &json!(run))
    );
    let fence = &task["fence"];
    let listed = server.get("/v1/tasks?action=pay.charge").await.json();
    assert_eq!(
        (&listed["items"][0]["state"], &listed["items"][0]["worker"]),
        (&json!("leased"), &json!("ann"))
    );
    let waits = server.get(&format!("/v1/waits?run={run}")).await.json();
    assert_eq!(waits["items"], json!([]), "the tasks of remote workers are not waits of people");

    let heard = json!({"fence": fence, "lease": "5m", "note": "half"});
    let kept = server.post(&path(&task, "heartbeat"), &heard).await.json();
    assert!(kept["leaseUntil"].as_str().unwrap() > task["leaseUntil"].as_str().unwrap(), "{kept}");
    let shown = server.get(&format!("/v1/runs/{run}")).await.json();
    let held = &shown["attempts"][0]["task"];
    assert_eq!(
        (&held["note"], &held["worker"], &shown["status"]),
        (&json!("half"), &json!("ann"), &json!("running"))
    );

    let other = json!({"fence": fence.as_u64().unwrap() + 1});
    let gone = server.post(&path(&task, "heartbeat"), &other).await.is(409, "taskGone");
    assert_eq!(gone["retryable"], json!(false), "{gone}");
    let theirs =
        server.as_other_tenant(Method::POST, &path(&task, "complete"), Some(&json!({"fence": fence}))).await;
    theirs.is(409, "taskGone");
    server.post("/v1/tasks/x/complete", &json!({"fence": 1})).await.is(400, "badParameter");

    let done = json!({"fence": fence, "output": {"id": "r-1"}});
    let first = server.post(&path(&task, "complete"), &done).await;
    assert_eq!((first.json(), first.header("idempotency-replayed")), (json!({"outcome": "completed"}), ""));
    let again = server.post(&path(&task, "complete"), &done).await;
    assert_eq!(
        (again.json(), again.header("idempotency-replayed")),
        (json!({"outcome": "completed"}), "true")
    );
    let shown = server.get(&format!("/v1/runs/{run}?wait=20s")).await.json();
    assert_eq!((&shown["status"], &shown["result"]), (&json!("completed"), &json!({"id": "r-1"})), "{shown}");
    server.post(&path(&task, "heartbeat"), &json!({"fence": fence})).await.is(409, "taskGone");
}

#[tokio::test]
async fn task_is_released_or_failed_by_its_worker() {
    let server = shop().await;
    let run = start(&server, 1).await;
    let first = task(&server).await;
    let back = server.post(&path(&first, "release"), &json!({"fence": first["fence"]})).await;
    assert_eq!(back.status, 204, "{back:?}");
    let second = task(&server).await;
    assert!(second["fence"].as_u64() > first["fence"].as_u64());
    let failed = json!({"fence": second["fence"], "error": {"code": "declined", "message": "No money."}, "final": true});
    let failed = server.post(&path(&second, "fail"), &failed).await.json();
    assert_eq!(
        (&failed["outcome"], &failed["error"]["code"]),
        (&json!("failed"), &json!("declined")),
        "{failed}"
    );
    let shown = server.get(&format!("/v1/runs/{run}?wait=20s")).await.json();
    assert_eq!(
        (&shown["status"], &shown["error"]["code"]),
        (&json!("failed"), &json!("declined")),
        "{shown}"
    );
    let wrong = json!({"actions": ["pay.charge"], "worker": "ann", "lease": "1ms"});
    server.post("/v1/tasks/poll", &wrong).await.is(422, "invalid");
}

#[tokio::test]
async fn task_poll_is_answered_when_the_server_stops() {
    let server = shop().await;
    let (router, ours) = (server.router.clone(), server.ask(Method::POST, "/v1/tasks/poll?wait=60s"));
    let body = json!({"actions": ["pay.charge"], "worker": "ann"});
    let waiting = tokio::spawn(async move { ours.json(&body).to(&router).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.server.stop();
    let answer = tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap();
    assert_eq!(answer.json(), json!({"tasks": []}));
}
