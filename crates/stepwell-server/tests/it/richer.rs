//! Richer workflow documents, published to a server: durations, warnings, pages of links, error codes, switches and the
//! timeout of a run.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};
use stepwell::core::Timestamp;

use crate::kit::until;
use crate::said;
use crate::serving::{dev, dev_with, stepwell};
use crate::test_server::TestServer;

/// Runs a command. Returns the exit code, the standard output and the standard error.
fn verb(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    said(&stepwell(folder).args(arguments).output().unwrap())
}

async fn problems(server: &TestServer, text: &str) -> String {
    let refused = server.post_yaml("/v1/workflows/bad/versions", text).await;
    refused.is(422, "invalidDocument")["errors"].to_string()
}

/// F8: a bare number is not a duration; the message has both readings.
#[tokio::test]
async fn duration_without_a_unit_is_refused_when_publishing() {
    let server = TestServer::open().await;
    let told = problems(&server, "steps: [{ id: nap, type: wait.sleep, for: 1000 }]").await;
    assert!(told.contains("`for: 1000` has no unit: write `1000ms` or `1000s`"), "{told}");
    let text = "
steps:
  - { id: short, type: wait.sleep, for: 10ms }
  - { id: none, type: wait.sleep, for: 0 }
  - { id: named, type: wait.sleep, forMs: { $expr: payload.ms } }
  - { id: nap, type: wait.sleep, for: { $expr: payload.length } }
  - { id: done, type: control.return, value: slept }
";
    server.publish("nap", text).await;
    let run = server.run("nap", json!({"ms": 5, "length": "20ms"})).await;
    assert_eq!(run["result"], "slept", "{run}");
    let run = server.run("nap", json!({"ms": 5, "length": 1000})).await;
    let why = run["error"]["message"].as_str().unwrap_or_else(|| panic!("{run}"));
    assert!(why.contains("`nap`") && why.contains("`1000ms` or `1000s`"), "{why}");
    let wait = server.get("/v1/runs/00000000-0000-0000-0000-000000000000/wait?for=10").await;
    assert!(wait.status.is_client_error(), "{wait:?}");
}

const MISSPELT: &str = "
name: greet
steps:
  - { id: call, type: action.call, action: store.sett, input: {} }
";

const WARNED: &str = "
name: warned
steps:
  - id: safe
    type: control.try
    body: [{ id: put, type: action.call, action: store.set, input: { namespace: a, key: b, value: 1 } }]
    catch: { codes: [conflit], steps: [] }
  - { id: found, type: action.call, action: links.lookup, input: { namespace: a, from: { type: t, id: x } } }
  - { id: each, type: control.forEach, items: { $expr: vars.found.matches }, body: [{ type: action.call, action: log, input: { message: { $expr: item.id } } }] }
  - { id: again, type: action.call, action: log, retry: { attempts: 0, delay: 1s }, input: { message: x } }
";

/// F9: validation has warnings beside errors, and publishing refuses unknown actions.
#[tokio::test]
async fn validation_warns_and_publishing_refuses_unknown_actions() {
    let server = TestServer::open().await;
    let refused = server.post_yaml("/v1/workflows/greet/versions", MISSPELT).await.is(422, "invalidDocument");
    let error = &refused["errors"][0];
    assert_eq!(error["code"], "unknownAction", "{refused}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("did you mean `store.set`") && message.contains("allowUnknownActions"),
        "{message}"
    );
    let bundle = "apiVersion: stepwell/v1\nkind: Bundle\nitems:\n  - name: greet\n    steps: [{ id: call, type: action.call, action: store.sett, input: {} }]\n";
    server.post_yaml("/v1/catalogue/import", bundle).await.is(422, "invalidDocument");
    let imported =
        server.post_yaml("/v1/catalogue/import?allowUnknownActions=true&dryRun=true", bundle).await;
    assert_eq!(imported.status, 200, "{imported:?}");
    let allowed = server.post_yaml("/v1/workflows/greet/versions?allowUnknownActions=true", MISSPELT).await;
    assert_eq!(
        (allowed.status.as_u16(), &allowed.json()["warnings"][0]["code"]),
        (201, &json!("unknownAction"))
    );

    let checked = server.post_yaml("/v1/catalogue/validate", WARNED).await.json();
    let codes = |answer: &Value| -> Vec<String> {
        let all = answer["warnings"].as_array().unwrap().iter();
        all.map(|one| one["code"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        (&checked["valid"], codes(&checked)),
        (&json!(true), vec!["unraisedCode".into(), "firstPageOnly".into(), "noEffect".into()])
    );
    assert_eq!((&checked["warnings"][0]["line"], &checked["warnings"][0]["column"]), (&json!(7), &json!(22)));
    let published = server.publish("warned", WARNED).await;
    assert_eq!(codes(&published).len(), 3, "{published}");

    let draft =
        server.ask(Method::PUT, "/v1/workflows/drafted/draft").header("content-type", "application/yaml");
    let draft = draft
        .header("if-none-match", "*")
        .body(MISSPELT.replace("greet", "drafted"))
        .to(&server.router)
        .await;
    let stored = draft.json();
    assert_eq!(
        (draft.status.as_u16(), &stored["valid"], codes(&stored)),
        (201, &json!(true), vec!["unknownAction".into()]),
        "{stored}"
    );
    let body = json!({"revision": stored["revision"], "activate": true});
    server.post("/v1/workflows/drafted/publish", &body).await.is(422, "invalidDocument");
    let body = json!({"revision": stored["revision"], "allowUnknownActions": true});
    assert_eq!(server.post("/v1/workflows/drafted/publish", &body).await.status, 201);
}

/// F9: the command line prints warnings, and `--strict` makes them errors.
#[test]
fn command_line_prints_warnings_and_strict_refuses_them() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("warned.yaml"), WARNED).unwrap();
    std::fs::write(folder.path().join("greet.yaml"), MISSPELT).unwrap();
    let (code, out, err) = verb(folder.path(), &["workflow", "validate", "warned.yaml"]);
    assert!(code == Some(0) && out.starts_with("warned: valid"), "{out} {err}");
    assert_eq!(
        err.lines().filter(|line| line.starts_with("warned.yaml: warning: line ")).count(),
        3,
        "{err}"
    );
    let (code, out, _) = verb(folder.path(), &["workflow", "validate", "greet.yaml", "--json"]);
    let row: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &row["warnings"][0]["code"]), (Some(0), &json!("unknownAction")), "{row}");
    assert!(row["warnings"][0]["message"].as_str().unwrap().contains("`store.set`"), "{row}");
    let (code, out, _) = verb(folder.path(), &["workflow", "validate", "greet.yaml", "--strict", "--json"]);
    let row: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &row["valid"], &row["problems"][0]["code"]),
        (Some(6), &json!(false), &json!("unknownAction"))
    );

    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let on_server = ["--server", url.as_str()];
    let ask = |arguments: &[&str]| verb(folder.path(), &[arguments, &on_server].concat());
    let (code, out, err) = ask(&["workflow", "validate", "warned.yaml"]);
    assert!(code == Some(0) && err.contains("warning: line 7"), "{out} {err}");
    let (code, _, err) = ask(&["workflow", "apply", "greet.yaml"]);
    assert!(
        code == Some(6) && err.contains("unknownAction") || err.contains("did you mean `store.set`"),
        "{code:?} {err}"
    );
    let (code, _, err) = ask(&["workflow", "apply", "--strict", "warned.yaml"]);
    assert!(code == Some(6) && err.contains("`conflit`"), "{err}");
    let (code, _, err) = ask(&["workflow", "apply", "--allow-unknown-actions", "greet.yaml", "warned.yaml"]);
    assert!(code == Some(0) && err.contains("greet.yaml: warning: line 4"), "{err}");
    let published = server.get("/v1/workflows/greet/versions").json();
    assert_eq!(published["items"][0]["active"], true, "{published}");
}

/// Links one thing to others of two types.
async fn link(server: &TestServer, count: usize) {
    for number in 0..count {
        let to = json!({"type": if number % 2 == 0 { "even" } else { "odd" }, "id": format!("n{number:04}")});
        let body = json!({"from": {"type": "hub", "id": "h"}, "to": to});
        let put = server.put("/v1/links/net", &body).await;
        assert!(put.status.is_success(), "{put:?}");
    }
}

/// D7: `right_type` and `left_type` are accepted, and a lookup has 100 rows by default, through every door.
#[test]
fn left_and_right_types_and_the_default_page_of_a_lookup() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    for number in 0..104 {
        let to = json!({"type": if number < 102 { "leaf" } else { "other" }, "id": format!("n{number:03}")});
        let body = json!({"from": {"type": "hub", "id": "h"}, "to": to});
        let put = server.ask("PUT", "/v1/links/net", Some(&body));
        assert!(put.status < 300, "{put:?}");
    }
    let text = "
name: look
steps:
  - { id: first, type: action.call, action: links.lookup, input: { namespace: net, from: { type: hub, id: h } } }
  - { id: right, type: action.call, action: links.lookup, input: { namespace: net, from: { type: hub, id: h }, right_type: other } }
  - { id: list, type: action.call, action: links.list, input: { namespace: net, left_type: hub, right_type: other } }
  - { id: done, type: control.return, value: { $expr: '{\"first\": $count(vars.first.matches), \"more\": $exists(vars.first.next_cursor), \"right\": $count(vars.right.matches), \"list\": $count(vars.list.items)}' } }
";
    let published =
        server.send("POST", "/v1/workflows/look/versions?activate=true", "application/yaml", text);
    assert_eq!(published.status, 201, "{published:?}");
    let ended =
        server.ask("POST", "/v1/runs?wait=20s", Some(&json!({"workflow": "look", "input": {}}))).json();
    assert_eq!(ended["run"]["result"], json!({"first": 100, "more": true, "right": 2, "list": 2}), "{ended}");

    let count = |path: &str| server.get(path).json()["items"].as_array().map(Vec::len);
    assert_eq!(count("/v1/links/net/lookup?type=hub&id=h"), Some(100));
    assert_eq!(count("/v1/links/net/lookup?type=hub&id=h&rightType=other"), Some(2));
    assert_eq!(count("/v1/links/net?leftType=hub&rightType=other"), Some(2));
    let url = format!("http://{}", server.address);
    let rows = |arguments: &[&str]| {
        let (code, out, err) = verb(folder.path(), &[arguments, &["--server", &url, "--json"]].concat());
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str::<Value>(&out).unwrap()["items"].as_array().map(Vec::len)
    };
    assert_eq!(rows(&["link", "lookup", "net", "h", "hub"]), Some(100));
    assert_eq!(rows(&["link", "lookup", "net", "h", "hub", "--right-type", "other"]), Some(2));
    assert_eq!(rows(&["link", "list", "net", "--left-type", "hub", "--right-type", "other"]), Some(2));
}

/// F2: a loop over all pages of a list, while others write.
#[tokio::test]
async fn loop_over_pages_reaches_every_item() {
    let server = TestServer::open().await;
    link(&server, 23).await;
    let text = "
steps:
  - id: all
    type: control.forEach
    pages: { action: links.lookup, input: { namespace: net, from: { type: hub, id: h }, limit: 5 }, items: matches }
    itemVar: match
    indexVar: n
    saveAs: ids
    result: { $expr: match.id }
    onItemError: continue
    body:
      - { id: odd, type: control.fail, condition: n = 7, code: odd }
      - { id: more, type: action.call, action: links.upsert, condition: n = 3, input: { namespace: net, from: { type: hub, id: h }, to: { type: even, id: n0000b } } }
      - { id: stop, type: control.break, condition: match.id = payload.last }
      - { id: note, type: action.call, action: store.increment, input: { namespace: seen, key: { $expr: match.id } } }
  - { id: done, type: control.return, value: { $expr: vars.ids } }
";
    server.publish("walk", text).await;
    let run = server.run("walk", json!({"last": "none"})).await;
    let ids: Vec<_> = run["result"].as_array().unwrap_or_else(|| panic!("{run}")).clone();
    assert_eq!(ids.len(), 22, "all but the one that failed: {ids:?}");
    let keys = server.get("/v1/kv/seen?limit=100").await.json();
    assert_eq!(keys["items"].as_array().unwrap().len(), 22, "{keys}");
    let run = server.run("walk", json!({"last": "n0008"})).await;
    assert!(run["result"].as_array().unwrap().len() < 10, "the loop was left early: {run}");
}

/// F2: the other lists of the engine: keys, namespaces and documents.
#[tokio::test]
async fn loop_over_pages_works_for_every_list() {
    let server = TestServer::open().await;
    let text = "
steps:
  - { id: keys, type: control.forEach, items: [a, b, c, d, e], body: [{ id: put, type: action.call, action: store.set, input: { namespace: { $expr: '\"space-\" & item' }, key: { $expr: item }, value: 1 } }, { id: same, type: action.call, action: store.set, input: { namespace: one, key: { $expr: item }, value: 1 } }, { id: doc, type: action.call, action: document.put, input: { kind: note, key: { $expr: item }, body: { n: 1 } } }] }
  - { id: list, type: control.forEach, pages: { action: store.list, input: { namespace: one, limit: 2 } }, saveAs: keys, result: { $expr: item.key }, body: [{ id: l, type: vars.set, values: { x: 1 } }] }
  - { id: spaces, type: control.forEach, pages: { action: store.list_namespaces, input: { limit: 2 }, items: namespaces }, saveAs: spaces, result: { $expr: item.namespace }, body: [{ id: s, type: vars.set, values: { x: 1 } }] }
  - { id: docs, type: control.forEach, pages: { action: document.list, input: { limit: 2 } }, saveAs: docs, result: { $expr: item.key }, body: [{ id: d, type: vars.set, values: { x: 1 } }] }
  - { id: done, type: control.return, value: { $expr: '[$count(vars.keys), $count(vars.spaces), $count(vars.docs)]' } }
";
    server.publish("lists", text).await;
    let run = server.run("lists", json!({})).await;
    assert_eq!(run["result"], json!([5, 6, 5]), "{run}");
}

/// F2: codes are compared in any style, and HTTP errors are caught by status.
#[test]
fn codes_match_any_spelling_and_http_errors_by_status() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev_with(folder.path(), &[("STEPWELL_HTTP__ALLOW", "127.0.0.1")]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Answers three requests: a missing page, and a page that is missing once.
    let shop = std::thread::spawn(move || {
        for status in ["404 Not Found", "404 Not Found", "200 OK"] {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let (mut asked, mut part) = (String::new(), [0; 4096]);
            while !asked.contains("\r\n\r\n") {
                let read = stream.read(&mut part).unwrap();
                asked.push_str(std::str::from_utf8(&part[..read]).unwrap());
            }
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let text = r#"
name: codes
steps:
  - { id: put, type: action.call, action: store.set, input: { namespace: once, key: a, value: 1 } }
  - id: dedup
    type: control.try
    body: [{ id: again, type: action.call, action: store.set, input: { namespace: once, key: a, value: 2, if_revision: 0 } }]
    catch: { codes: [CONFLICT], steps: [{ id: sent, type: vars.set, values: { already: true } }] }
  - id: page
    type: control.try
    body: [{ id: ask, type: action.call, action: http.request, input: { url: { $expr: '"http://127.0.0.1:" & $string(payload.port) & "/a"' } } }]
    catch: { codes: [http4xx], as: problem, steps: [{ id: gone, type: vars.set, values: { status: { $expr: problem.status } } }] }
  - { id: retried, type: action.call, action: http.request, retry: { attempts: 2, delay: 10ms, retryOn: [http404] }, input: { url: { $expr: '"http://127.0.0.1:" & $string(payload.port) & "/b"' } } }
  - { id: done, type: control.return, value: { $expr: '[vars.already, vars.status, vars.retried.status]' } }
"#;
    let published =
        server.send("POST", "/v1/workflows/codes/versions?activate=true", "application/yaml", text);
    assert_eq!((published.status, &published.json()["warnings"]), (201, &json!([])), "{published:?}");
    let start = json!({"workflow": "codes", "input": {"port": port}});
    let ended = server.ask("POST", "/v1/runs?wait=30s", Some(&start)).json();
    assert_eq!(ended["run"]["result"], json!([true, 404, 200]), "{ended}");
    shop.join().unwrap();
    let actions = server.get("/v1/actions/http.request").json();
    assert!(actions["codes"].as_array().unwrap().contains(&json!("httpStatus")), "{actions}");
}

/// F2: `control.switch`, its graph and its coverage.
#[tokio::test]
async fn switch_runs_one_case_and_coverage_shows_all() {
    let server = TestServer::open().await;
    let text = "
name: route
steps:
  - id: route
    type: control.switch
    value: { $expr: payload.kind }
    cases:
      - { when: invoice, steps: [{ id: a, type: control.return, value: first }] }
      - { when: [order, offer], steps: [{ id: b, type: control.return, value: second }] }
      - { when: { $expr: payload.cents > 100 }, steps: [{ id: c, type: control.return, value: third }] }
    default: [{ id: d, type: control.return, value: other }]
tests:
  - { name: an offer, input: { kind: offer, cents: 1 }, expect: { result: second } }
  - { name: something else, input: { kind: x, cents: 1 }, expect: { result: other } }
";
    server.publish("route", text).await;
    for (kind, cents, result) in
        [("invoice", 1, "first"), ("offer", 1, "second"), ("x", 500, "third"), ("x", 1, "other")]
    {
        let run = server.run("route", json!({"kind": kind, "cents": cents})).await;
        assert_eq!(run["result"], result, "{run}");
    }
    let drawn = server.get("/v1/workflows/route/graph").await.json().to_string();
    assert!(drawn.contains("route.case2") && drawn.contains("route.default"), "{drawn}");
    let tested = server.post("/v1/catalogue/test", &json!({"document": text})).await.json();
    assert_eq!(tested["passed"], true, "{tested}");
    let missed: Vec<_> = tested["coverage"]["uncovered"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["way"].as_str())
        .collect();
    assert_eq!(missed, ["case1", "case3"], "{tested}");
    let simulated = server
        .post("/v1/catalogue/simulate", &json!({"document": text, "input": {"kind": "order", "cents": 1}}))
        .await;
    assert!(simulated.body.contains("\"case2\""), "{simulated:?}");
}

/// B18: `spec.timeout` sets the deadline of every run; an earlier deadline of the start wins.
#[tokio::test]
async fn timeout_of_a_document_cancels_its_runs() {
    let server = TestServer::open().await;
    let text = |timeout: &str| {
        format!(
            "name: slow\ntimeout: {timeout}\ntrigger: {{ type: event, eventName: GO }}\nsteps: [{{ id: wait, type: wait.signal, signal: NEVER }}]\n"
        )
    };
    server.publish("slow", &text("100ms")).await;
    let run = server.run("slow", json!({})).await;
    assert_eq!((&run["status"], run["deadline"].is_string()), (&json!("cancelled"), true), "{run}");

    server.publish("slow", &text("P1D")).await;
    let caller = "name: caller\nsteps: [{ id: child, type: workflow.call, workflow: slow, input: {} }]\n";
    server.publish("caller", caller).await;
    let start = async |body: Value| server.post("/v1/runs", &body).await.json();
    let plain = start(json!({"workflow": "slow"})).await;
    let far = start(json!({"workflow": "slow", "deadline": "2100-01-01T00:00:00Z"})).await;
    let later = start(json!({"workflow": "slow", "at": "2035-01-01T00:00:00Z"})).await;
    start(json!({"workflow": "caller"})).await;
    let event = json!({"specversion": "1.0", "id": "g1", "source": "/test", "type": "GO", "data": {}});
    let sent = server.ask(Method::POST, "/v1/events").header("content-type", "application/cloudevents+json");
    let sent = sent.body(event.to_string()).to(&server.router).await;
    assert!(sent.status.is_success(), "{sent:?}");
    let shown =
        async |run: &Value| server.get(&format!("/v1/runs/{}", run["id"].as_str().unwrap())).await.json();
    let deadline = |run: &Value| run["deadline"].as_str().map(str::to_owned);
    let plain = deadline(&shown(&plain).await).expect("the document has a timeout");
    let far = deadline(&shown(&far).await).expect("it has a deadline");
    assert!(far.as_str() < "2100", "the earlier deadline wins: {far}");
    let plain: Timestamp = plain.parse().unwrap();
    let hour = Timestamp::from_micros(plain.micros() - 23 * 3_600_000_000).to_string();
    let soon = start(json!({"workflow": "slow", "deadline": hour})).await;
    assert_eq!(deadline(&shown(&soon).await), Some(hour), "the earlier deadline wins");
    assert_eq!(deadline(&shown(&later).await).as_deref(), Some("2035-01-02T00:00:00Z"));
    let runs = until("the child and the run of the trigger wait", async || {
        let listed = server.get("/v1/runs?workflow=slow&status=waiting").await.json();
        let items = listed["items"].as_array().unwrap().clone();
        (items.len() >= 5).then_some(items)
    })
    .await;
    for run in runs {
        let run = shown(&run).await;
        assert!(run["deadline"].is_string(), "{run}");
    }
}
