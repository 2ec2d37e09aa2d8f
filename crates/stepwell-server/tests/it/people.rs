//! People over HTTP and on the command line: open tasks, claims, answers, roles of API keys, and the timeline.

use axum::http::Method;
use serde_json::{Value, json};
use stepwell::store::{TenantId, TenantScope};
use stepwell::{Grants, Permission};
use stepwell_server::api::NewKey;
use uuid::Uuid;

use crate::kit::{Reply, ask};
use crate::manual::{blocks, project, shell};
use crate::said;
use crate::serving::dev;
use crate::test_server::{OURS, TestServer};

/// A task for support leads and for ann, with a title and a form.
const REFUND: &str = "steps:
  - id: approve
    type: human.task
    title: { $expr: \"'Refund ' & payload.order\" }
    form: { type: object, properties: { ok: { type: boolean } }, required: [ok] }
    answerers: [role:support-lead, user:ann]
    timeout: P2D
";

/// A task without answerers.
const OPEN: &str = "steps:
  - { id: look, type: human.task, form: { type: object } }
";

async fn key(server: &TestServer, name: &str, permissions: Grants, role: &str, user: Option<&str>) -> String {
    let scope = TenantScope::trusted(TenantId::new(Uuid::from_u128(OURS)));
    let roles = [role.to_owned()].into();
    let new = NewKey { roles, user: user.map(str::to_owned), ..NewKey::new(name, permissions) };
    format!("Bearer {}", server.server.keys().create(scope, new, None).await.unwrap().secret.unwrap())
}

async fn by(server: &TestServer, key: &str, method: Method, path: &str, body: Option<&Value>) -> Reply {
    let request = ask(method, path).header("authorization", key);
    match body {
        Some(body) => request.json(body).to(&server.router).await,
        None => request.to(&server.router).await,
    }
}

async fn posted(server: &TestServer, key: &str, path: &str, body: Value) -> Reply {
    by(server, key, Method::POST, path, Some(&body)).await
}

/// Starts a run and returns its id and that of its open wait.
async fn begun(server: &TestServer, workflow: &str) -> (String, String) {
    let body = json!({"workflow": workflow, "input": {"order": "B-7"}});
    let run = server.post("/v1/runs", &body).await.json()["id"].as_str().unwrap().to_owned();
    let waits = server.get(&format!("/v1/waits?run={run}")).await.json();
    (run, waits["items"][0]["id"].as_str().unwrap().to_owned())
}

/// G2: `workflow:answer` alone shows and answers the waits that name the caller, and nothing else.
#[tokio::test]
async fn a_caller_with_answer_alone_sees_only_own_waits() {
    let server = TestServer::open().await;
    server.publish("refund", REFUND).await;
    server.publish("open", OPEN).await;
    let (run, wait) = begun(&server, "refund").await;
    let (_, other) = begun(&server, "open").await;
    let only = || Grants::from([Permission::Answer]);
    let ann = key(&server, "ann", only(), "clerk", Some("ann")).await;
    let joe = key(&server, "joe", only(), "clerk", Some("joe")).await;
    let list = by(&server, &ann, Method::GET, "/v1/waits", None).await.json();
    let items = list["items"].as_array().unwrap();
    assert_eq!((items.len(), &items[0]["id"], &items[0]["title"]), (1, &json!(wait), &json!("Refund B-7")));
    let shown = &items[0];
    assert_eq!(
        (&shown["workflow"], &shown["kind"], &shown["run"]),
        (&json!("refund"), &json!("task"), &json!(run))
    );
    assert!(shown["due"].is_string() && shown["form"]["required"] == json!(["ok"]), "{shown}");
    assert_eq!(
        by(&server, &joe, Method::GET, "/v1/waits?answerer=me", None).await.json()["items"],
        json!([])
    );
    by(&server, &joe, Method::GET, "/v1/waits?answerer=user:ann", None).await.is(403, "denied");
    by(&server, &joe, Method::GET, "/v1/waits?answerer=ann", None).await.is(422, "invalid");
    let path = format!("/v1/waits/{wait}");
    by(&server, &joe, Method::GET, &path, None).await.is(403, "notAnswerer");
    by(&server, &ann, Method::GET, &format!("/v1/waits/{other}"), None).await.is(403, "notAnswerer");
    for elsewhere in
        ["/v1/runs", &format!("/v1/runs/{run}"), &format!("/v1/runs/{run}/timeline"), "/v1/workflows"]
    {
        by(&server, &ann, Method::GET, elsewhere, None).await.is(403, "denied");
    }
    let answer = json!({"input": {"ok": true}});
    posted(&server, &joe, &format!("{path}/answer"), answer.clone()).await.is(403, "notAnswerer");
    posted(&server, &ann, &format!("/v1/waits/{other}/answer"), answer.clone()).await.is(403, "denied");
    assert_eq!(posted(&server, &ann, &format!("{path}/answer"), answer).await.status, 204);
    assert_eq!(server.get(&format!("/v1/runs/{run}?wait=20s")).await.json()["status"], "completed");
}

/// G3: the refusals of an answer say what is wrong: the fields, the claim, the first answer.
#[tokio::test]
async fn a_refused_answer_says_why() {
    let server = TestServer::open().await;
    server.publish("refund", REFUND).await;
    let (run, wait) = begun(&server, "refund").await;
    let only = || Grants::from([Permission::Answer]);
    let ann = key(&server, "ann", only(), "clerk", Some("ann")).await;
    let max = key(&server, "max", only(), "support-lead", None).await;
    let at = |verb: &str| format!("/v1/waits/{wait}/{verb}");
    let unfit = posted(&server, &ann, &at("answer"), json!({"input": {"ok": "yes"}}))
        .await
        .is(422, "validationFailed");
    assert_eq!(unfit["errors"][0]["pointer"], "/ok", "{unfit}");
    let claimed = posted(&server, &ann, &at("claim"), json!({"lease": "30m"})).await.json();
    assert_eq!(claimed["claimedBy"], "apikey:ann");
    let yes = json!({"input": {"ok": true}});
    let refused = posted(&server, &max, &at("answer"), yes.clone()).await.is(409, "claimed");
    assert_eq!(
        (&refused["params"]["by"], &refused["params"]["until"]),
        (&json!("apikey:ann"), &claimed["claimedUntil"])
    );
    posted(&server, &max, &at("claim"), json!({})).await.is(409, "claimed");
    assert_eq!(by(&server, &ann, Method::POST, &at("release"), None).await.status, 204);
    let keyed = async |key: &str| {
        let request =
            ask(Method::POST, &at("answer")).header("authorization", &max).header("idempotency-key", key);
        request.json(&yes).to(&server.router).await
    };
    let (first, again) = (keyed("k").await, keyed("k").await);
    assert_eq!(
        (first.status.as_u16(), again.status.as_u16(), again.header("idempotency-replayed")),
        (204, 204, "true")
    );
    let second =
        posted(&server, &ann, &at("answer"), json!({"input": {"ok": false}})).await.is(409, "answered");
    assert_eq!(
        (&second["params"]["by"], &second["params"]["signal"]),
        (&json!("apikey:max"), &json!("approve"))
    );
    by(&server, &ann, Method::GET, &format!("/v1/waits/{wait}"), None).await.is(409, "answered");
    let never = format!("/v1/waits/{run}.999/answer");
    posted(&server, &ann, &never, yes).await.is(404, "noWait");
    let timeline = server.get(&format!("/v1/runs/{run}/timeline")).await.json();
    let items = timeline["items"].as_array().unwrap();
    let actors: Vec<_> = items.iter().filter_map(|item| item["actor"].as_str()).collect();
    assert!(actors.contains(&"apikey:ann") && actors.contains(&"apikey:max"), "{timeline}");
}

/// Two keys of one name would be one actor, so a name is used once; it is free again when its key is revoked.
#[tokio::test]
async fn names_of_api_keys_are_unique() {
    let server = TestServer::open().await;
    let make = async |name: &str| {
        server.post("/v1/apikeys", &json!({"name": name, "permissions": ["workflow:view"]})).await
    };
    let first = make("ci").await;
    assert_eq!(first.status, 201);
    make("ci").await.is(409, "exists");
    make("c\ni").await.is(422, "invalid");
    assert_eq!(make("ci 2").await.status, 201);
    let revoked = server.delete(&format!("/v1/apikeys/{}", first.json()["id"].as_str().unwrap())).await;
    assert_eq!(revoked.status, 204);
    let body = json!({"name": "ci", "permissions": ["workflow:answer"], "roles": ["lead"], "user": "ann"});
    let again = server.post("/v1/apikeys", &body).await.json();
    assert_eq!((&again["roles"], &again["user"]), (&json!(["lead"]), &json!("ann")));
    let secret = format!("Bearer {}", again["secret"].as_str().unwrap());
    let me = by(&server, &secret, Method::GET, "/v1/whoami", None).await.json();
    assert_eq!((&me["roles"], &me["user"]), (&json!(["lead"]), &json!("ann")));
}

/// Every command of docs/people.md works as it is written there.
#[test]
fn the_commands_of_the_page_work_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let text = std::fs::read_to_string(project().join("docs/people.md")).unwrap();
    let blocks = blocks(&text, "sh");
    assert!(blocks.len() >= 6, "{blocks:?}");
    let script = format!("set -eu\n{}", blocks.join("\n"));
    let (code, out, err) = said(&shell(folder.path(), &url, &script).output().unwrap());
    assert_eq!(code, Some(0), "{out}\n{err}");
    for told in ["Refund B-7", "claimed by ann", "answered by ann", "apikey:ann", "wait.claim"] {
        assert!(out.contains(told), "{told} is not in {out}\n{err}");
    }
}
