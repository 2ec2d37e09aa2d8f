//! Workflows over the API: drafts with revisions, immutable versions, and the active version of new runs.

use axum::http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::kit::{Reply, TestRequest};
use crate::test_server::TestServer;

const TWICE: &str = "steps: [{ id: done, type: control.return, value: { $expr: payload.n * 2 } }]";
const DRAFT: &str = "/v1/workflows/twice/draft";

fn yaml(asked: TestRequest, text: &str) -> TestRequest {
    asked.header("content-type", "application/yaml").body(text.to_owned())
}

async fn keep(server: &TestServer, header: Option<(&str, &str)>, text: &str) -> Reply {
    let asked = server.ask(Method::PUT, DRAFT);
    let asked = header.into_iter().fold(asked, |asked, (name, value)| asked.header(name, value));
    yaml(asked, text).to(&server.router).await
}

/// F5: a draft changes only with its current revision, so that unseen changes are not overwritten.
#[tokio::test]
async fn draft_update_requires_the_current_revision() {
    let server = TestServer::open().await;
    server.get(DRAFT).await.is(404, "noDraft");
    let made = keep(&server, None, "steps: [").await;
    assert_eq!((made.status.as_u16(), made.header("etag"), made.header("location")), (201, "\"1\"", DRAFT));
    let shown = server.get(DRAFT).await;
    assert_eq!(shown.header("etag"), "\"1\"");
    let shown = shown.json();
    assert_eq!((&shown["text"], &shown["updatedBy"]), (&json!("steps: ["), &json!("apikey:test")));

    let unnamed = keep(&server, None, TWICE).await.is(428, "preconditionRequired");
    assert_eq!(unnamed["params"]["revision"], 1);
    keep(&server, Some(("if-none-match", "*")), TWICE).await.is(412, "revisionConflict");
    keep(&server, Some(("if-match", "1")), TWICE).await.is(400, "malformedTag");
    let changed = keep(&server, Some(("if-match", "\"1\"")), TWICE).await;
    assert_eq!((changed.status.as_u16(), changed.header("etag")), (200, "\"2\""), "{changed:?}");
    let late = keep(&server, Some(("if-match", "\"1\"")), "").await.is(412, "revisionConflict");
    assert_eq!(late["params"], json!({"revision": 2, "exists": true}));

    let remove = async |tag: Option<&str>| {
        let asked = server.ask(Method::DELETE, DRAFT);
        tag.into_iter().fold(asked, |asked, tag| asked.header("if-match", tag)).to(&server.router).await
    };
    remove(None).await.is(428, "preconditionRequired");
    remove(Some("\"1\"")).await.is(412, "revisionConflict");
    server.as_other_tenant(Method::DELETE, DRAFT, None).await.is(404, "noDraft");
    assert_eq!(remove(Some("\"2\"")).await.status, 204);
    remove(Some("\"2\"")).await.is(404, "noDraft");
    keep(&server, Some(("if-match", "\"2\"")), TWICE).await.is(412, "revisionConflict");
    let again = keep(&server, Some(("if-none-match", "*")), TWICE).await;
    assert_eq!((again.status.as_u16(), again.header("etag")), (201, "\"4\""), "revisions never restart");

    server.ask(Method::PUT, DRAFT).body("x").to(&server.router).await.is(415, "unsupportedMediaType");
    yaml(server.ask(Method::PUT, "/v1/workflows/stepwell.own/draft"), TWICE)
        .to(&server.router)
        .await
        .is(422, "invalid");
    let long = "x".repeat(300 * 1024);
    keep(&server, Some(("if-match", "\"4\"")), &long).await.is(422, "limit");
}

#[tokio::test]
async fn draft_is_published_at_its_revision_and_removed() {
    let server = TestServer::open().await;
    let publish = "/v1/workflows/twice/publish";
    server.post(publish, &json!({"revision": 1})).await.is(404, "noDraft");
    keep(&server, None, "steps:\n  - { id: done, type: control.retrun }\n  - { id: done, type: vars.set }\n")
        .await;
    let wrong = server.post(publish, &json!({"revision": 1})).await.is(422, "invalidDocument");
    let first = &wrong["errors"][0];
    assert!(first["pointer"].as_str().unwrap().starts_with("2:"), "{wrong}");
    assert!(first["message"].as_str().unwrap().contains("control.return"), "{wrong}");
    assert_eq!(wrong["params"]["problems"][0]["line"], 2, "{wrong}");
    assert_eq!(
        wrong["errors"].as_array().unwrap().len(),
        wrong["params"]["problems"].as_array().unwrap().len()
    );

    keep(&server, Some(("if-match", "\"1\"")), TWICE).await;
    let late =
        server.post(publish, &json!({"revision": 1, "activate": true})).await.is(412, "revisionConflict");
    assert_eq!(late["params"]["revision"], 2);
    server.post(publish, &json!({"activate": true})).await.is(400, "badBody");
    let body = json!({"revision": 2, "activate": true, "note": "the first"});
    let made = server.post(publish, &body).await;
    assert_eq!((made.status.as_u16(), made.header("location")), (201, "/v1/workflows/twice/versions/1"));
    let made = made.json();
    assert_eq!(
        (&made["version"], &made["created"], &made["active"]),
        (&json!(1), &json!(true), &json!(true))
    );
    server.get(DRAFT).await.is(404, "noDraft");
    assert_eq!(server.run("twice", json!({"n": 21})).await["result"], 42);
    let rows = server.get("/v1/workflows/twice/versions").await.json();
    assert_eq!(
        (&rows["items"][0]["note"], &rows["items"][0]["publishedBy"]),
        (&json!("the first"), &json!("apikey:test"))
    );
}

#[tokio::test]
async fn versions_are_published_shown_compared_and_drawn() {
    let server = TestServer::open().await;
    let versions = "/v1/workflows/twice/versions";
    server.get(versions).await.is(404, "unknownWorkflow");
    server.get("/v1/workflows/twice").await.is(404, "unknownWorkflow");
    let wrong = server.post_yaml(versions, "steps: [{ id: a, type: action.call }]").await;
    assert!(!wrong.is(422, "invalidDocument")["errors"].as_array().unwrap().is_empty());
    assert_eq!(server.publish("twice", TWICE).await["created"], true);
    let same = server.post_yaml(versions, TWICE).await;
    assert_eq!((same.status.as_u16(), same.json()["created"].clone()), (200, json!(false)), "{same:?}");
    let thrice = json!({"steps": [
        {"id": "log", "type": "action.call", "action": "transfrm", "input": {}},
        {"id": "done", "type": "control.return", "value": {"$expr": "payload.n * 3"}},
    ]});
    server.post(versions, &thrice).await.is(422, "invalidDocument");
    let second = server.post(&format!("{versions}?allowUnknownActions=true"), &thrice).await;
    assert_eq!(second.status, 201, "{second:?}");
    let second = second.json();
    assert_eq!((&second["version"], &second["active"]), (&json!(2), &json!(false)));
    assert!(second["warnings"][0]["message"].as_str().unwrap().contains("`transform`"), "{second}");

    let shown = server.get("/v1/workflows/twice").await.json();
    let parts = ["versions", "newest", "active", "archived", "draft"].map(|part| shown[part].clone());
    assert_eq!(parts, [json!(2), json!(2), json!(1), json!(false), json!(false)]);
    let page = server.get(&format!("{versions}?limit=1")).await.json();
    let next = page["nextCursor"].as_str().unwrap();
    let rest = server.get(&format!("{versions}?limit=1&cursor={next}")).await.json();
    assert_eq!((&page["items"][0]["active"], &rest["items"][0]["version"]), (&json!(true), &json!(2)));

    let document = server.get(&format!("{versions}/2")).await;
    assert_eq!(document.header("content-type"), "application/json");
    assert_eq!(
        (&document.json()["name"], &document.json()["steps"][1]),
        (&json!("twice"), &thrice["steps"][1])
    );
    let text = server.get(&format!("{versions}/1?format=yaml")).await;
    assert_eq!(text.header("content-type"), "application/yaml");
    assert!(text.body.contains("payload.n * 2"), "{}", text.body);
    let none = server.get(&format!("{versions}/9")).await.is(404, "noVersion");
    assert!(none["detail"].as_str().unwrap().contains("existing versions: 1, 2"), "{none}");
    server.get(&format!("{versions}/one")).await.is(400, "badParameter");

    let differs = server.get("/v1/workflows/twice/diff?from=1&to=2").await.json();
    let kinds: Vec<_> =
        differs["items"].as_array().unwrap().iter().map(|one| (&one["kind"], &one["id"])).collect();
    assert!(kinds.contains(&(&json!("added"), &json!("log"))), "{differs}");
    assert!(kinds.contains(&(&json!("changed"), &json!("done"))), "{differs}");
    assert_eq!(server.get("/v1/workflows/twice/diff?from=1&to=1").await.json()["items"], json!([]));
    server.get("/v1/workflows/twice/diff?from=1&to=7").await.is(404, "noVersion");
    server.get("/v1/workflows/twice/diff?from=1").await.is(400, "badParameter");

    let graph = server.get("/v1/workflows/twice/graph").await.json();
    let has_log = |graph: &Value| graph["nodes"].as_array().unwrap().iter().any(|node| node["id"] == "log");
    assert!(!has_log(&graph), "the active version is the default: {graph}");
    let newest = "/v1/workflows/twice/graph?version=2";
    assert!(has_log(&server.get(newest).await.json()));
    let drawn = server.get(&format!("{newest}&format=mermaid")).await;
    assert!(drawn.body.starts_with("flowchart TD") && drawn.header("content-type").starts_with("text/plain"));
    server.get("/v1/workflows/twice/graph?version=3").await.is(404, "noVersion");
}

#[tokio::test]
async fn active_version_can_be_switched() {
    let server = TestServer::open().await;
    let thrice = TWICE.replace('2', "3");
    server.post("/v1/workflows/twice/activate", &json!({"version": 1})).await.is(404, "unknownWorkflow");
    server.publish("twice", TWICE).await;
    server.publish("twice", &thrice).await;
    let result = async || server.run("twice", json!({"n": 2})).await["result"].clone();
    assert_eq!(result().await, 6);
    let verb = |verb: &str| format!("/v1/workflows/twice/{verb}");
    let switched = server.post(&verb("activate"), &json!({"version": 1})).await.json();
    assert_eq!(switched, json!({"name": "twice", "active": 1, "changed": true}));
    assert_eq!(result().await, 4);
    server.post(&verb("activate"), &json!({"version": 7})).await.is(404, "noVersion");
    let again = server.post(&verb("activate"), &json!({"version": 1})).await.json();
    assert_eq!(again["changed"], false);

    let go = async |word: &str| server.ask(Method::POST, &verb(word)).to(&server.router).await;
    assert_eq!(go("deactivate").await.json(), json!({"name": "twice", "changed": true}));
    server.post("/v1/runs", &json!({"workflow": "twice"})).await.is(409, "inactive");
    server.post(&verb("activate"), &json!({"version": 2})).await;
    assert_eq!(go("archive").await.json()["changed"], true);
    assert_eq!(server.get("/v1/workflows/twice").await.json()["archived"], true);
    let other = TWICE.replace('2', "4");
    server.post_yaml("/v1/workflows/twice/versions", &other).await.is(409, "archived");
    server.post(&verb("activate"), &json!({"version": 1})).await.is(409, "archived");
    assert_eq!(go("restore").await.json()["active"], 2);
    assert_eq!(result().await, 6);
    go("restore").await;
    server
        .ask(Method::POST, "/v1/workflows/none/archive")
        .to(&server.router)
        .await
        .is(404, "unknownWorkflow");
}

#[tokio::test]
async fn workflow_names_may_need_percent_encoding() {
    let server = TestServer::open().await;
    for name in ["validate", "billing%2Frefund%20%C3%BC", "beta"] {
        server.publish(name, TWICE).await;
    }
    let page = server.get("/v1/workflows?limit=2").await.json();
    let next = utf8_percent_encode(page["nextCursor"].as_str().unwrap(), NON_ALPHANUMERIC);
    let rest = server.get(&format!("/v1/workflows?limit=2&cursor={next}")).await.json();
    let rows = page["items"].as_array().unwrap().iter().chain(rest["items"].as_array().unwrap());
    let names: Vec<_> = rows.map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["beta", "billing/refund ü", "validate"]);
    let some = server.get("/v1/workflows?prefix=b").await.json();
    assert_eq!(some["items"].as_array().unwrap().len(), 2);
    assert_eq!(
        server.get("/v1/workflows/billing%2Frefund%20%C3%BC").await.json()["name"],
        "billing/refund ü"
    );
    assert_eq!(server.get("/v1/workflows/validate").await.json()["active"], 1);
    let again = server.post_yaml("/v1/workflows/billing%2Frefund%20%C3%BC/versions", TWICE).await;
    assert_eq!(again.header("location"), "/v1/workflows/billing%2Frefund%20%C3%BC/versions/1");
    server.get("/v1/workflows?limit=0").await.is(400, "badParameter");
    server.get("/v1/workflows?sort=name").await.is(400, "unknownParameter");
}

#[tokio::test]
async fn workflows_are_invisible_to_other_tenants() {
    let server = TestServer::open().await;
    server.publish("twice", TWICE).await;
    yaml(server.ask(Method::PUT, DRAFT), TWICE).to(&server.router).await;
    let as_other_tenant = async |method: Method, path: &str, body: Option<Value>| {
        server.as_other_tenant(method, path, body.as_ref()).await
    };
    assert_eq!(as_other_tenant(Method::GET, "/v1/workflows", None).await.json()["items"], json!([]));
    for path in ["", "/versions", "/versions/1", "/graph", "/graph?version=1", "/diff?from=1&to=1"] {
        let reply = as_other_tenant(Method::GET, &format!("/v1/workflows/twice{path}"), None).await;
        reply.is(404, "unknownWorkflow");
        assert!(!reply.body.contains("did you mean"), "{reply:?}");
    }
    as_other_tenant(Method::GET, DRAFT, None).await.is(404, "noDraft");
    for verb in ["archive", "deactivate", "restore"] {
        as_other_tenant(Method::POST, &format!("/v1/workflows/twice/{verb}"), None)
            .await
            .is(404, "unknownWorkflow");
    }
    let publish = Some(json!({"revision": 1}));
    as_other_tenant(Method::POST, "/v1/workflows/twice/publish", publish).await.is(404, "noDraft");
    let activate = Some(json!({"version": 1}));
    as_other_tenant(Method::POST, "/v1/workflows/twice/activate", activate).await.is(404, "unknownWorkflow");
    as_other_tenant(Method::POST, "/v1/runs", Some(json!({"workflow": "twice"})))
        .await
        .is(404, "unknownWorkflow");
    let own = Some(json!({"steps": [{"id": "done", "type": "control.return", "value": 1}]}));
    let made = as_other_tenant(Method::POST, "/v1/workflows/twice/versions?activate=true", own).await;
    assert_eq!((made.status.as_u16(), &made.json()["version"]), (201, &json!(1)));
    assert_eq!(server.run("twice", json!({"n": 4})).await["result"], 8, "each tenant has its own workflow");
}
