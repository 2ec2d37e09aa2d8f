//! Two tenants on the server binary, over real sockets: neither can affect the other or the engine's own runs.

use std::path::Path;

use serde_json::{Value, json};

use crate::serving::{Serving, dev_with};

/// Waits for a signal and returns `n` of its payload.
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
    /// The ids of both tenants.
    ids: [String; 2],
}

impl Two {
    fn open(folder: &Path, settings: &[(&str, &str)]) -> Two {
        let server = dev_with(folder, settings);
        let all = ["view", "read", "manage", "publish", "admin"].map(|word| format!("workflow:{word}"));
        let tenant = |name: &str| {
            let key = json!({"name": name, "permissions": all});
            let made = server.ask("POST", "/v1/tenants", Some(&json!({"name": name, "key": key})));
            assert_eq!(made.status, 201, "{made:?}");
            let made = made.json();
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (text(&made["key"]["secret"]), text(&made["id"]))
        };
        let ((a, id), (b, other)) = (tenant("a"), tenant("b"));
        Two { server, a, b, ids: [id, other] }
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

    /// Creates a key with these permissions. Returns its id and its secret.
    fn key(&self, by: &str, permissions: &[&str]) -> (String, String) {
        let asked = json!({"name": permissions.join(" "), "permissions": permissions});
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
    assert_eq!((status, &sent["outcome"]), (200, &json!("consumed")));
    let (_, ended) = two.ask(&two.a, "GET", &format!("/v1/runs/{id}?wait=20s"), None);
    assert_eq!((&ended["status"], &ended["result"]), (&json!("completed"), &json!(7)));
    let (_, other) = two.ask(&two.b, "GET", &format!("/v1/runs/{id}"), None);
    assert_eq!(other["status"], json!("waiting"));
    assert_eq!(two.ask(&two.b, "GET", "/v1/doctor", None).0, 200);
}

#[test]
fn engine_runs_cannot_be_changed_over_the_api() {
    let folder = tempfile::tempdir().unwrap();
    let two = Two::open(folder.path(), &[]);
    assert_eq!(two.publish(&two.a, "job", BELL).0, 201);
    let put = json!({"cron": "0 3 * * *", "workflow": "job"});
    assert_eq!(two.ask(&two.a, "PUT", "/v1/schedules/nightly", Some(&put)).0, 200);
    let (_, runs) = two.ask(&two.a, "GET", "/v1/runs?workflow=stepwell.schedule", None);
    let schedule = runs["items"][0]["id"].as_str().unwrap().to_owned();
    let (_, manager) = two.key(&two.a, &["workflow:manage", "workflow:view", "workflow:admin"]);
    let on = |verb: &str| format!("/v1/runs/{schedule}/{verb}");
    let (_, runs) = two.ask(&two.a, "GET", "/v1/runs?workflow=stepwell.schedule", None);
    let before = runs["items"][0]["version"].clone();
    let doors = [
        ("POST", "/v1/runs".to_owned(), json!({"workflow": "stepwell.schedule", "input": {"bad": 1}})),
        ("POST", on("signals/OFF"), json!({})),
        ("POST", on("cancel"), json!({})),
        ("POST", on("suspend"), json!({})),
        ("POST", on("patch"), json!({"fields": {"fired": 7}})),
        ("POST", on("move"), json!({"to": "x"})),
        ("POST", on("resume"), json!({})),
        ("POST", on("dismiss"), json!({})),
        ("POST", on("fork"), json!({"version": 0})),
        ("POST", on("migrate"), json!({"version": 2})),
        ("POST", on("migrate"), json!({"version": 2, "dryRun": true})),
        ("POST", "/v1/flows/stepwell.schedule".to_owned(), json!({"input": {}})),
        ("POST", "/v1/flows/stepwell.event".to_owned(), json!({})),
    ];
    for (method, path, body) in doors {
        let (status, said) = two.ask(&manager, method, &path, Some(&body));
        assert_eq!((status, &said["code"]), (403, &json!("reserved")), "{path}: {said}");
    }
    // A failed delivery or firing can be retried. This one has not failed.
    let (status, said) = two.ask(&manager, "POST", &on("retry"), Some(&json!({})));
    assert_eq!((status, &said["code"]), (409, &json!("wrongStatus")), "{said}");
    // A schedule ends only by `DELETE /v1/schedules`.
    let (status, said) = two.ask(&manager, "DELETE", &format!("/v1/runs/{schedule}"), None);
    assert_eq!((status, &said["code"]), (403, &json!("reserved")), "{said}");
    let (_, runs) = two.ask(&two.a, "GET", "/v1/runs?workflow=stepwell.schedule", None);
    assert_eq!(
        (runs["items"].as_array().unwrap().len(), &runs["items"][0]["version"]),
        (1, &before),
        "{runs}"
    );
    // An idempotency key spelled like that of a schedule does not take the schedule's name.
    let answer = two.server.keyed_by(&manager, "schedule:hourly", "/v1/runs", &json!({"workflow": "job"}));
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(two.ask(&two.a, "GET", "/v1/schedules/hourly", None).0, 404);
    assert_eq!(two.ask(&two.a, "PUT", "/v1/schedules/hourly", Some(&put)).0, 200);
    let (status, listed) = two.ask(&two.a, "GET", "/v1/schedules", None);
    assert_eq!((status, listed["items"].as_array().unwrap().len()), (200, 2));
}

#[test]
fn rotating_a_key_requires_all_its_permissions() {
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
fn polling_tasks_requires_a_key_for_the_action() {
    let folder = tempfile::tempdir().unwrap();
    let two = Two::open(folder.path(), &[]);
    let asked = json!({"name": "more", "permissions": ["worker:text.shout"]});
    let (status, said) = two.ask(&two.a, "POST", "/v1/apikeys", Some(&asked));
    assert_eq!(
        (status, &said["params"]["permission"]),
        (403, &json!("worker:text.shout")),
        "a key cannot grant more than its creator has"
    );
    // The server's own key has every permission, so it can create the first worker key.
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
    assert_eq!(two.ask(&worker, "GET", "/v1/runs", None).0, 403, "a worker key permits nothing else");
}

#[test]
fn environment_secrets_belong_to_the_server_tenant() {
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
    assert_eq!(code(&[token], false), "secret", "a tenant does not get it");
    assert_ne!(code(&[token], true), "secret");
    assert_ne!(code(&[token, ("STEPWELL_SECRETS__EVERY_TENANT", "true")], false), "secret");
    let folder = tempfile::tempdir().unwrap();
    let two = Two::open(folder.path(), &[]);
    let stores = "steps: [{ id: tell, type: action.call, action: event.emit, input: { name: X, data: { k: { $secret: TOKEN } } } }]";
    let (status, said) = two.publish(&two.a, "stores", stores);
    assert!(status == 422 && said.to_string().contains("takes no secrets"), "{status} {said}");
}

/// Regression: once a task was no longer queued, any worker with its id and fence could read the recorded result.
#[test]
fn recorded_task_result_requires_a_key_for_the_action() {
    let folder = tempfile::tempdir().unwrap();
    let two = Two::open(folder.path(), &[]);
    let host = two.server.key.clone();
    let (_, worker) = two.key(&host, &["worker:text.shout"]);
    let (_, other) = two.key(&host, &["worker:text.count"]);
    assert_eq!(two.ask(&host, "PUT", "/v1/actions/text.shout", Some(&json!({}))).0, 200);
    let shout = "steps: [{ id: shout, type: action.call, action: text.shout }]";
    assert_eq!(two.publish(&host, "shout", shout).0, 201);
    assert_eq!(two.ask(&host, "POST", "/v1/runs", Some(&json!({"workflow": "shout"}))).0, 201);
    let asked = json!({"actions": ["text.shout"], "worker": "w"});
    let (_, polled) = two.ask(&worker, "POST", "/v1/tasks/poll?wait=20s", Some(&asked));
    let task = &polled["tasks"][0];
    let finish = |key: &str, verb: &str, body: Value| {
        let path = format!("/v1/tasks/{}/{verb}", task["id"].as_str().unwrap());
        two.ask(key, "POST", &path, Some(&body))
    };
    let done = json!({"fence": task["fence"], "output": "HEY"});
    let failed = json!({"fence": task["fence"], "error": {"code": "no", "message": "no"}});
    assert_eq!(finish(&worker, "complete", done.clone()).0, 200);
    assert_eq!(finish(&worker, "complete", done.clone()).0, 200, "the worker may repeat it");
    for (verb, body) in [("complete", done), ("fail", failed)] {
        let (status, said) = finish(&other, verb, body);
        assert_eq!(
            (status, &said["params"]["permission"]),
            (403, &json!("worker:text.shout")),
            "{verb}: {said}"
        );
    }
}

/// Runs a workflow that passes a secret to a worker. Returns the value that the worker gets, or the run's error code.
fn revealed(two: &Two, key: &str, worker: &str, name: &str) -> Result<String, String> {
    let text = format!(
        "steps: [{{ id: use, type: action.call, action: text.use, input: {{ key: {{ $secret: {name} }} }} }}]"
    );
    let workflow = format!("uses-{}", name.to_lowercase());
    let (status, said) = two.publish(key, &workflow, &text);
    assert!(status == 201 || status == 200, "{said}");
    let (_, run) = two.ask(key, "POST", "/v1/runs", Some(&json!({"workflow": workflow})));
    let run = run["id"].as_str().unwrap_or_else(|| panic!("{run}")).to_owned();
    for _ in 0..3_000 {
        let asked = json!({"actions": ["text.use"], "worker": "w"});
        let (_, polled) = two.ask(worker, "POST", "/v1/tasks/poll", Some(&asked));
        if let Some(task) = polled["tasks"].get(0) {
            assert_eq!(task["run"], *run);
            let path = format!("/v1/tasks/{}/complete", task["id"].as_str().unwrap());
            let done = json!({"fence": task["fence"], "output": null});
            assert_eq!(two.ask(worker, "POST", &path, Some(&done)).0, 200);
            return Ok(task["input"]["key"].as_str().unwrap().to_owned());
        }
        let (_, shown) = two.ask(key, "GET", &format!("/v1/runs/{run}"), None);
        if let Some(code) = shown["error"]["code"].as_str() {
            return Err(code.to_owned());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("run {run} does nothing")
}

/// Registers the worker's action in a tenant and returns a worker key of it.
fn equipped(two: &Two, key: &str, tenant: Option<&str>) -> String {
    let put = json!({"secretFields": ["/key"]});
    assert_eq!(two.ask(key, "PUT", "/v1/actions/text.use", Some(&put)).0, 200);
    let path = tenant.map_or("/v1/apikeys".to_owned(), |tenant| format!("/v1/tenants/{tenant}/apikeys"));
    let asked = json!({"name": "worker", "permissions": ["worker:*"]});
    let (status, made) = two.ask(&two.server.key, "POST", &path, Some(&asked));
    assert_eq!(status, 201, "{made}");
    made["secret"].as_str().unwrap().to_owned()
}

#[test]
fn secret_files_belong_to_their_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = folder.path().join("secrets");
    let path = secrets.to_str().unwrap().to_owned();
    std::fs::create_dir_all(&secrets).unwrap();
    std::fs::write(secrets.join("TOP"), "top-canary\n").unwrap();
    let file = ("STEPWELL_SECRETS__FOLDER", path.as_str());
    let two = Two::open(folder.path(), &[file]);
    let own = secrets.join(&two.ids[0]);
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("OWN"), "own-canary").unwrap();
    let host = two.server.key.clone();
    let workers = [
        equipped(&two, &two.a, Some(&two.ids[0])),
        equipped(&two, &two.b, Some(&two.ids[1])),
        equipped(&two, &host, None),
    ];
    let none = Err("secret".to_owned());
    assert_eq!(revealed(&two, &two.a, &workers[0], "OWN").as_deref(), Ok("own-canary"));
    assert_eq!(revealed(&two, &two.a, &workers[0], "TOP"), none, "only the host's tenant");
    assert_eq!(revealed(&two, &two.b, &workers[1], "OWN"), none, "another tenant's folder");
    assert_eq!(revealed(&two, &two.b, &workers[1], "TOP"), none);
    assert_eq!(revealed(&two, &host, &workers[2], "TOP").as_deref(), Ok("top-canary"));
    assert_eq!(revealed(&two, &host, &workers[2], "OWN"), none);
    drop(two);

    // With the opt-in, every tenant gets the files of the top level, and still only its own folder.
    let folder = tempfile::tempdir().unwrap();
    let two = Two::open(folder.path(), &[file, ("STEPWELL_SECRETS__EVERY_TENANT", "true")]);
    let own = secrets.join(&two.ids[0]);
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("OWN"), "own-canary").unwrap();
    let worker = equipped(&two, &two.b, Some(&two.ids[1]));
    assert_eq!(revealed(&two, &two.b, &worker, "TOP").as_deref(), Ok("top-canary"));
    assert_eq!(revealed(&two, &two.b, &worker, "OWN"), none);
}

/// Regression: only the current value of a secret was redacted in a worker's result.
#[test]
fn secret_rotated_during_a_task_is_redacted() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = folder.path().join("secrets");
    std::fs::create_dir_all(&secrets).unwrap();
    std::fs::write(secrets.join("KEY"), "old-canary").unwrap();
    let two = Two::open(folder.path(), &[("STEPWELL_SECRETS__FOLDER", secrets.to_str().unwrap())]);
    let host = two.server.key.clone();
    let worker = equipped(&two, &host, None);
    let text = "steps:
  - { id: use, type: action.call, action: text.use, input: { key: { $secret: KEY } } }
  - { id: done, type: control.return, value: { $expr: vars.use } }
";
    assert_eq!(two.publish(&host, "uses", text).0, 201);
    let (_, run) = two.ask(&host, "POST", "/v1/runs", Some(&json!({"workflow": "uses"})));
    let asked = json!({"actions": ["text.use"], "worker": "w"});
    let (_, polled) = two.ask(&worker, "POST", "/v1/tasks/poll?wait=20s", Some(&asked));
    let task = &polled["tasks"][0];
    assert_eq!(task["input"]["key"], "old-canary", "{polled}");
    std::fs::write(secrets.join("KEY"), "new-canary").unwrap();
    let path = |verb: &str| format!("/v1/tasks/{}/{verb}", task["id"].as_str().unwrap());
    let beat = json!({"fence": task["fence"], "note": "old-canary"});
    assert_eq!(two.ask(&worker, "POST", &path("heartbeat"), Some(&beat)).0, 200);
    let id = run["id"].as_str().unwrap();
    let (_, shown) = two.ask(&host, "GET", &format!("/v1/runs/{id}"), None);
    assert_eq!(shown["attempts"][0]["task"]["note"], "***", "{shown}");
    let done = json!({"fence": task["fence"], "output": ["old-canary", "new-canary"]});
    assert_eq!(two.ask(&worker, "POST", &path("complete"), Some(&done)).0, 200);
    let (_, ended) = two.ask(&host, "GET", &format!("/v1/runs/{id}?wait=20s"), None);
    assert_eq!(
        (&ended["status"], &ended["result"]),
        (&json!("completed"), &json!(["***", "***"])),
        "{ended}"
    );
}
