//! Bulk commands and many starts over HTTP and on the command line, and the recipe of the operations page.

use axum::http::Method;
use serde_json::{Value, json};

use crate::cli::json as command;
use crate::kit::until;
use crate::manual::{blocks, project, shell};
use crate::said;
use crate::serving::{Serving, dev, stepwell};
use crate::test_server::TestServer;

/// A step that fails while the key `bulk/n` has a text, and counts its executions once the key has a number.
const COUNT: &str = "steps:
  - { id: count, type: action.call, action: store.increment, input: { namespace: bulk, key: n } }
";
/// A wait for a signal.
const ASK: &str = "steps:
  - { id: ask, type: wait.signal, signal: GO }
";

/// A server with two published workflows, whose runs of `count` fail.
async fn opened() -> TestServer {
    let server = TestServer::open().await;
    server.publish("count", COUNT).await;
    server.publish("ask", ASK).await;
    assert_eq!(server.put("/v1/kv/bulk/n", &json!({"value": "broken"})).await.status, 201);
    server
}

/// Starts this many runs of a workflow, and waits until none is running.
async fn started(server: &TestServer, workflow: &str, count: usize) -> Vec<String> {
    let starts: Vec<_> = (0..count).map(|_| json!({"workflow": workflow})).collect();
    let answer = server.post("/v1/runs/batch", &json!({"starts": starts})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let ids = answer.json()["items"].as_array().unwrap().clone();
    let ids: Vec<_> = ids.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
    until("no run is running", async || {
        let path = format!("/v1/runs?workflow={workflow}&status=running");
        server.get(&path).await.json()["items"].as_array().unwrap().is_empty().then_some(())
    })
    .await;
    ids
}

/// Starts a bulk command and returns it once it has ended.
async fn done(server: &TestServer, body: Value) -> Value {
    let answer = server.post("/v1/bulk?wait=30s", &body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let shown = answer.json();
    assert_eq!(shown["status"], "completed", "{shown}");
    assert!(shown["endedAt"].is_string(), "{shown}");
    shown
}

fn counts(shown: &Value) -> [u64; 4] {
    ["total", "done", "failed", "skipped"].map(|field| shown[field].as_u64().unwrap())
}

#[tokio::test]
async fn bulk_executes_every_command_over_http() {
    let server = opened().await;
    let asks = started(&server, "ask", 3).await;
    let of = |command: &str| json!({"command": command, "runs": asks});
    assert_eq!(counts(&done(&server, of("suspend")).await), [3, 3, 0, 0]);
    assert_eq!(counts(&done(&server, of("resume")).await), [3, 3, 0, 0]);
    assert_eq!(counts(&done(&server, of("retry")).await), [3, 0, 0, 3]);
    let signal =
        json!({"command": "signal", "runs": asks[..1], "signal": "GO", "payload": 7, "strict": true});
    assert_eq!(counts(&done(&server, signal).await), [1, 1, 0, 0]);
    assert_eq!(counts(&done(&server, of("cancel")).await), [3, 2, 0, 1]);
    let wrong = json!({"command": "migrate", "runs": asks, "toVersion": 7});
    assert_eq!(counts(&done(&server, wrong).await), [3, 0, 3, 0]);
    server.publish("ask", &ASK.replace("GO", "GOING")).await;
    let run = started(&server, "count", 1).await;
    server.publish("count", &COUNT.replace("id: count", "id: again")).await;
    let migrate = json!({"command": "migrate", "runs": run, "toVersion": 2, "places": {"count": "again"}});
    assert_eq!(counts(&done(&server, migrate).await), [1, 1, 0, 0]);
    let shown =
        done(&server, json!({"command": "delete", "filter": {"workflow": "ask"}, "reason": "old"})).await;
    assert_eq!(
        (counts(&shown), &shown["reason"], &shown["actor"]),
        ([3, 3, 0, 0], &json!("old"), &json!("apikey:test"))
    );
    server.get(&format!("/v1/runs/{}", asks[0])).await.is(404, "noRun");
    let rows = server.get("/v1/audit?limit=200").await.json();
    let deleted = rows["items"].as_array().unwrap().iter().filter(|row| row["operation"] == "run.delete");
    let deleted: Vec<_> =
        deleted.map(|row| (&row["actor"], &row["detail"]["bulk"], &row["detail"]["reason"])).collect();
    assert_eq!(deleted, vec![(&json!("apikey:test"), &shown["id"], &json!("old")); 3]);
}

#[tokio::test]
async fn bulk_by_filter_shows_progress_and_results_over_http() {
    let server = opened().await;
    let failed = started(&server, "count", 120).await;
    started(&server, "ask", 1).await;
    let body = json!({"command": "retry", "filter": {"workflow": "count"}, "dryRun": true});
    let dry = done(&server, body).await;
    assert_eq!((counts(&dry), &dry["dryRun"]), ([120, 120, 0, 0], &json!(true)));
    assert_eq!(server.put("/v1/kv/bulk/n", &json!({"value": 0})).await.status, 200);
    let shown =
        done(&server, json!({"command": "retry", "filter": {"workflow": "count"}, "most": 100})).await;
    assert_eq!((counts(&shown), &shown["filter"]), ([100, 100, 0, 0], &json!({"workflow": "count"})));
    until("each run is retried once", async || {
        (server.get("/v1/kv/bulk/n").await.json()["value"] == 100).then_some(())
    })
    .await;
    let id = shown["id"].as_str().unwrap();
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/bulk/{id}/results?outcome=done&limit=70{cursor}")).await.json();
        let runs =
            page["items"].as_array().unwrap().iter().map(|one| one["run"].as_str().unwrap().to_owned());
        found.extend(runs);
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let mut newest = failed[20..].to_vec();
    found.sort();
    newest.sort();
    assert_eq!(found, newest, "the newest runs come first");
    let none = server.get(&format!("/v1/bulk/{id}/results?outcome=failed")).await.json();
    assert_eq!(none["items"], json!([]));
    let listed = server.get("/v1/bulk?limit=1").await.json();
    assert_eq!((&listed["items"][0]["id"], listed["nextCursor"].is_string()), (&json!(id), true));
    server.as_other_tenant(Method::GET, &format!("/v1/bulk/{id}"), None).await.is(404, "noRun");
    server.get(&format!("/v1/bulk/{}", failed[0])).await.is(404, "noBulk");
    server.post(&format!("/v1/bulk/{id}/cancel"), &json!({})).await.is(409, "wrongStatus");
}

#[tokio::test]
async fn wrong_bulk_requests_are_refused_with_the_remedy() {
    let server = opened().await;
    let run = started(&server, "ask", 1).await.remove(0);
    let refused = async |body: Value, code: &str, what: &str| {
        let status = if code == "validation" { 400 } else { 422 };
        let answer = server.post("/v1/bulk", &body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.body.contains(what), "{what} is not in {answer:?}");
    };
    refused(json!({"command": "retry"}), "invalid", "name their ids in `runs`, or conditions in `filter`")
        .await;
    refused(json!({"command": "retry", "runs": [run], "filter": {}}), "invalid", "mutually exclusive").await;
    refused(json!({"command": "cancel", "filter": {}}), "invalid", "would select every run").await;
    refused(json!({"command": "signal", "runs": [run]}), "invalid", "needs `signal`").await;
    refused(json!({"command": "migrate", "runs": [run]}), "invalid", "needs `toVersion`").await;
    refused(
        json!({"command": "retry", "runs": [run], "signal": "GO"}),
        "invalid",
        "only for the command `signal`",
    )
    .await;
    refused(json!({"command": "retry", "runs": [run], "most": 100_001}), "limit", "bulk_runs").await;
    refused(json!({"command": "explode", "runs": [run]}), "validation", "/command").await;
    refused(json!({"command": "retry", "runs": ["7"]}), "validation", "/runs/0").await;
    let asked = server.ask(Method::POST, "/v1/bulk").header("idempotency-key", "k");
    let first = asked.json(&json!({"command": "suspend", "runs": [run]})).to(&server.router).await;
    let asked = server.ask(Method::POST, "/v1/bulk").header("idempotency-key", "k");
    let again = asked.json(&json!({"command": "suspend", "runs": [run]})).to(&server.router).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (202, 200));
    assert_eq!(
        (first.json()["id"].clone(), again.header("idempotency-replayed")),
        (again.json()["id"].clone(), "true")
    );
    let asked = server.ask(Method::POST, "/v1/bulk").header("idempotency-key", "k");
    asked.json(&json!({"command": "resume", "runs": [run]})).to(&server.router).await.is(422, "keyReused");
}

#[tokio::test]
async fn batch_start_answers_each_start_in_order() {
    let server = opened().await;
    let starts = json!([
        {"workflow": "ask", "input": {"n": 1}, "key": "a"},
        {"workflow": "nothing"},
        {"workflow": "ask", "input": {"n": 3}, "key": "c"},
    ]);
    let first = server.post("/v1/runs/batch", &json!({"starts": starts})).await.json();
    assert_eq!((&first["created"], &first["existing"], &first["failed"]), (&json!(2), &json!(0), &json!(1)));
    assert_eq!(first["items"][1]["problem"]["code"], "unknownWorkflow");
    let again = server.post("/v1/runs/batch", &json!({"starts": starts})).await.json();
    assert_eq!((&again["created"], &again["existing"]), (&json!(0), &json!(2)));
    for (at, n) in [(0, 1), (2, 3)] {
        let id = first["items"][at]["id"].as_str().unwrap();
        assert_eq!(again["items"][at]["id"], id);
        assert_eq!(server.get(&format!("/v1/runs/{id}")).await.json()["context"]["payload"]["n"], n);
    }
    let many = vec![json!({"workflow": "ask"}); 1_001];
    let refused = server.post("/v1/runs/batch", &json!({"starts": many})).await.is(422, "limit");
    assert_eq!(refused["params"]["limit"], "batch_starts");
    server.post("/v1/runs/batch", &json!({"starts": []})).await.is(400, "badBody");
}

/// A server process with the failing workflow, and a file with inputs.
fn process(folder: &std::path::Path, inputs: usize) -> Serving {
    let server = dev(folder);
    std::fs::write(folder.join("count.yaml"), COUNT).unwrap();
    let lines: String = (0..inputs).map(|n| format!("{{\"n\": {n}}}\n")).collect();
    std::fs::write(folder.join("inputs.ndjson"), lines).unwrap();
    let way = format!("http://{}", server.address);
    let script = "set -eu
stepwell workflow apply count.yaml > said
stepwell kv set bulk n '\"broken\"' > said
stepwell run start-many count --input @inputs.ndjson --key-field n --json > started
while stepwell run list --workflow count --status running -o id | grep -q .; do sleep 0.1; done
";
    let (code, out, err) = said(&shell(folder, &way, script).output().unwrap());
    assert_eq!(code, Some(0), "{out} {err}");
    server
}

#[test]
fn operations_recipe_retries_300_failed_runs() {
    let folder = tempfile::tempdir().unwrap();
    let server = process(folder.path(), 300);
    let page = std::fs::read_to_string(project().join("docs/operations.md")).unwrap();
    let recipes = page.split_once("### Recipes").unwrap().1;
    let recipe = blocks(recipes, "sh").into_iter().find(|block| block.contains("bulk retry")).unwrap();
    let script = format!("set -eu\nstepwell kv set bulk n 0 > said\n{recipe}");
    let way = format!("http://{}", server.address);
    let (code, out, err) = said(&shell(folder.path(), &way, &script).output().unwrap());
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(out.contains("done"), "{out} {err}");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while server.get("/v1/kv/bulk/n").json()["value"] != 300 {
        assert!(std::time::Instant::now() < deadline, "{:?}", server.get("/v1/kv/bulk/n"));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(server.get("/v1/runs?workflow=count&status=failed").json()["items"], json!([]));
    // The same file starts nothing more.
    let way = ["--server", way.as_str()];
    let arguments = ["run", "start-many", "count", "--input", "@inputs.ndjson", "--key-field", "n"];
    let again = command(folder.path(), &[&arguments[..], &way].concat());
    assert_eq!(
        (&again["created"], &again["existing"], &again["failed"]),
        (&json!(0), &json!(300), &json!(0))
    );
    assert_eq!(again["items"].as_array().unwrap().len(), 300);
}

#[test]
fn bulk_survives_a_killed_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = process(folder.path(), 300);
    let body = json!({"command": "retry", "filter": {"workflow": "count", "status": ["failed"]}});
    let started = server.keyed_by(&server.key, "once", "/v1/bulk", &body);
    assert_eq!(started.status, 202, "{started:?}");
    let path = format!("/v1/bulk/{}", started.json()["id"].as_str().unwrap());
    while server.get(&path).json()["done"].as_u64().unwrap() < 100 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let server = dev(folder.path());
    let shown = server.get(&format!("{path}?wait=60s")).json();
    assert_eq!((shown["status"].as_str(), counts(&shown)), (Some("completed"), [300, 300, 0, 0]), "{shown}");
    let (mut retries, mut cursor) = (std::collections::BTreeMap::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/audit?limit=200{cursor}")).json();
        for row in page["items"].as_array().unwrap().iter().filter(|row| row["operation"] == "run.retry") {
            *retries.entry(row["run"].as_str().unwrap().to_owned()).or_insert(0) += 1;
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!((retries.len(), retries.values().copied().max()), (300, Some(1)));
}

#[test]
fn bulk_commands_of_the_command_line_work() {
    let folder = tempfile::tempdir().unwrap();
    let server = process(folder.path(), 4);
    let way = ["--server".to_owned(), format!("http://{}", server.address)];
    let way: Vec<&str> = way.iter().map(String::as_str).collect();
    let run = |arguments: &[&str]| {
        said(&stepwell(folder.path()).args([arguments, &way].concat()).output().unwrap())
    };
    let ask = |arguments: &[&str]| command(folder.path(), &[arguments, &way].concat());
    let listed = ask(&["run", "list", "--workflow", "count"]);
    let ids: Vec<_> =
        listed["items"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();

    let dry = ask(&["bulk", "retry", "--workflow", "count", "--dry-run"]);
    assert_eq!((counts(&dry), &dry["dryRun"]), ([4, 4, 0, 0], &json!(true)));
    // A unique beginning of an id is enough.
    let some = ask(&["bulk", "retry", &ids[0][..31], ids[1], "--wait", "--reason", "a test"]);
    assert_eq!((counts(&some), &some["runs"]), ([2, 2, 0, 0], &json!(2)));
    let (code, out, err) = run(&["bulk", "resume", "--wait", ids[0]]);
    assert_eq!(code, Some(0), "a skipped run is no failure: {out} {err}");
    let signal = ["bulk", "signal", "--signal", "GO", "--payload", "{\"a\": 1}", ids[0], "--wait"];
    let (code, _, err) = run(&signal);
    assert_eq!(code, Some(7), "{err}");
    assert!(err.contains("1 runs failed: see `stepwell bulk results"), "{err}");
    let script = format!(
        "stepwell run list --workflow count -o id | stepwell bulk cancel - --wait --yes --json --server {}",
        way[1]
    );
    let (code, out, err) = said(&shell(folder.path(), way[1], &script).output().unwrap());
    assert_eq!(code, Some(0), "{out} {err}");
    let cancelled: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(counts(&cancelled), [4, 4, 0, 0]);
    let id = cancelled["id"].as_str().unwrap();
    assert_eq!(ask(&["bulk", "show", id])["status"], "completed");
    let (_, results, _) = run(&["bulk", "results", id]);
    assert!(results.contains("OUTCOME") && results.matches("done").count() == 4, "{results}");
    let (_, table, _) = run(&["bulk", "list"]);
    assert!(table.contains("cancel") && table.contains("completed"), "{table}");
    assert_eq!(run(&["bulk", "stop", id]).0, Some(4));
    assert_eq!(run(&["bulk", "cancel", "--yes"]).0, Some(6));
    assert_eq!(run(&["bulk", "show", ids[0]]).0, Some(3));
    assert_eq!(run(&["bulk", "migrate", ids[0], "--yes"]).0, Some(6));
    assert_eq!(run(&["bulk", "retry", "--status", "sleeping"]).0, Some(2));
    let deleted = ask(&["bulk", "delete", "--workflow", "count", "--status", "cancelled", "--yes", "--wait"]);
    assert_eq!(counts(&deleted), [4, 4, 0, 0]);
    let (_, help, _) = run(&["bulk", "retry", "--help"]);
    assert!(
        help.contains("--workflow") && help.contains("--most") && !help.contains("--to-version"),
        "{help}"
    );
}
