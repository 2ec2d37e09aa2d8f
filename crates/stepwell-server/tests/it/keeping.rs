//! Retention through the built program: of runs, by settings and by the document; of tombstones; settings with `never`.

use std::path::Path;

use serde_json::{Value, json};

use crate::said;
use crate::serving::{Serving, dev, stepwell};

fn publish(server: &Serving, name: &str, retention: &str) {
    let text = format!("{retention}\nsteps: [{{ id: done, type: control.return }}]\n");
    let path = format!("/v1/workflows/{name}/versions?activate=true");
    let published = server.send("POST", &path, "application/yaml", &text);
    assert_eq!(published.status, 201, "{published:?}");
}

fn ended(server: &Serving, workflow: &str) -> String {
    let run = server.ask("POST", "/v1/runs?wait=20s", Some(&json!({"workflow": workflow}))).json();
    assert_eq!(run["run"]["status"], "completed", "{run}");
    run["id"].as_str().unwrap().to_owned()
}

fn clean_up(server: &Serving) -> Value {
    let cleaned = server.ask("POST", "/v1/maintenance/cleanup", None);
    assert_eq!(cleaned.status, 200, "{cleaned:?}");
    cleaned.json()
}

/// G6: retention is set for all workflows, by a document for its workflow, and by settings for a workflow, which win.
#[test]
fn retention_is_set_per_workflow_and_switched_off() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "[engine]\nretention = \"0s\"\n[engine.workflow_retention]\nsettings = \"never\"\nforced = \"0s\"\n\
                    [data.tombstones]\nbrief = \"0s\"\nlasting = \"never\"\n";
    std::fs::write(folder.path().join("stepwell.toml"), settings).unwrap();
    let server = dev(folder.path());
    publish(&server, "usual", "");
    publish(&server, "document", "retention: P7D");
    publish(&server, "never", "retention: never");
    publish(&server, "settings", "");
    publish(&server, "forced", "retention: never");
    let runs = ["usual", "document", "never", "settings", "forced"].map(|name| ended(&server, name));
    clean_up(&server);
    let there = runs.map(|run| server.get(&format!("/v1/runs/{run}")).status);
    assert_eq!(there, [404, 200, 200, 200, 404]);
    // The version for new runs decides, also about older runs.
    let run = ended(&server, "document");
    publish(&server, "document", "retention: 0s");
    clean_up(&server);
    assert_eq!(server.get(&format!("/v1/runs/{run}")).status, 404);

    for (namespace, revision) in [("brief", 1), ("lasting", 3)] {
        let path = format!("/v1/kv/{namespace}/k");
        assert_eq!(server.ask("PUT", &path, Some(&json!({"value": 1}))).status, 201);
        assert_eq!(server.ask("DELETE", &path, None).status, 204);
        clean_up(&server);
        let again = server.ask("PUT", &path, Some(&json!({"value": 2}))).json();
        assert_eq!(again["revision"], revision, "{namespace}: {again}");
    }
}

/// B18: the audit trail is cut after `audit.retention`. It still verifies, and says at which seal it begins.
#[test]
fn audit_trail_is_cut_at_a_seal() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("stepwell.toml"), "[audit]\nretention = \"0s\"\n").unwrap();
    let server = dev(folder.path());
    let mut removed = 0;
    for round in 0..6 {
        let path = format!("/v1/kv/n/{round}");
        assert_eq!(server.ask("PUT", &path, Some(&json!({"value": 1}))).status, 201);
        removed += clean_up(&server)["audit"].as_u64().unwrap();
    }
    assert!(removed > 0);
    let verified = server.ask("POST", "/v1/audit/verify", None).json();
    assert_eq!(verified["sound"], true, "{verified}");
    assert!(verified["beginsAtSeal"].as_u64().unwrap() > 1 && verified["beginsAt"].is_string(), "{verified}");
    let audit = server.get("/v1/audit?limit=200").json();
    let rows = audit["items"].as_array().unwrap();
    assert!(!rows.iter().any(|row| row["subject"].as_str().unwrap().contains("store:n:0")), "{audit}");
    assert!(rows.iter().any(|row| row["operation"] == "audit.cut"), "{audit}");
}

fn config(folder: &Path, environment: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = stepwell(folder);
    command.args(["config", "show", "--origin"]).envs(environment.iter().copied());
    said(&command.output().unwrap())
}

#[test]
fn retention_is_switched_off_from_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let never = [("STEPWELL_ENGINE__RETENTION", "never"), ("STEPWELL_AUDIT__RETENTION", "P400D")];
    let (code, out, err) = config(folder.path(), &never);
    assert_eq!(code, Some(0), "{err}");
    let line = |name: &str| out.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(line("engine.retention").contains("never"), "{out}");
    assert!(line("audit.retention").contains("P400D"), "{out}");
    let (code, _, err) = config(folder.path(), &[("STEPWELL_ENGINE__RETENTION", "always")]);
    assert_eq!(code, Some(6), "{err}");
    assert!(err.contains("engine.retention") && err.contains("`never`"), "{err}");
}

#[test]
fn wrong_retention_of_a_document_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name: a\nretention: 7\nsteps: [{ id: done, type: control.return }]\n";
    std::fs::write(folder.path().join("a.yaml"), text).unwrap();
    let output = stepwell(folder.path()).args(["workflow", "validate", "a.yaml"]).output().unwrap();
    let (code, out, err) = said(&output);
    assert_eq!(code, Some(6), "{out} {err}");
    let wanted = "`retention` must be a duration such as `30d` or `P30D`, or `never`";
    assert!(format!("{out}{err}").contains(wanted), "{out} {err}");
}
