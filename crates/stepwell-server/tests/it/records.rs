//! Records of a run over the API: documents, graphs, diffs and test cases; also the list of runs.

use axum::http::Method;
use serde_json::{Value, json};
use stepwell::core::WorkflowSource;
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Spec};
use stepwell::{ActionError, Cx, Permission, Simulation};
use uuid::Uuid;

use crate::kit::{get, until};
use crate::table::key_of;
use crate::test_server::{OURS, TestServer};

/// A workflow that stores a note for each `NOTE` signal and ends with `CLOSE`.
fn file() -> Definition {
    Spec::new("file")
        .step("open")
        .end("closed")
        .signal("NOTE")
        .signal("CLOSE")
        .transition(Transition::new("note", "open", "open").on_signal("NOTE").action("note"))
        .transition(Transition::new("close", "open", "closed").on_signal("CLOSE"))
        .build()
        .unwrap()
}

async fn note(cx: Cx) -> Result<(), ActionError> {
    let text = cx.payload()["text"].clone();
    cx.put_document("latest", "note", &text, &["out"])?;
    let mut state: Value = cx.state()?;
    state["a/b"] = text;
    cx.set_state(&state)
}

async fn server() -> TestServer {
    TestServer::with(|engine| engine.workflow(file()).action("note", note)).await
}

/// Starts a run and stores two notes. Returns the path of the run.
async fn noted(server: &TestServer) -> String {
    let body = json!({"workflow": "file", "input": {"gone": 1, "a/b": null}});
    let run = server.post("/v1/runs", &body).await.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{run}");
    for (version, text) in [(1, "first"), (2, "second")] {
        assert_eq!(server.post(&format!("{path}/signals/NOTE"), &json!({"text": text})).await.status, 200);
        let is_noted = async || (server.get(&path).await.json()["version"] == version).then_some(());
        until("the note is there", is_noted).await;
    }
    path
}

#[tokio::test]
async fn documents_of_a_run_require_read_permission() {
    let server = server().await;
    let path = noted(&server).await;
    let documents = format!("{path}/documents");
    let page = server.get(&documents).await.json();
    let [document] = page["items"].as_array().unwrap().as_slice() else { panic!("{page}") };
    let parts = ["key", "kind", "body", "tags", "visibleFrom"].map(|part| document[part].clone());
    assert_eq!(parts, [json!("latest"), json!("note"), json!("second"), json!(["out"]), json!(2)]);
    let bodies = async |query: &str| {
        let page = server.get(&format!("{documents}?{query}")).await.json();
        page["items"].as_array().unwrap().iter().map(|item| item["body"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(bodies("version=1&tag=out&kind=note&key=latest").await, [json!("first")]);
    assert_eq!(bodies("version=0").await, [] as [Value; 0]);
    assert_eq!(bodies("kind=letter").await, [] as [Value; 0]);
    let reader = key_of(&server.server, OURS, &[Permission::Read]).await;
    let read = get(&documents).header("authorization", &reader).to(&server.router).await;
    assert_eq!(read.status, 200, "{read:?}");
    let viewer = key_of(&server.server, OURS, &[Permission::View]).await;
    get(&documents).header("authorization", &viewer).to(&server.router).await.is(403, "denied");
    server.as_other_tenant(Method::GET, &documents, None).await.is(404, "noRun");
    server.get(&format!("/v1/runs/{}/documents", Uuid::now_v7())).await.is(404, "noRun");
    server.get(&format!("{documents}?cursor=x")).await.is(422, "invalid");
}

#[tokio::test]
async fn graph_of_a_run_shows_its_current_state() {
    let server = server().await;
    let path = noted(&server).await;
    let graph = server.get(&format!("{path}/graph")).await.json();
    let open = graph["nodes"].as_array().unwrap().iter().find(|node| node["id"] == "open").unwrap();
    assert_eq!((&graph["workflow"], &open["activations"]), (&json!("file"), &json!(1)), "{graph}");
    let drawn = server.get(&format!("{path}/graph?format=mermaid")).await;
    assert!(drawn.body.contains(":::active") || drawn.body.contains(":::waiting"), "{}", drawn.body);
    server.get(&format!("{path}/graph?format=png")).await.is(400, "badParameter");
    server.as_other_tenant(Method::GET, &format!("{path}/graph"), None).await.is(404, "noRun");
}

#[tokio::test]
async fn diff_lists_changes_between_two_versions() {
    let server = server().await;
    let path = noted(&server).await;
    let diff = async |query: &str| server.get(&format!("{path}/diff?{query}")).await;
    let first = diff("from=0&to=1").await.json();
    assert_eq!(
        first["changes"],
        json!([{"op": "replace", "path": "/a~1b", "value": "first", "oldValue": null}])
    );
    let all = diff("from=0").await.json();
    assert_eq!((&all["to"], &all["changes"][0]["value"]), (&json!(2), &json!("second")));
    assert_eq!(diff("from=1&to=1").await.json()["changes"], json!([]));
    let patch = json!({"fields": {"gone": null, "new": {"x": 1}}});
    assert_eq!(server.post(&format!("{path}/patch"), &patch).await.status, 204);
    let patched = diff("from=2&to=3").await.json();
    let expected = json!([
        {"op": "remove", "path": "/gone", "oldValue": 1},
        {"op": "add", "path": "/new", "value": {"x": 1}},
    ]);
    assert_eq!(patched["changes"], expected);
    diff("from=0&to=9").await.is(404, "noVersion");
    diff("to=1").await.is(400, "badParameter");
    server.as_other_tenant(Method::GET, &format!("{path}/diff?from=0"), None).await.is(404, "noRun");
}

#[tokio::test]
async fn run_is_exported_as_a_test_case() {
    let text = "
name: greet
steps:
  - { id: ask, type: wait.signal, signal: NAME }
  - { id: done, type: control.return, value: { hello: { $expr: vars.ask.name } } }
";
    let server = server().await;
    server.publish("greet", text).await;
    let run = server.post("/v1/runs", &json!({"workflow": "greet", "input": {}})).await.json();
    let path = format!("/v1/runs/{}", run["id"].as_str().unwrap());
    server.post(&format!("{path}/signals/NAME"), &json!({"name": "ann"})).await;
    assert_eq!(server.get(&format!("{path}?wait=20s")).await.json()["status"], "completed");
    let case = server.get(&format!("{path}/export?name=ann")).await.json();
    assert_eq!(
        (&case["name"], &case["expect"]["result"]),
        (&json!("ann"), &json!({"hello": "ann"})),
        "{case}"
    );
    let yaml = server.get(&format!("{path}/export?format=yaml")).await;
    assert_eq!(yaml.header("content-type"), "application/yaml");
    assert!(yaml.body.contains("name: run "), "{}", yaml.body);
    // The exported test case passes in the simulator.
    let mut document = WorkflowSource::read(text, None).unwrap().value().clone();
    document["tests"] = json!([case]);
    let document = WorkflowSource::read(&document.to_string(), None).unwrap();
    let report = Simulation::of(&document).test_all(document.cases()).await;
    assert!(report.passed(), "{report:?}");
    server.as_other_tenant(Method::GET, &format!("{path}/export"), None).await.is(404, "noRun");
    // A run that an operator has changed is not exported: a test case cannot express the change.
    let changed = noted(&server).await;
    server.post(&format!("{changed}/patch"), &json!({"fields": {"x": 1}})).await;
    server.get(&format!("{changed}/export")).await.is(422, "invalid");
}

#[tokio::test]
async fn engine_runs_are_listed_only_by_workflow_name() {
    let server = server().await;
    let path = noted(&server).await;
    let event = json!({"specversion": "1.0", "id": "1", "source": "/shop", "type": "PAID"});
    let emit = server.ask(Method::POST, "/v1/events").header("content-type", "application/cloudevents+json");
    assert_eq!(emit.body(event.to_string()).to(&server.router).await.status, 202);
    let ids = async |query: &str| {
        let page = server.get(&format!("/v1/runs?{query}")).await.json();
        page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|run| run["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let ours = [path.rsplit('/').next().unwrap().to_owned()];
    assert_eq!(ids("").await, ours);
    assert_eq!(ids("limit=1").await, ours);
    assert_eq!(ids("workflow=file").await, ours);
    assert_eq!(ids("workflow=stepwell.event").await.len(), 1);
    assert_eq!(server.as_other_tenant(Method::GET, "/v1/runs", None).await.json()["items"], json!([]));
}
