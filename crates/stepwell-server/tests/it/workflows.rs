//! Workflows over the API: drafts with their revisions, versions that never change, and which one new runs get.

use axum::http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::desk::Desk;
use crate::kit::{Ask, Reply};

const TWICE: &str = "steps: [{ id: done, type: control.return, value: { $expr: payload.n * 2 } }]";
const DRAFT: &str = "/v1/workflows/twice/draft";

fn yaml(asked: Ask, text: &str) -> Ask {
    asked.header("content-type", "application/yaml").body(text.to_owned())
}

async fn keep(desk: &Desk, header: Option<(&str, &str)>, text: &str) -> Reply {
    let asked = desk.ask(Method::PUT, DRAFT);
    let asked = header.into_iter().fold(asked, |asked, (name, value)| asked.header(name, value));
    yaml(asked, text).to(&desk.router).await
}

/// F5: nobody overwrites what they have not seen.
#[tokio::test]
async fn a_draft_is_changed_only_by_who_names_its_revision() {
    let desk = Desk::open().await;
    desk.get(DRAFT).await.is(404, "noDraft");
    let made = keep(&desk, None, "steps: [").await;
    assert_eq!((made.status.as_u16(), made.header("etag"), made.header("location")), (201, "\"1\"", DRAFT));
    let shown = desk.get(DRAFT).await;
    assert_eq!(shown.header("etag"), "\"1\"");
    let shown = shown.json();
    assert_eq!((&shown["text"], &shown["updatedBy"]), (&json!("steps: ["), &json!("apikey:test")));

    let unnamed = keep(&desk, None, TWICE).await.is(428, "preconditionRequired");
    assert_eq!(unnamed["params"]["revision"], 1);
    keep(&desk, Some(("if-none-match", "*")), TWICE).await.is(412, "moved");
    keep(&desk, Some(("if-match", "1")), TWICE).await.is(400, "malformedTag");
    let changed = keep(&desk, Some(("if-match", "\"1\"")), TWICE).await;
    assert_eq!((changed.status.as_u16(), changed.header("etag")), (200, "\"2\""), "{changed:?}");
    let late = keep(&desk, Some(("if-match", "\"1\"")), "").await.is(412, "moved");
    assert_eq!(late["params"], json!({"revision": 2, "exists": true}));

    let remove = async |tag: Option<&str>| {
        let asked = desk.ask(Method::DELETE, DRAFT);
        tag.into_iter().fold(asked, |asked, tag| asked.header("if-match", tag)).to(&desk.router).await
    };
    remove(None).await.is(428, "preconditionRequired");
    remove(Some("\"1\"")).await.is(412, "moved");
    desk.elsewhere(Method::DELETE, DRAFT, None).await.is(404, "noDraft");
    assert_eq!(remove(Some("\"2\"")).await.status, 204);
    remove(Some("\"2\"")).await.is(404, "noDraft");
    keep(&desk, Some(("if-match", "\"2\"")), TWICE).await.is(412, "moved");
    let again = keep(&desk, Some(("if-none-match", "*")), TWICE).await;
    assert_eq!((again.status.as_u16(), again.header("etag")), (201, "\"4\""), "revisions never begin anew");

    desk.ask(Method::PUT, DRAFT).body("x").to(&desk.router).await.is(415, "unsupportedMediaType");
    yaml(desk.ask(Method::PUT, "/v1/workflows/stepwell.own/draft"), TWICE)
        .to(&desk.router)
        .await
        .is(422, "invalid");
    let long = "x".repeat(300 * 1024);
    keep(&desk, Some(("if-match", "\"4\"")), &long).await.is(422, "limit");
}

#[tokio::test]
async fn a_draft_is_published_as_it_was_read_and_is_gone_then() {
    let desk = Desk::open().await;
    let publish = "/v1/workflows/twice/publish";
    desk.post(publish, &json!({"revision": 1})).await.is(404, "noDraft");
    keep(&desk, None, "steps:\n  - { id: done, type: control.retrun }\n  - { id: done, type: vars.set }\n")
        .await;
    let wrong = desk.post(publish, &json!({"revision": 1})).await.is(422, "invalidDocument");
    let first = &wrong["errors"][0];
    assert!(first["pointer"].as_str().unwrap().starts_with("2:"), "{wrong}");
    assert!(first["message"].as_str().unwrap().contains("control.return"), "{wrong}");
    assert_eq!(wrong["params"]["problems"][0]["line"], 2, "{wrong}");
    assert_eq!(
        wrong["errors"].as_array().unwrap().len(),
        wrong["params"]["problems"].as_array().unwrap().len()
    );

    keep(&desk, Some(("if-match", "\"1\"")), TWICE).await;
    let late = desk.post(publish, &json!({"revision": 1, "activate": true})).await.is(412, "moved");
    assert_eq!(late["params"]["revision"], 2);
    desk.post(publish, &json!({"activate": true})).await.is(400, "badBody");
    let body = json!({"revision": 2, "activate": true, "note": "the first"});
    let made = desk.post(publish, &body).await;
    assert_eq!((made.status.as_u16(), made.header("location")), (201, "/v1/workflows/twice/versions/1"));
    let made = made.json();
    assert_eq!(
        (&made["version"], &made["created"], &made["active"]),
        (&json!(1), &json!(true), &json!(true))
    );
    desk.get(DRAFT).await.is(404, "noDraft");
    assert_eq!(desk.run("twice", json!({"n": 21})).await["result"], 42);
    let rows = desk.get("/v1/workflows/twice/versions").await.json();
    assert_eq!(
        (&rows["items"][0]["note"], &rows["items"][0]["publishedBy"]),
        (&json!("the first"), &json!("apikey:test"))
    );
}

#[tokio::test]
async fn versions_are_published_shown_compared_and_drawn() {
    let desk = Desk::open().await;
    let versions = "/v1/workflows/twice/versions";
    desk.get(versions).await.is(404, "unknownWorkflow");
    desk.get("/v1/workflows/twice").await.is(404, "unknownWorkflow");
    let wrong = desk.post_yaml(versions, "steps: [{ id: a, type: action.call }]").await;
    assert!(!wrong.is(422, "invalidDocument")["errors"].as_array().unwrap().is_empty());
    assert_eq!(desk.publish("twice", TWICE).await["created"], true);
    let same = desk.post_yaml(versions, TWICE).await;
    assert_eq!((same.status.as_u16(), same.json()["created"].clone()), (200, json!(false)), "{same:?}");
    let thrice = json!({"steps": [
        {"id": "log", "type": "action.call", "action": "transfrm", "input": {}},
        {"id": "done", "type": "control.return", "value": {"$expr": "payload.n * 3"}},
    ]});
    let second = desk.post(versions, &thrice).await;
    assert_eq!(second.status, 201, "{second:?}");
    let second = second.json();
    assert_eq!((&second["version"], &second["active"]), (&json!(2), &json!(false)));
    assert!(second["warnings"][0]["message"].as_str().unwrap().contains("`transform`"), "{second}");

    let shown = desk.get("/v1/workflows/twice").await.json();
    let parts = ["versions", "newest", "active", "archived", "draft"].map(|part| shown[part].clone());
    assert_eq!(parts, [json!(2), json!(2), json!(1), json!(false), json!(false)]);
    let page = desk.get(&format!("{versions}?limit=1")).await.json();
    let next = page["nextCursor"].as_str().unwrap();
    let rest = desk.get(&format!("{versions}?limit=1&cursor={next}")).await.json();
    assert_eq!((&page["items"][0]["active"], &rest["items"][0]["version"]), (&json!(true), &json!(2)));

    let document = desk.get(&format!("{versions}/2")).await;
    assert_eq!(document.header("content-type"), "application/json");
    assert_eq!(
        (&document.json()["name"], &document.json()["steps"][1]),
        (&json!("twice"), &thrice["steps"][1])
    );
    let text = desk.get(&format!("{versions}/1?format=yaml")).await;
    assert_eq!(text.header("content-type"), "application/yaml");
    assert!(text.body.contains("payload.n * 2"), "{}", text.body);
    let none = desk.get(&format!("{versions}/9")).await.is(404, "noVersion");
    assert!(none["detail"].as_str().unwrap().contains("there are 1, 2"), "{none}");
    desk.get(&format!("{versions}/one")).await.is(400, "badParameter");

    let differs = desk.get("/v1/workflows/twice/diff?from=1&to=2").await.json();
    let kinds: Vec<_> =
        differs["items"].as_array().unwrap().iter().map(|one| (&one["kind"], &one["id"])).collect();
    assert!(kinds.contains(&(&json!("added"), &json!("log"))), "{differs}");
    assert!(kinds.contains(&(&json!("changed"), &json!("done"))), "{differs}");
    assert_eq!(desk.get("/v1/workflows/twice/diff?from=1&to=1").await.json()["items"], json!([]));
    desk.get("/v1/workflows/twice/diff?from=1&to=7").await.is(404, "noVersion");
    desk.get("/v1/workflows/twice/diff?from=1").await.is(400, "badParameter");

    let graph = desk.get("/v1/workflows/twice/graph").await.json();
    let has_log = |graph: &Value| graph["nodes"].as_array().unwrap().iter().any(|node| node["id"] == "log");
    assert!(!has_log(&graph), "the active version is meant: {graph}");
    let newest = "/v1/workflows/twice/graph?version=2";
    assert!(has_log(&desk.get(newest).await.json()));
    let drawn = desk.get(&format!("{newest}&format=mermaid")).await;
    assert!(drawn.body.starts_with("flowchart TD") && drawn.header("content-type").starts_with("text/plain"));
    desk.get("/v1/workflows/twice/graph?version=3").await.is(404, "noVersion");
}

#[tokio::test]
async fn which_version_new_runs_get_is_switched() {
    let desk = Desk::open().await;
    let thrice = TWICE.replace('2', "3");
    desk.post("/v1/workflows/twice/activate", &json!({"version": 1})).await.is(404, "unknownWorkflow");
    desk.publish("twice", TWICE).await;
    desk.publish("twice", &thrice).await;
    let result = async || desk.run("twice", json!({"n": 2})).await["result"].clone();
    assert_eq!(result().await, 6);
    let verb = |verb: &str| format!("/v1/workflows/twice/{verb}");
    let switched = desk.post(&verb("activate"), &json!({"version": 1})).await.json();
    assert_eq!(switched, json!({"name": "twice", "active": 1, "changed": true}));
    assert_eq!(result().await, 4);
    desk.post(&verb("activate"), &json!({"version": 7})).await.is(404, "noVersion");
    let again = desk.post(&verb("activate"), &json!({"version": 1})).await.json();
    assert_eq!(again["changed"], false);

    let go = async |word: &str| desk.ask(Method::POST, &verb(word)).to(&desk.router).await;
    assert_eq!(go("deactivate").await.json(), json!({"name": "twice", "changed": true}));
    desk.post("/v1/runs", &json!({"workflow": "twice"})).await.is(409, "inactive");
    desk.post(&verb("activate"), &json!({"version": 2})).await;
    assert_eq!(go("archive").await.json()["changed"], true);
    assert_eq!(desk.get("/v1/workflows/twice").await.json()["archived"], true);
    let other = TWICE.replace('2', "4");
    desk.post_yaml("/v1/workflows/twice/versions", &other).await.is(409, "archived");
    desk.post(&verb("activate"), &json!({"version": 1})).await.is(409, "archived");
    assert_eq!(go("restore").await.json()["active"], 2);
    assert_eq!(result().await, 6);
    go("restore").await;
    desk.ask(Method::POST, "/v1/workflows/none/archive").to(&desk.router).await.is(404, "unknownWorkflow");
}

#[tokio::test]
async fn a_workflow_is_listed_under_any_name_and_every_path_finds_it() {
    let desk = Desk::open().await;
    for name in ["validate", "billing%2Frefund%20%C3%BC", "beta"] {
        desk.publish(name, TWICE).await;
    }
    let page = desk.get("/v1/workflows?limit=2").await.json();
    let next = utf8_percent_encode(page["nextCursor"].as_str().unwrap(), NON_ALPHANUMERIC);
    let rest = desk.get(&format!("/v1/workflows?limit=2&cursor={next}")).await.json();
    let rows = page["items"].as_array().unwrap().iter().chain(rest["items"].as_array().unwrap());
    let names: Vec<_> = rows.map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["beta", "billing/refund ü", "validate"]);
    let some = desk.get("/v1/workflows?prefix=b").await.json();
    assert_eq!(some["items"].as_array().unwrap().len(), 2);
    assert_eq!(desk.get("/v1/workflows/billing%2Frefund%20%C3%BC").await.json()["name"], "billing/refund ü");
    assert_eq!(desk.get("/v1/workflows/validate").await.json()["active"], 1);
    let again = desk.post_yaml("/v1/workflows/billing%2Frefund%20%C3%BC/versions", TWICE).await;
    assert_eq!(again.header("location"), "/v1/workflows/billing%2Frefund%20%C3%BC/versions/1");
    desk.get("/v1/workflows?limit=0").await.is(400, "badParameter");
    desk.get("/v1/workflows?sort=name").await.is(400, "unknownParameter");
}

#[tokio::test]
async fn one_tenants_workflows_are_nobody_elses() {
    let desk = Desk::open().await;
    desk.publish("twice", TWICE).await;
    yaml(desk.ask(Method::PUT, DRAFT), TWICE).to(&desk.router).await;
    let elsewhere = async |method: Method, path: &str, body: Option<Value>| {
        desk.elsewhere(method, path, body.as_ref()).await
    };
    assert_eq!(elsewhere(Method::GET, "/v1/workflows", None).await.json()["items"], json!([]));
    for path in ["", "/versions", "/versions/1", "/graph", "/graph?version=1", "/diff?from=1&to=1"] {
        let reply = elsewhere(Method::GET, &format!("/v1/workflows/twice{path}"), None).await;
        reply.is(404, "unknownWorkflow");
        assert!(!reply.body.contains("did you mean"), "{reply:?}");
    }
    elsewhere(Method::GET, DRAFT, None).await.is(404, "noDraft");
    for verb in ["archive", "deactivate", "restore"] {
        elsewhere(Method::POST, &format!("/v1/workflows/twice/{verb}"), None)
            .await
            .is(404, "unknownWorkflow");
    }
    let publish = Some(json!({"revision": 1}));
    elsewhere(Method::POST, "/v1/workflows/twice/publish", publish).await.is(404, "noDraft");
    let activate = Some(json!({"version": 1}));
    elsewhere(Method::POST, "/v1/workflows/twice/activate", activate).await.is(404, "unknownWorkflow");
    elsewhere(Method::POST, "/v1/runs", Some(json!({"workflow": "twice"}))).await.is(404, "unknownWorkflow");
    let own = Some(json!({"steps": [{"id": "done", "type": "control.return", "value": 1}]}));
    let made = elsewhere(Method::POST, "/v1/workflows/twice/versions?activate=true", own).await;
    assert_eq!((made.status.as_u16(), &made.json()["version"]), (201, &json!(1)));
    assert_eq!(desk.run("twice", json!({"n": 4})).await["result"], 8, "each has its own");
}
