//! Deletion of runs on request, through the built program and over the API: nothing of a run stays but its audit rows
//! and the data it wrote, live runs and trees are deleted only if the request says so.

use std::collections::BTreeSet;
use std::path::Path;

use axum::http::Method;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::databases;
use crate::kit::until;
use crate::serving::{Serving, dev, started, stepwell};
use crate::test_server::TestServer;

/// A text that a run keeps in all its data.
const MARKER: &str = "canary-4711-quicksilver";

/// Keeps its input in every kind of data, waits for a person, and fails.
const KEEPER: &str = "
shadows: { secret: { path: payload.secret, type: string } }
steps:
  - { id: memo, type: action.call, action: document.put, input: { key: memo, kind: memo, body: { $expr: payload } } }
  - { id: slot, type: action.call, action: state.set, input: { scope: execution, key: note, value: { $expr: payload.secret } } }
  - { id: kept, type: action.call, action: store.set, input: { namespace: canary, key: kept, value: { $expr: payload.secret } } }
  - id: ask
    type: human.task
    title: { $expr: payload.secret }
    data: { secret: { $expr: payload.secret } }
    form: { type: object, required: [note], properties: { note: { type: string } } }
  - id: maybe
    type: control.if
    condition: { $expr: payload.never ?? false }
    then: [{ id: later, type: wait.signal, signal: LATER }]
  - { id: broken, type: control.fail, code: broken, message: { $expr: payload.secret } }
";

/// Creates a run that holds the marker everywhere: its ids are those of a failed run and of a waiting one.
fn keepers(server: &Serving, has_links: bool) -> [String; 2] {
    let path = "/v1/workflows/keeper/versions?activate=true";
    let published = server.send("POST", path, "application/yaml", KEEPER);
    assert_eq!(published.status, 201, "{published:?}");
    ["one", "two"].map(|once| {
        let start = json!({"workflow": "keeper", "input": {"secret": MARKER}});
        let run = server.keyed_by(&server.key, once, "/v1/runs", &start).json();
        let run = run["id"].as_str().unwrap_or_else(|| panic!("{run}")).to_owned();
        waits(server, &run);
        let later = json!({"of": MARKER});
        assert_eq!(server.ask("POST", &format!("/v1/runs/{run}/signals/LATER"), Some(&later)).status, 200);
        if has_links {
            let path = format!("/v1/runs/{run}/answer-links");
            let link = server.keyed_by(&server.key, &format!("link-{once}"), &path, &json!({}));
            assert_eq!(link.status, 201, "{link:?}");
        }
        if once == "one" {
            let answer =
                server.ask("POST", &format!("/v1/runs/{run}/signals/ask"), Some(&json!({"note": MARKER})));
            assert_eq!(answer.status, 200, "{answer:?}");
            let failed = server.get(&format!("/v1/runs/{run}?wait=20s")).json();
            assert_eq!(failed["status"], "failed", "{failed}");
            assert!(failed["error"]["message"].as_str().unwrap().contains(MARKER), "{failed}");
        }
        run
    })
}

/// Waits until the run waits for a person.
fn waits(server: &Serving, run: &str) {
    for _ in 0..2_000 {
        let waits = server.get(&format!("/v1/waits?run={run}")).json();
        if waits["items"].as_array().is_some_and(|items| !items.is_empty()) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{run} does not wait");
}

/// The spellings of a text or an id in a row.
fn needles(runs: &[String]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes();
    let marker = vec![MARKER.as_bytes().to_vec(), hex(MARKER.as_bytes())];
    let ids = runs.iter().flat_map(|run| {
        let id: Uuid = run.parse().unwrap();
        [run.as_bytes().to_vec(), id.as_bytes().to_vec(), hex(id.as_bytes()), hex(run.as_bytes())]
    });
    (marker, ids.collect())
}

fn holds(row: &[u8], needles: &[Vec<u8>]) -> bool {
    needles.iter().any(|needle| row.windows(needle.len()).any(|part| part == needle))
}

/// The tables in which the marker and the runs' ids occur. `rows` are table names with the bytes of a row.
fn found(rows: &[(String, Vec<u8>)], runs: &[String]) -> (BTreeSet<String>, BTreeSet<String>) {
    let (marker, ids) = needles(runs);
    let tables = |needles: &[Vec<u8>]| {
        rows.iter().filter(|(_, row)| holds(row, needles)).map(|(table, _)| table.clone()).collect()
    };
    (tables(&marker), tables(&ids))
}

/// All rows of an SQLite file.
fn sqlite_rows(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let connection = Connection::open(folder.join("stepwell-data/stepwell.sqlite")).unwrap();
    let mut tables = connection.prepare("select name from sqlite_master where type = 'table'").unwrap();
    let tables: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let mut found = Vec::new();
    for table in tables {
        let mut all = connection.prepare(&format!("select * from \"{table}\"")).unwrap();
        let columns = all.column_count();
        let mut rows = all.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let mut bytes = Vec::new();
            for column in 0..columns {
                match row.get_ref(column).unwrap() {
                    ValueRef::Text(text) | ValueRef::Blob(text) => bytes.extend_from_slice(text),
                    _ => {}
                }
                bytes.push(0);
            }
            found.push((table.clone(), bytes));
        }
    }
    found
}

/// Deletes both runs by the command line, and checks the tables before and after.
fn nothing_stays(
    folder: &Path,
    server: &Serving,
    has_links: bool,
    rows: impl Fn() -> Vec<(String, Vec<u8>)>,
) {
    let runs = keepers(server, has_links);
    let (marked, named) = found(&rows(), &runs);
    let there =
        ["runs", "checkpoints", "documents", "inbox", "waits", "shadows", "cells", "idempotency", "audit"];
    for table in there {
        assert!(named.contains(table), "{table} has rows of the runs before: {named:?}");
    }
    assert_eq!(named.contains("handles"), has_links, "{named:?}");
    for table in ["documents", "inbox", "waits", "shadows", "cells"] {
        assert!(marked.contains(table), "{table} holds the marker before: {marked:?}");
    }
    for run in &runs {
        let refused = server.ask("DELETE", &format!("/v1/runs/{run}"), None);
        assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("wrongStatus")), "{refused:?}");
        assert!(refused.body.contains("force=true") && refused.body.contains("--force"), "{refused:?}");
        let url = format!("http://{}", server.address);
        let mut delete = stepwell(folder);
        delete.args([
            "run", "delete", run, "--force", "--reason", "privacy", "--yes", "--json", "--server", &url,
        ]);
        delete.env("STEPWELL_API_KEY", &server.key);
        let deleted = delete.output().unwrap();
        assert!(deleted.status.success(), "{deleted:?}");
        let deleted: Value = serde_json::from_slice(&deleted.stdout).unwrap();
        assert_eq!(
            (&deleted["runs"][0]["id"], &deleted["dryRun"]),
            (&json!(run), &json!(false)),
            "{deleted}"
        );
        assert_eq!(server.get(&format!("/v1/runs/{run}")).status, 404);
        assert_eq!(server.ask("DELETE", &format!("/v1/runs/{run}?force=true"), None).status, 404);
    }
    let (marked, named) = found(&rows(), &runs);
    let kept: BTreeSet<_> = ["cells".to_owned()].into();
    assert_eq!(marked, kept, "only the key-value row that the run wrote");
    assert_eq!(
        named,
        ["audit".to_owned(), "cells".to_owned()].into(),
        "audit rows, and `created_by` of that row"
    );
    assert_eq!(server.get("/v1/kv/canary/kept").json()["value"], MARKER);
}

/// G6, D13: with SQLite.
#[test]
fn nothing_of_a_deleted_run_stays_in_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    nothing_stays(folder.path(), &server, true, || sqlite_rows(folder.path()));
    let audit = server.get("/v1/audit?limit=200").json();
    let deleted: Vec<_> =
        audit["items"].as_array().unwrap().iter().filter(|row| row["operation"] == "run.delete").collect();
    assert_eq!(deleted.len(), 2, "{audit}");
    assert!(
        deleted.iter().all(|row| row["actor"].is_string() && row["detail"]["reason"] == "privacy"),
        "{deleted:?}"
    );
    assert_eq!(server.ask("POST", "/v1/audit/verify", None).json()["sound"], true);
}

/// G6, D13: with PostgreSQL.
#[test]
fn nothing_of_a_deleted_run_stays_in_postgres() {
    let folder = tempfile::tempdir().unwrap();
    databases::configure(folder.path(), &["view", "read", "manage", "publish", "admin"]);
    let mut command = stepwell(folder.path());
    command.args(["server", "start", "--listen", "127.0.0.1:0"]);
    let server = started(command, folder.path());
    nothing_stays(folder.path(), &server, false, databases::all_rows);
}

const CHILD: &str = "steps: [{ id: go, type: wait.signal, signal: GO }]";
const PARENT: &str = "steps: [{ id: below, type: workflow.call, workflow: child }]";

/// Starts a parent, and returns it with its waiting child.
async fn family(server: &TestServer) -> (String, String) {
    server.publish("child", CHILD).await;
    server.publish("parent", PARENT).await;
    let parent = server.post("/v1/runs", &json!({"workflow": "parent"})).await.json();
    let parent = parent["id"].as_str().unwrap().to_owned();
    let child = until("the child has started", async || {
        let found = server.get(&format!("/v1/runs?parent={parent}&status=waiting")).await.json();
        found["items"][0]["id"].as_str().map(str::to_owned)
    })
    .await;
    (parent, child)
}

/// G6: a live child blocks; the tree is deleted on request, and a dry run predicts it.
#[tokio::test]
async fn tree_is_deleted_with_tree_and_force() {
    let server = TestServer::open().await;
    let (parent, child) = family(&server).await;
    let delete = async |query: &str| server.delete(&format!("/v1/runs/{parent}{query}")).await;
    for query in ["", "?force=true"] {
        let refused = delete(query).await.is(409, "wrongStatus");
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains(&child) && detail.contains("`tree=true` and `force=true`"), "{detail}");
    }
    assert!(
        delete("?tree=true").await.is(409, "wrongStatus")["detail"].as_str().unwrap().contains("force=true")
    );
    let ids = |reply: &Value| {
        let runs = reply["runs"].as_array().unwrap().iter();
        runs.map(|run| run["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let dry = delete("?tree=true&force=true&dryRun=true").await.json();
    assert_eq!((ids(&dry), &dry["dryRun"]), (vec![parent.clone(), child.clone()], &json!(true)), "{dry}");
    assert_eq!(dry["runs"][1]["status"], "waiting", "{dry}");
    assert_eq!(
        server.get(&format!("/v1/runs/{child}")).await.json()["status"],
        "waiting",
        "nothing was changed"
    );
    let done = delete("?tree=true&force=true").await.json();
    assert_eq!((&done["runs"], &done["dryRun"]), (&dry["runs"], &json!(false)));
    for run in [&parent, &child] {
        server.get(&format!("/v1/runs/{run}")).await.is(404, "noRun");
    }
    server
        .as_other_tenant(Method::DELETE, &format!("/v1/runs/{parent}?force=true"), None)
        .await
        .is(404, "noRun");
}

/// G6: the children of a run that has ended are runs of their own.
#[tokio::test]
async fn children_of_an_ended_run_stay() {
    let server = TestServer::open().await;
    let (parent, child) = family(&server).await;
    assert_eq!(server.post(&format!("/v1/runs/{child}/signals/GO"), &json!({})).await.status, 200);
    assert_eq!(server.get(&format!("/v1/runs/{parent}?wait=20s")).await.json()["status"], "completed");
    let deleted = server.delete(&format!("/v1/runs/{parent}?reason=privacy")).await.json();
    assert_eq!(deleted["runs"].as_array().unwrap().len(), 1, "{deleted}");
    assert_eq!(server.get(&format!("/v1/runs/{child}")).await.json()["status"], "completed");
}

/// G6: the parent of a live run that is deleted learns that it was cancelled.
#[tokio::test]
async fn parent_learns_that_a_deleted_child_was_cancelled() {
    let server = TestServer::open().await;
    let (parent, child) = family(&server).await;
    server.delete(&format!("/v1/runs/{child}")).await.is(409, "wrongStatus");
    let stale =
        server.ask(Method::DELETE, &format!("/v1/runs/{child}?force=true")).header("if-match", "\"99\"");
    stale.to(&server.router).await.is(412, "revisionConflict");
    assert_eq!(server.delete(&format!("/v1/runs/{child}?force=true")).await.status, 200);
    let ended = server.get(&format!("/v1/runs/{parent}?wait=20s")).await.json();
    assert_ne!(ended["status"], "waiting", "{ended}");
    let deleted = server.delete(&format!("/v1/runs/{parent}?force=true")).await;
    assert_eq!(deleted.status, 200, "an ended parent is deleted alone: {deleted:?}");
}

/// G6: a worker that has the task of a deleted run must stop.
#[tokio::test]
async fn worker_of_a_deleted_run_loses_its_lease() {
    let server = TestServer::open().await;
    let put = server.put("/v1/actions/pay.charge", &json!({"about": "Takes money."})).await;
    assert_eq!(put.status, 200, "{put:?}");
    server.publish("order", "steps: [{ id: charge, type: action.call, action: pay.charge }]").await;
    let run = server.post("/v1/runs", &json!({"workflow": "order"})).await.json()["id"].clone();
    let poll = json!({"actions": ["pay.charge"], "worker": "ann", "max": 1});
    let task = server.post("/v1/tasks/poll?wait=20s", &poll).await.json()["tasks"][0].clone();
    let run = run.as_str().unwrap();
    assert_eq!(server.delete(&format!("/v1/runs/{run}?force=true")).await.status, 200);
    let path = |verb: &str| format!("/v1/tasks/{}/{verb}", task["id"].as_str().unwrap());
    let fence = json!({"fence": task["fence"]});
    for (verb, body) in [("heartbeat", fence), ("complete", json!({"fence": task["fence"], "output": 1}))] {
        let refused = server.post(&path(verb), &body).await;
        assert!([404, 409].contains(&refused.status.as_u16()), "{verb}: {refused:?}");
    }
    let none = server.post("/v1/tasks/poll", &poll).await.json();
    assert_eq!(none["tasks"], json!([]), "{none}");
}
