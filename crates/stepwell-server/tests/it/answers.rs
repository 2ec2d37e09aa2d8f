//! An answer belongs to one wait: a repeated answer does not answer the next wait, over HTTP and on the command line.

use serde_json::{Value, json};

use crate::serving::{Serving, dev, stepwell};

/// A workflow that asks one person after the other. All its waits take the same signal.
const ROUND: &str = "steps:
  - id: all
    type: control.forEach
    items: { $expr: payload.names }
    body:
      - { id: ask, type: human.task, form: { type: object } }
";

fn open(server: &Serving, run: &str) -> (u64, String) {
    for _ in 0..200 {
        let waits = server.get(&format!("/v1/waits?run={run}")).json();
        if let Some(wait) = waits["items"].get(0) {
            let signal = wait["outcomes"][0].as_str().unwrap().to_owned();
            return (wait["activation"].as_u64().unwrap(), signal);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("run {run} waits for nothing");
}

#[test]
fn a_repeated_answer_does_not_answer_the_next_question() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let path = "/v1/workflows/round/versions?activate=true";
    assert_eq!(server.send("POST", path, "application/yaml", ROUND).status, 201);
    let begin = json!({"workflow": "round", "input": {"names": ["ann", "joe"]}});
    let run = server.ask("POST", "/v1/runs", Some(&begin)).json()["id"].as_str().unwrap().to_owned();
    let (first, signal) = open(&server, &run);
    let answer = |wait: u64, body: &Value| {
        server.ask("POST", &format!("/v1/runs/{run}/signals/{signal}?forWait={wait}"), Some(body))
    };
    let yes = json!({"ok": true});
    assert_eq!(answer(first, &yes).json()["outcome"], "consumed");
    let (second, _) = open(&server, &run);
    assert_ne!(first, second);
    let again = answer(first, &yes);
    assert_eq!(
        (again.status, &again.json()["outcome"]),
        (200, &json!("consumed")),
        "the same answer: {again:?}"
    );
    let other = answer(first, &json!({"ok": false}));
    let said = other.json();
    assert_eq!((other.status, &said["code"]), (409, &json!("answered")), "{said}");
    assert_eq!(
        (&said["params"]["wait"], &said["params"]["signal"]),
        (&json!(first), &json!(signal)),
        "{said}"
    );
    assert_eq!(open(&server, &run).0, second, "the next question is still open");
    assert_eq!(answer(999, &yes).status, 409);
    let kept = format!("/v1/runs/{run}/signals/{signal}?forWait={second}&ttl=1h");
    assert_eq!(server.ask("POST", &kept, Some(&yes)).status, 422);
    let sent = stepwell(folder.path())
        .args(["signal", "send", &run, &signal, r#"{"ok": true}"#, "--for-wait", &second.to_string()])
        .args(["--server", &format!("http://{}", server.address)])
        .env("STEPWELL_API_KEY", &server.key)
        .output()
        .unwrap();
    assert!(sent.status.success(), "{sent:?}");
    assert_eq!(server.get(&format!("/v1/runs/{run}?wait=20s")).json()["status"], "completed");
}
