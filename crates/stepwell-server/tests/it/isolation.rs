//! Two tenants on the built server, over real sockets: neither can hurt the other, nor get at what is the engine's.

use std::path::Path;

use serde_json::{Value, json};

use crate::serving::{Serving, dev_with};

/// Waits for a signal and gives what it brings.
const BELL: &str = "steps:
  - { id: go, type: wait.signal, signal: GO }
  - { id: done, type: control.return, value: { $expr: vars.go.n } }
";

/// Sleeps for longer than any test.
const SLOW: &str = "steps:
  - { id: nap, type: wait.sleep, for: 1h }
";

struct Two {
    server: Serving,
    a: String,
    b: String,
}

impl Two {
    fn open(folder: &Path, settings: &[(&str, &str)]) -> Two {
        let server = dev_with(folder, settings);
        let all = ["view", "read", "manage", "publish", "admin"].map(|word| format!("workflow:{word}"));
        let tenant = |name: &str| {
            let key = json!({"name": name, "permissions": all});
            let made = server.ask("POST", "/v1/tenants", Some(&json!({"name": name, "key": key})));
            assert_eq!(made.status, 201, "{made:?}");
            made.json()["key"]["secret"].as_str().unwrap().to_owned()
        };
        let (a, b) = (tenant("a"), tenant("b"));
        Two { server, a, b }
    }

    fn ask(&self, key: &str, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let answer = self.server.ask_by(key, method, path, body);
        (answer.status, if answer.body.is_empty() { Value::Null } else { answer.json() })
    }

    fn publish(&self, key: &str, name: &str, text: &str) -> (u16, Value) {
        let path = format!("/v1/workflows/{name}/versions?activate=true");
        let answer = self.server.send_by(key, "POST", &path, "application/yaml", text);
        (answer.status, answer.json())
    }

    /// A key of a tenant with these permissions: its id and its secret.
    fn key(&self, by: &str, permissions: &[&str]) -> (String, String) {
        let asked = json!({"name": "narrow", "permissions": permissions});
        let (status, made) = self.ask(by, "POST", "/v1/apikeys", Some(&asked));
        assert_eq!(status, 201, "{made}");
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        (text("id"), text("secret"))
    }
}

#[test]
fn the_same_run_id_in_two_tenants_is_two_runs() {
    let folder = tempfile::tempdir().unwrap();
    let two = Two::open(folder.path(), &[]);
    assert_eq!(two.publish(&two.a, "job", BELL).0, 201);
    assert_eq!(two.publish(&two.b, "job", SLOW).0, 201);
    let (_, ours) = two.ask(&two.a, "POST", "/v1/runs", Some(&json!({"workflow": "job"})));
    let id = ours["id"].as_str().unwrap().to_owned();
    let (status, theirs) = two.ask(&two.b, "POST", "/v1/runs", Some(&json!({"workflow": "job", "id": id})));
    assert_eq!((status, &theirs["id"]), (201, &json!(id)));
    let (status, sent) =
        two.ask(&two.a, "POST", &format!("/v1/runs/{id}/signals/GO"), Some(&json!({"n": 7})));
    assert_eq!((status, &sent["outcome"]), (200, &json!("taken")));
    let (_, ended) = two.ask(&two.a, "GET", &format!("/v1/runs/{id}?wait=20s"), None);
    assert_eq!((&ended["status"], &ended["result"]), (&json!("completed"), &json!(7)));
    let (_, other) = two.ask(&two.b, "GET", &format!("/v1/runs/{id}"), None);
    assert_eq!(other["status"], json!("waiting"));
    assert_eq!(two.ask(&two.b, "GET", "/v1/doctor", None).0, 200);
}

#[test]
fn what_is_the_engines_is_refused_at_every_door() {
    let folder = tempfile::tempdir().unwrap();
    let two = Two::open(folder.path(), &[]);
    assert_eq!(two.publish(&two.a, "job", BELL).0, 201);
    let put = json!({"cron": "0 3 * * *", "workflow": "job"});
    assert_eq!(two.ask(&two.a, "PUT", "/v1/schedules/nightly", Some(&put)).0, 200);
    let (_, runs) = two.ask(&two.a, "GET", "/v1/runs?workflow=stepwell.schedule", None);
    let schedule = runs["items"][0]["id"].as_str().unwrap().to_owned();
    let (_, manager) = two.key(&two.a, &["workflow:manage", "workflow:view", "workflow:admin"]);
    let on = |verb: &str| format!("/v1/runs/{schedule}/{verb}");
    let doors = [
        ("POST", "/v1/runs".to_owned(), json!({"workflow": "stepwell.schedule", "input": {"bad": 1}})),
        ("POST", on("signals/OFF"), json!({})),
        ("POST", on("cancel"), json!({})),
        ("POST", on("suspend"), json!({})),
        ("POST", on("patch"), json!({"fields": {"fired": 7}})),
        ("POST", on("move"), json!({"to": "x"})),
    ];
    for (method, path, body) in doors {
        let (status, said) = two.ask(&manager, method, &path, Some(&body));
        assert_eq!((status, &said["code"]), (403, &json!("reserved")), "{path}: {said}");
    }
    // A key that is spelled like a schedule's takes no schedule's name.
    let answer = two.server.keyed_by(&manager, "schedule:hourly", "/v1/runs", &json!({"workflow": "job"}));
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(two.ask(&two.a, "GET", "/v1/schedules/hourly", None).0, 404);
    assert_eq!(two.ask(&two.a, "PUT", "/v1/schedules/hourly", Some(&put)).0, 200);
    let (status, listed) = two.ask(&two.a, "GET", "/v1/schedules", None);
    assert_eq!((status, listed["items"].as_array().unwrap().len()), (200, 2));
}

#[test]
fn a_key_is_rotated_only_by_somebody_who_has_all_that_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let two = Two::open(folder.path(), &[]);
    let (full, _) = two.key(&two.a, &["workflow:admin", "workflow:read"]);
    let (own, admin) = two.key(&two.a, &["workflow:admin"]);
    let rotate = |id: &str| two.ask(&admin, "POST", &format!("/v1/apikeys/{id}/rotate"), None);
    let (status, said) = rotate(&full);
    assert_eq!((status, &said["params"]["permission"]), (403, &json!("workflow:read")), "{said}");
    let (status, said) = rotate(&own);
    assert!(status == 200 && said["secret"].is_string(), "{said}");
}

#[test]
fn tasks_are_for_keys_that_name_their_action() {
    let folder = tempfile::tempdir().unwrap();
    let two = Two::open(folder.path(), &[]);
    let asked = json!({"name": "more", "permissions": ["worker:text.shout"]});
    let (status, said) = two.ask(&two.a, "POST", "/v1/apikeys", Some(&asked));
    assert_eq!(
        (status, &said["params"]["permission"]),
        (403, &json!("worker:text.shout")),
        "nobody gives away more"
    );
    // The server's own key may do everything, and so makes the first one.
    let host = two.server.key.clone();
    let (_, worker) = two.key(&host, &["worker:text.shout"]);
    let (_, manager) = two.key(&host, &["workflow:manage"]);
    let poll = |key: &str, action: &str| {
        let asked = json!({"actions": [action], "worker": "w"});
        two.ask(key, "POST", "/v1/tasks/poll", Some(&asked))
    };
    assert_eq!(poll(&worker, "text.shout").0, 200);
    for (key, action) in [(&worker, "text.count"), (&manager, "text.shout")] {
        let (status, said) = poll(key, action);
        assert_eq!((status, &said["code"]), (403, &json!("denied")), "{said}");
    }
    assert_eq!(two.ask(&worker, "GET", "/v1/runs", None).0, 403, "and nothing else");
}

#[test]
fn secrets_of_the_environment_are_the_servers_own() {
    const CALLS: &str = "steps:
  - { id: call, type: action.call, action: http.request, input: { url: 'http://127.0.0.1:9/', headers: { x: { $secret: TOKEN } } } }
";
    let code = |settings: &[(&str, &str)], is_host: bool| {
        let folder = tempfile::tempdir().unwrap();
        let two = Two::open(folder.path(), settings);
        let key = if is_host { two.server.key.clone() } else { two.a.clone() };
        assert_eq!(two.publish(&key, "calls", CALLS).0, 201);
        let (_, run) = two.ask(&key, "POST", "/v1/runs?wait=20s", Some(&json!({"workflow": "calls"})));
        run["run"]["error"]["code"].as_str().unwrap_or_else(|| panic!("{run}")).to_owned()
    };
    let token = ("STEPWELL_SECRET_TOKEN", "canary-of-the-host");
    assert_eq!(code(&[token], false), "secret", "a tenant does not have it");
    assert_ne!(code(&[token], true), "secret");
    assert_ne!(code(&[token, ("STEPWELL_SECRETS__EVERY_TENANT", "true")], false), "secret");
    let folder = tempfile::tempdir().unwrap();
    let two = Two::open(folder.path(), &[]);
    let stores = "steps: [{ id: tell, type: action.call, action: event.emit, input: { name: X, data: { k: { $secret: TOKEN } } } }]";
    let (status, said) = two.publish(&two.a, "stores", stores);
    assert!(status == 422 && said.to_string().contains("takes no secrets"), "{status} {said}");
}
