//! Rows that become unreadable while the server is stopped: it starts, serves everything else, reports these rows, and
//! deletes them on request.

use std::path::Path;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::serving::{Serving, dev, stepwell};

/// A workflow that waits for a signal and returns `n` of its payload.
const BELL: &str = "steps:
  - { id: go, type: wait.signal, signal: GO }
  - { id: done, type: control.return, value: { $expr: vars.go.n } }
";
/// A workflow that sleeps, so that its runs are due while rows are unreadable.
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
fn unreadable_rows_stop_nothing_else_and_can_be_deleted() {
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
    assert_eq!(ended["status"], "completed", "timers of other runs fire: {ended}");
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
        assert_eq!(gone.status, 200, "{gone:?}");
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
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("wrongStatus")), "{refused:?}");
}

/// A workflow with a trigger of each kind.
fn triggered(path: &str) -> String {
    format!(
        "triggers:
  - {{ id: paid, type: event, eventName: PAID }}
  - {{ id: call, type: webhook, path: {path} }}
  - {{ id: yearly, type: schedule, cron: '0 0 1 1 *' }}
steps: [{{ id: done, type: control.return, value: 1 }}]
"
    )
}
/// A workflow that waits until an order is paid.
const ORDER: &str = "steps:
  - { id: paid, type: wait.event, eventName: PAID, correlation: { event: event.order, run: payload.order } }
  - { id: done, type: control.return, value: { $expr: vars.paid.cents } }
";

fn publish(server: &Serving, name: &str, text: &str) -> u16 {
    let path = format!("/v1/workflows/{name}/versions?activate=true");
    server.send("POST", &path, "application/yaml", text).status
}

fn emit(server: &Serving, name: &str, id: &str, data: &Value) -> u16 {
    let event = json!({"specversion": "1.0", "id": id, "source": "shop", "type": name, "data": data});
    server.send("POST", "/v1/events", "application/cloudevents+json", &event.to_string()).status
}

/// Waits until a workflow has this many runs.
fn runs_of(server: &Serving, workflow: &str, count: usize) {
    let path = format!("/v1/runs?workflow={workflow}");
    for _ in 0..3_000 {
        if server.get(&path).json()["items"].as_array().unwrap().len() == count {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("`{workflow}` does not have {count} runs");
}

/// The unreadable rows that the doctor names, with their remedies, as one text each.
fn unread(server: &Serving) -> Vec<String> {
    let doctor = server.get("/v1/doctor?deep=true&examples=50").json();
    let findings = doctor["findings"].as_array().unwrap().iter();
    let unread = findings.filter(|finding| finding["kind"] == "rowsUnreadable");
    unread.flat_map(|finding| finding["examples"].as_array().unwrap()).map(Value::to_string).collect()
}

/// Regression: one unreadable definition stopped events, webhooks and trigger schedules of its tenant after a restart.
#[test]
fn unreadable_published_definition_stops_no_other_trigger() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    assert_eq!(
        (publish(&server, "fine", &triggered("fine")), publish(&server, "rare", &triggered("rare"))),
        (201, 201)
    );
    drop(server);
    garble(folder.path(), "update definitions set body = x'07' where workflow = 'rare'", "");
    let server = dev(folder.path());
    assert_eq!(emit(&server, "PAID", "1", &json!({})), 202);
    runs_of(&server, "fine", 1);
    let tenant = stepwell::store::TenantScope::single().tenant();
    let called = server.ask("POST", &format!("/hooks/{tenant}/fine"), Some(&json!({})));
    assert_eq!(called.status, 202, "{called:?}");
    runs_of(&server, "fine", 2);
    let triggers = server.get("/v1/triggers");
    assert_eq!(triggers.status, 200, "{triggers:?}");
    let triggers = triggers.json();
    assert!(triggers["items"].as_array().unwrap().iter().any(|one| one["workflow"] == "fine"), "{triggers}");
    assert!(triggers["unreadable"][0]["key"].as_str().unwrap().starts_with("rare "), "{triggers}");
    assert_eq!(publish(&server, "new", &triggered("new")), 201);
    let schedules = server.get("/v1/schedules").json();
    let is_on = |name: &str| {
        let all = schedules["items"].as_array().unwrap();
        all.iter().any(|one| one["name"] == *format!("{name}/yearly") && one["off"] == false)
    };
    assert!(is_on("fine") && is_on("rare") && is_on("new"), "{schedules}");
    assert!(unread(&server).iter().any(|row| row.contains("rare ")));
    // Publishing the same document again makes a usable version.
    assert_eq!(publish(&server, "rare", &triggered("rare")), 201);
    assert_eq!(server.get("/v1/triggers").json().get("unreadable"), None);
    run(&server, "rare");
}

/// Regression: the runs that waited with the same expression as an unreadable wait did not get the event.
#[test]
fn unreadable_wait_hides_no_event_from_other_runs() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    assert_eq!(publish(&server, "order", ORDER), 201);
    let order = |server: &Serving| {
        let body = json!({"workflow": "order", "input": {"order": "o-1"}});
        server.ask("POST", "/v1/runs", Some(&body)).json()["id"].as_str().unwrap().to_owned()
    };
    let (row, detail, whole) = (order(&server), order(&server), order(&server));
    for run in [&row, &detail, &whole] {
        for _ in 0..3_000 {
            if server.get(&format!("/v1/waits?run={run}")).json()["items"].get(0).is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    drop(server);
    garble(folder.path(), "update waits set place = cast(x'ff' as text) where run = {run}", &row);
    garble(folder.path(), "update waits set detail = x'07' where run = {run}", &detail);
    let server = dev(folder.path());
    let waits = server.get("/v1/waits");
    let bad = waits.json()["unreadable"].as_array().map(Vec::len);
    assert_eq!(bad, Some(2), "{waits:?}");
    assert_eq!(emit(&server, "PAID", "1", &json!({"order": "o-1", "cents": 5})), 202);
    for run in [&detail, &whole] {
        let ended = server.get(&format!("/v1/runs/{run}?wait=20s")).json();
        assert_eq!((&ended["status"], &ended["result"]), (&json!("completed"), &json!(5)), "{ended}");
    }
}

/// Regression: single unreadable cells of the engine and the server stopped a whole tenant, and nothing named them.
#[test]
fn unreadable_records_affect_only_their_object() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    assert_eq!(publish(&server, "bell", BELL), 201);
    let put = json!({"about": "sent"});
    assert_eq!(server.ask("PUT", "/v1/event-types/SENT", Some(&put)).status, 200);
    let host = server.key.clone();
    let key = json!({"name": "narrow", "permissions": ["workflow:view"]});
    let narrow = server.ask("POST", "/v1/apikeys", Some(&key)).json();
    let tenant =
        json!({"name": "a", "key": {"name": "a", "permissions": ["workflow:view", "workflow:manage"]}});
    let tenant = server.ask("POST", "/v1/tenants", Some(&tenant)).json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (id, secret) = (text(&narrow["id"]), text(&narrow["secret"]));
    let (tenant, theirs) = (text(&tenant["id"]), text(&tenant["key"]["secret"]));
    drop(server);
    let cells = [
        ("stepwell.catalogue", "changes"),
        ("stepwell.event", "type/SENT"),
        ("stepwell.apikeys", id.as_str()),
        ("stepwell.tenants", tenant.as_str()),
    ];
    for (owner, key) in cells {
        let statement = format!("update cells set value = '{{' where owner = '{owner}' and key = '{key}'");
        garble(folder.path(), &statement, "");
    }
    // The start lists the keys in order to replace its own.
    std::fs::remove_file(folder.path().join("stepwell-data/dev.key")).unwrap();
    let server = dev(folder.path());
    assert_ne!(server.key, host);
    run(&server, "bell");
    assert_eq!(server.ask_by(&theirs, "GET", "/v1/runs", None).status, 200, "the tenant is served");
    assert_eq!(server.ask_by(&secret, "GET", "/v1/runs", None).status, 401, "the key grants nothing");
    assert_eq!((emit(&server, "SENT", "1", &json!({})), emit(&server, "PAID", "1", &json!({}))), (409, 202));
    let rows = unread(&server).join("\n");
    for (owner, key) in cells {
        assert!(rows.contains(&format!("{owner}:{}", key.replace('/', "%2F"))), "{owner} {key} in {rows}");
    }
    assert!(
        rows.contains("stepwell maintenance cleanup") && rows.contains(&format!("apikey revoke {id}")),
        "{rows}"
    );
    for path in ["/v1/apikeys", "/v1/tenants"] {
        let listed = server.get(path).json();
        assert_eq!(listed["unreadable"].as_array().unwrap().len(), 1, "{listed}");
    }

    // Each can be rebuilt, replaced or removed.
    assert_eq!(server.ask("DELETE", &format!("/v1/apikeys/{id}"), None).status, 204);
    let path = format!("/v1/tenants/{tenant}");
    assert_eq!(server.get(&path).status, 409);
    assert_eq!(server.ask("PUT", &path, Some(&json!({"suspended": true}))).json()["code"], "unreadable");
    let put = server.ask("PUT", &path, Some(&json!({"name": "a", "suspended": true})));
    assert_eq!(put.status, 200, "{put:?}");
    assert_eq!(server.get(&path).json()["suspended"], true);
    assert_eq!(server.ask("DELETE", "/v1/event-types/SENT", None).status, 204);
    assert_eq!(emit(&server, "SENT", "1", &json!({})), 202);
    assert_eq!(server.ask("POST", "/v1/maintenance/cleanup", None).status, 200);
    assert_eq!(unread(&server), Vec::<String>::new());
}

#[test]
fn unreadable_catalogue_entry_is_rebuilt_by_activation() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    assert_eq!((publish(&server, "bell", BELL), publish(&server, "doze", NAP)), (201, 201));
    drop(server);
    garble(folder.path(), "update cells set value = '{' where key = 'workflow/bell'", "");
    garble(folder.path(), "update cells set value = '[]' where key = 'version/bell/0000000001'", "");
    let server = dev(folder.path());
    run(&server, "doze");
    let refused = server.ask("POST", "/v1/runs", Some(&json!({"workflow": "bell"}))).json();
    assert_eq!(refused["code"], "inactive", "{refused}");
    assert!(unread(&server).join(" ").contains("stepwell workflow activate bell"));
    let active = stepwell(folder.path())
        .args(["workflow", "activate", "bell", "1", "--server", &format!("http://{}", server.address)])
        .env("STEPWELL_API_KEY", &server.key)
        .output()
        .unwrap();
    assert!(active.status.success(), "{active:?}");
    run(&server, "bell");
    assert_eq!(unread(&server), Vec::<String>::new());
}

/// Regression: a history entry that is not JSON failed the whole page, and the stream of events never ended.
#[test]
fn unreadable_history_entries_are_named_and_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    assert_eq!(publish(&server, "bell", BELL), 201);
    let bell = run(&server, "bell");
    let sent = server.ask("POST", &format!("/v1/runs/{bell}/signals/GO"), Some(&json!({"n": 7})));
    assert_eq!(sent.status, 200);
    assert_eq!(server.get(&format!("/v1/runs/{bell}?wait=20s")).json()["status"], "completed");
    let entries = server.get(&format!("/v1/runs/{bell}/history")).json()["items"].as_array().unwrap().len();
    drop(server);
    // The first entry decodes but is not JSON; the second does not decode.
    garble(folder.path(), "update checkpoints set entry = x'007b' where run = {run} and version = 0", &bell);
    garble(folder.path(), "update checkpoints set entry = x'07' where run = {run} and version = 1", &bell);
    let server = dev(folder.path());
    let page = server.get(&format!("/v1/runs/{bell}/history"));
    assert_eq!(page.status, 200, "{page:?}");
    let page = page.json();
    assert_eq!(page["items"].as_array().unwrap().len(), entries - 2, "{page}");
    let mut keys: Vec<_> =
        page["unreadable"].as_array().unwrap().iter().map(|row| row["key"].clone()).collect();
    keys.sort_by_key(Value::to_string);
    assert_eq!(keys, [json!(format!("{bell}:0")), json!(format!("{bell}:1"))]);
    for version in [0, 1] {
        let shown = server.get(&format!("/v1/runs/{bell}/versions/{version}"));
        assert_eq!((shown.status, &shown.json()["code"]), (409, &json!("unreadable")), "{shown:?}");
    }
    let followed = server.get(&format!("/v1/runs/{bell}/events"));
    assert_eq!(followed.body.matches("event: unreadable").count(), 2, "{followed:?}");
    assert!(followed.body.contains("\"status\":\"completed\""), "the stream ends: {followed:?}");

    for format in ["table", "id", "ndjson", "json"] {
        let listed = stepwell(folder.path())
            .args(["run", "history", &bell, "-o", format, "--server", &format!("http://{}", server.address)])
            .env("STEPWELL_API_KEY", &server.key)
            .output()
            .unwrap();
        assert!(listed.status.success(), "{listed:?}");
        let said = String::from_utf8(listed.stderr).unwrap();
        let warnings = if format == "json" { 0 } else { 2 };
        assert_eq!(said.matches("warning: row").count(), warnings, "{format}: {said}");
    }
}

/// The run behind a schedule.
fn schedule_of(server: &Serving, name: &str) -> String {
    let runs = server.get("/v1/runs?workflow=stepwell.schedule").json();
    let ids = runs["items"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned());
    let is_it = |id: &String| {
        let shown = server.get(&format!("/v1/runs/{id}")).json();
        shown["context"]["schedule"]["name"] == *name
    };
    ids.into_iter().find(is_it).unwrap()
}

/// Regression: putting or deleting an unreadable schedule failed.
#[test]
fn unreadable_schedule_can_be_put_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let put = json!({"cron": "0 3 * * *", "workflow": "bell"});
    let broken = |statement: &str| {
        let server = dev(folder.path());
        assert!(matches!(publish(&server, "bell", BELL), 200 | 201));
        assert_eq!(server.ask("PUT", "/v1/schedules/nightly", Some(&put)).status, 200);
        let schedule = schedule_of(&server, "nightly");
        drop(server);
        garble(folder.path(), statement, &schedule);
        let server = dev(folder.path());
        assert_ne!(server.get("/v1/schedules/nightly").status, 200);
        server
    };
    for statement in [
        "update checkpoints set body = x'07' where run = {run}",
        "update runs set definition = x'07' where id = {run}",
        "delete from runs where id = {run}",
    ] {
        let server = broken(statement);
        assert_eq!(server.get("/v1/schedules").status, 200);
        let done = server.ask("PUT", "/v1/schedules/nightly", Some(&put));
        assert_eq!(done.status, 200, "{statement}: {done:?}");
        assert_eq!(server.get("/v1/schedules/nightly").status, 200);
        drop(server);
        let server = broken(statement);
        let gone = server.ask("DELETE", "/v1/schedules/nightly", None);
        assert_eq!(gone.status, 204, "{statement}: {gone:?}");
        assert_eq!(server.get("/v1/schedules/nightly").status, 404);
    }
}

#[test]
fn database_of_another_format_is_refused_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    drop(dev(folder.path()));
    let file = folder.path().join("stepwell-data/stepwell.sqlite");
    let connection = Connection::open(&file).unwrap();
    connection.execute("update stepwell_migrations set checksum = x'07'", []).unwrap();
    let rows = |connection: &Connection| {
        connection.query_row("select count(*) from cells", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let before = rows(&connection);
    drop(connection);
    let refused = stepwell(folder.path()).args(["dev", "--listen", "127.0.0.1:0"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    assert!(said.contains("use the Stepwell that created it, or an empty database"), "{said}");
    assert_eq!(rows(&Connection::open(&file).unwrap()), before);
}
