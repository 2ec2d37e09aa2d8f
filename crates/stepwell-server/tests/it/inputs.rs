//! `null` as the input of a run: it is not replaced by the default, an empty object.

use serde_json::{Value, json};

use crate::serving::{Serving, dev, stepwell};

/// Returns the type of its input.
const KIND: &str = "steps:
  - { id: done, type: control.return, value: { $expr: '{\"kind\": $type(payload)}' } }
";
/// Calls that workflow with a null, with a computed null and without an input.
const CALLER: &str = "steps:
  - { id: plain, type: workflow.call, workflow: kind, input: null }
  - { id: computed, type: workflow.call, workflow: kind, input: { $expr: payload.nothing } }
  - { id: absent, type: workflow.call, workflow: kind }
  - { id: done, type: control.return, value: { $expr: '[vars.plain.kind, vars.computed.kind, vars.absent.kind]' } }
";

fn publish(server: &Serving, name: &str, text: &str) {
    let path = format!("/v1/workflows/{name}/versions?activate=true");
    let answer = server.send("POST", &path, "application/yaml", text);
    assert_eq!(answer.status, 201, "{answer:?}");
}

fn result(server: &Serving, body: &Value) -> Value {
    let answer = server.ask("POST", "/v1/runs?wait=20s", Some(body)).json();
    assert_eq!(answer["run"]["status"], "completed", "{answer}");
    answer["run"]["result"].clone()
}

#[test]
fn null_input_stays_null_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    publish(&server, "kind", KIND);
    assert_eq!(result(&server, &json!({"workflow": "kind", "input": null})), json!({"kind": "null"}));
    assert_eq!(result(&server, &json!({"workflow": "kind"})), json!({"kind": "object"}), "the default");
    // The same key with another input is another request.
    let started = |body: &Value| server.keyed_by(&server.key, "once", "/v1/runs", body).status;
    assert_eq!(started(&json!({"workflow": "kind", "input": null})), 201);
    assert_eq!(started(&json!({"workflow": "kind", "input": null})), 200);
    assert_eq!(started(&json!({"workflow": "kind"})), 422);
}

#[test]
fn null_input_stays_null_on_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    publish(&server, "kind", KIND);
    for (input, kind) in [(&["--input", "null"][..], "null"), (&[], "object")] {
        let started = stepwell(folder.path())
            .args(["run", "start", "kind", "--wait=20s", "--json"])
            .args(input)
            .args(["--server", &format!("http://{}", server.address)])
            .env("STEPWELL_API_KEY", &server.key)
            .output()
            .unwrap();
        assert!(started.status.success(), "{started:?}");
        let answer: Value = serde_json::from_slice(&started.stdout).unwrap();
        assert_eq!(answer["run"]["result"], json!({"kind": kind}), "{answer}");
    }
}

#[test]
fn null_input_is_passed_to_a_called_workflow() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    publish(&server, "kind", KIND);
    publish(&server, "caller", CALLER);
    let kinds = result(&server, &json!({"workflow": "caller", "input": {"nothing": null}}));
    assert_eq!(kinds, json!(["null", "null", "object"]));
}
