//! Workflow documents over the API: validated, simulated without side effects, and copied between tenants as a bundle.

use axum::http::Method;
use serde_json::json;

use crate::test_server::TestServer;

const GREET: &str = "
name: greet
steps:
  - { id: mail, type: action.call, action: mail.send, input: { to: { $expr: payload.to } } }
  - { id: done, type: control.return, value: { $expr: vars.mail.id } }
tests:
  - { name: it greets, input: { to: ann@example.com }, mocks: { mail: [{ output: { id: 7 } }] }, expect: { result: 7 } }
  - { name: it does not, input: { to: bob@example.com }, mocks: { mail: [{ output: { id: 8 } }] }, expect: { result: 7 } }
";
const LOOP: &str = "steps: [{ id: while, type: control.while, condition: true, maxIterations: 1000000, body: [{ id: a, type: vars.set, values: { x: 1 } }] }]";

fn returns(value: u32) -> String {
    format!(
        "{{ metadata: {{ name: w{value} }}, spec: {{ steps: [{{ id: done, type: control.return, value: {value} }}] }} }}"
    )
}

fn bundle(values: &[u32]) -> String {
    let items: Vec<_> = values.iter().map(|value| returns(*value)).collect();
    format!("apiVersion: stepwell/v1\nkind: Bundle\nitems: [{}]\n", items.join(", "))
}

#[tokio::test]
async fn validation_reports_every_problem_of_a_document() {
    let server = TestServer::open().await;
    let sound = server.post_yaml("/v1/catalogue/validate", GREET).await.json();
    assert_eq!((&sound["valid"], &sound["problems"]), (&json!(true), &json!([])));
    assert_eq!(sound["warnings"][0]["code"], "unknownAction", "{sound}");
    for (text, line) in [("steps: [{ id: a, type: b.c }]", 1), ("steps:\n  - [", 2), ("", 1), ("\u{0}", 1)] {
        let checked = server.post_yaml("/v1/catalogue/validate?name=x", text).await;
        assert_eq!(checked.status, 200, "{text}: {checked:?}");
        let checked = checked.json();
        assert_eq!(checked["valid"], false, "{text}: {checked}");
        let problem = &checked["problems"][0];
        assert!(
            problem["line"].as_u64().unwrap() <= line && problem["message"].is_string(),
            "{text}: {checked}"
        );
    }
    let nameless = server.post_yaml("/v1/catalogue/validate", "steps: []").await.json();
    assert_eq!(nameless["valid"], false, "{nameless}");
    let as_json = json!({"name": "x", "steps": [{"id": "done", "type": "control.return"}]});
    assert_eq!(server.post("/v1/catalogue/validate", &as_json).await.json()["valid"], true);
    let other = server.post("/v1/catalogue/validate?name=y", &as_json).await.json();
    assert_eq!(other["problems"][0]["code"], "otherName", "{other}");
}

#[tokio::test]
async fn a_document_is_simulated_without_side_effects() {
    let server = TestServer::open().await;
    let path = "/v1/catalogue/simulate";
    let plain = json!({"document": GREET, "input": {"to": "ann@example.com"}});
    let ran = server.post(path, &plain).await.json();
    assert_eq!((&ran["outcome"], &ran["steps"][0]["how"]), (&json!("failed"), &json!("notMocked")), "{ran}");
    let mocked = json!({"document": GREET, "case": "it greets"});
    let ran = server.post(path, &mocked).await.json();
    assert_eq!((&ran["outcome"], &ran["result"]), (&json!("completed"), &json!(7)), "{ran}");
    assert_eq!(ran["steps"][0]["input"], json!({"to": "ann@example.com"}));
    assert_eq!(ran["coverage"]["steps"], json!({"covered": 2, "total": 2}));
    server.post(path, &json!({"document": "steps: ["})).await.is(422, "invalidDocument");
    let none = server.post(path, &json!({"document": GREET, "case": "none"})).await.is(422, "noCase");
    assert!(none["detail"].as_str().unwrap().contains("`it greets`"), "{none}");
    server.post(path, &json!({"document": LOOP, "name": "x"})).await.is(422, "endless");
    server.post(path, &json!({})).await.is(400, "badBody");
    let large = json!({"document": LOOP, "name": "x", "input": {"x": "x".repeat(100 * 1024)}});
    let large = server.post(path, &large).await.json();
    assert_eq!(large["outcome"], "failed", "{large}");
    let rows = server.get("/v1/runs").await.json();
    assert_eq!(rows["items"], json!([]), "nothing was started");
}

#[tokio::test]
async fn the_test_cases_of_a_document_are_run() {
    let server = TestServer::open().await;
    let path = "/v1/catalogue/test";
    let tested = server.post(path, &json!({"document": GREET})).await.json();
    assert_eq!(tested["passed"], false);
    let passed: Vec<_> = tested["cases"].as_array().unwrap().iter().map(|case| &case["passed"]).collect();
    assert_eq!(passed, [&json!(true), &json!(false)], "{tested}");
    assert!(tested["cases"][1]["failures"][0].as_str().unwrap().contains('8'), "{tested}");
    let one = server.post(path, &json!({"document": GREET, "case": "it greets"})).await.json();
    assert_eq!((&one["passed"], one["cases"].as_array().unwrap().len()), (&json!(true), 1));
    server.post(path, &json!({"document": GREET, "case": "none"})).await.is(422, "noCase");
    let many: String = (0..101).map(|n| format!("  - {{ name: c{n} }}\n")).collect();
    let many = format!("name: x\nsteps: [{{ id: done, type: control.return }}]\ntests:\n{many}");
    let many = server.post(path, &json!({"document": many})).await.is(422, "limit");
    assert_eq!(many["params"], json!({"limit": "cases", "max": 100}));
}

#[tokio::test]
async fn a_bundle_is_imported_completely_or_not_at_all() {
    let server = TestServer::open().await;
    let import = |query: &str| format!("/v1/catalogue/import{query}");
    let outcomes = |reply: &serde_json::Value| {
        let rows = reply["items"].as_array().unwrap().iter();
        rows.map(|row| row["outcome"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let dry = server.post_yaml(&import("?dryRun=true&activate=true"), &bundle(&[1, 2])).await.json();
    assert_eq!((&dry["dryRun"], outcomes(&dry)), (&json!(true), vec!["new".to_owned(), "new".to_owned()]));
    assert_eq!(server.get("/v1/workflows").await.json()["items"], json!([]));
    let wrong = format!("{}{}", bundle(&[1]).replace(']', ""), "");
    server.post_yaml(&import(""), &wrong).await.is(422, "invalidDocument");
    server.post_yaml(&import(""), &bundle(&[1, 1])).await.is(422, "invalidDocument");
    assert_eq!(server.get("/v1/workflows").await.json()["items"], json!([]));

    let done = server.post_yaml(&import("?activate=true&note=all"), &bundle(&[1, 2])).await.json();
    assert_eq!((outcomes(&done), &done["items"][0]["activated"]), (vec!["new".to_owned(); 2], &json!(true)));
    assert_eq!(server.run("w1", json!({})).await["result"], 1);
    let again = server.post_yaml(&import(""), &bundle(&[1, 2])).await.json();
    assert_eq!(outcomes(&again), ["unchanged", "unchanged"]);
    server.post_yaml(&import(""), &bundle(&[3])).await;

    let all = server.get("/v1/catalogue/export").await.json();
    let names = |bundle: &serde_json::Value| {
        let items = bundle["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((&all["kind"], names(&all)), (&json!("Bundle"), vec!["w1".to_owned(), "w2".to_owned()]));
    let newest = server.get("/v1/catalogue/export?which=newest&name=w3&name=w1").await.json();
    assert_eq!(names(&newest), ["w1", "w3"]);
    server.get("/v1/catalogue/export?name=w3").await.is(404, "noVersion");
    server.get("/v1/catalogue/export?name=none").await.is(404, "unknownWorkflow");
    server.get("/v1/catalogue/export?which=oldest").await.is(400, "badParameter");
    let text = server.get("/v1/catalogue/export?format=yaml").await;
    assert_eq!(text.header("content-type"), "application/yaml");

    let as_other_tenant = server.as_other_tenant(Method::GET, "/v1/catalogue/export", None).await.json();
    assert_eq!(as_other_tenant["items"], json!([]));
    server
        .as_other_tenant(Method::GET, "/v1/catalogue/export?name=w1", None)
        .await
        .is(404, "unknownWorkflow");
    let theirs = server.as_other_tenant(Method::POST, &import(""), Some(&all)).await.json();
    assert_eq!(outcomes(&theirs), ["new", "new"], "{theirs}");
}
