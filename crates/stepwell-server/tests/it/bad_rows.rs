//! Rows garbled behind the built server's back: it starts, serves everything else, names them, and takes them away.

use std::path::Path;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::serving::{Serving, dev, stepwell};

/// Waits for a signal and gives what it brings.
const BELL: &str = "steps:
  - { id: go, type: wait.signal, signal: GO }
  - { id: done, type: control.return, value: { $expr: vars.go.n } }
";
/// Is due while the rows are bad.
const NAP: &str = "steps:
  - { id: nap, type: wait.sleep, for: 1s }
  - { id: done, type: control.return, value: 1 }
";

fn run(server: &Serving, workflow: &str) -> String {
    let made = server.ask("POST", "/v1/runs", Some(&json!({"workflow": workflow}))).json();
    made["id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

fn garble(folder: &Path, statement: &str, run: &str) {
    let id = format!("x'{}'", run.replace('-', ""));
    let connection = Connection::open(folder.join("stepwell-data/stepwell.sqlite")).unwrap();
    assert!(connection.execute(&statement.replace("{run}", &id), []).unwrap() > 0, "{statement}");
}

fn named<'a>(doctor: &'a Value, run: &str) -> Option<&'a Value> {
    let findings = doctor["findings"].as_array().unwrap().iter();
    let unread = findings.filter(|finding| finding["kind"] == "rowsUnreadable");
    unread.flat_map(|finding| finding["examples"].as_array().unwrap()).find(|one| one["run"] == *run)
}

#[test]
fn bad_rows_stop_nothing_else_and_can_be_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    for (name, text) in [("bell", BELL), ("doze", NAP)] {
        let path = format!("/v1/workflows/{name}/versions?activate=true");
        assert_eq!(server.send("POST", &path, "application/yaml", text).status, 201);
    }
    let (bell, row, nap) = (run(&server, "bell"), run(&server, "bell"), run(&server, "doze"));
    let (waits, sleeps) = (run(&server, "bell"), run(&server, "doze"));
    assert_eq!(server.ask("PUT", "/v1/kv/stock/bolts", Some(&json!({"value": 7}))).status, 201);
    drop(server);
    garble(folder.path(), "update checkpoints set body = x'07' where run = {run}", &bell);
    garble(folder.path(), "update runs set definition = x'07' where id = {run}", &row);
    garble(folder.path(), "update checkpoints set body = x'07' where run = {run}", &nap);
    garble(folder.path(), "update cells set value = '{' where key = 'bolts'", "");

    let server = dev(folder.path());
    let ended = server.get(&format!("/v1/runs/{sleeps}?wait=20s")).json();
    assert_eq!(ended["status"], "completed", "another's timer fires: {ended}");
    let sent = server.ask("POST", &format!("/v1/runs/{waits}/signals/GO"), Some(&json!({"n": 7})));
    assert_eq!(sent.status, 200, "{sent:?}");

    let doctor = server.get("/v1/doctor?deep=true");
    assert_eq!(doctor.status, 200, "{doctor:?}");
    let doctor = doctor.json();
    for run in [&bell, &row, &nap] {
        let found = named(&doctor, run).unwrap_or_else(|| panic!("{run} is not named: {doctor}"));
        assert!(found["next"].to_string().contains(&format!("stepwell run delete {run}")), "{found}");
    }
    let listed = server.get("/v1/runs").json();
    assert_eq!(listed["unreadable"][0]["key"], row, "{listed}");
    assert!(listed["items"].as_array().unwrap().len() >= 4, "{listed}");
    let keys = server.get("/v1/kv/stock").json();
    assert_eq!((&keys["items"], keys["unreadable"].as_array().unwrap().len()), (&json!([]), 1), "{keys}");
    let refused = server.ask("POST", &format!("/v1/runs/{bell}/move"), Some(&json!({"to": "done"})));
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("unreadable")), "{refused:?}");

    assert_eq!(server.ask("POST", &format!("/v1/runs/{bell}/cancel"), None).status, 204);
    let refused = server.ask("DELETE", &format!("/v1/runs/{sleeps}x"), None);
    assert_eq!(refused.status, 400, "{refused:?}");
    for run in [&bell, &row] {
        let gone = server.ask("DELETE", &format!("/v1/runs/{run}"), None);
        assert_eq!(gone.status, 204, "{gone:?}");
    }
    let deleted = stepwell(folder.path())
        .args(["run", "delete", nap.as_str(), "--yes", "--server", &format!("http://{}", server.address)])
        .env("STEPWELL_API_KEY", &server.key)
        .output()
        .unwrap();
    assert!(deleted.status.success(), "{deleted:?}");
    assert_eq!(server.ask("DELETE", "/v1/kv/stock/bolts", None).status, 204);
    assert_eq!(server.get(&format!("/v1/runs/{nap}")).status, 404);
    let left = server.get("/v1/doctor?deep=true").json();
    let is_unread = |finding: &Value| finding["kind"] == "rowsUnreadable";
    assert!(!left["findings"].as_array().unwrap().iter().any(is_unread), "{left}");
    let waiting = run(&server, "bell");
    let refused = server.ask("DELETE", &format!("/v1/runs/{waiting}"), None);
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("notNow")), "{refused:?}");
}
