//! The doctor over HTTP and on the command line. The tests also run the commands that it prints.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use stepwell::core::Spec;
use stepwell::core::spec::Transition;
use stepwell::{ActionError, Builder, Cx};

use crate::kit::get;
use crate::serving::{dev, stepwell};
use crate::site::Site;
use crate::{STEPWELL, said};

async fn fails(_: Cx) -> Result<Value, ActionError> {
    Err(ActionError::new("declined", "the card was declined"))
}

fn payment(builder: Builder) -> Builder {
    let pay = Transition::new("pay", "due", "paid").action("pay");
    let spec = Spec::new("payment").step("due").end("paid").transition(pay).build().unwrap();
    builder.workflow(spec).action("pay", fails)
}

#[tokio::test]
async fn the_doctor_reports_stuck_runs_to_their_tenant_only() {
    let site = Site::open_with(payment).await;
    let run = site.post("/v1/runs", &json!({"workflow": "payment"})).await.json()["id"].clone();
    site.engine.settle().await;
    let said = site.get("/v1/doctor").await.json();
    assert_eq!(
        (&said["healthy"], &said["findings"][0]["kind"]),
        (&json!(false), &json!("runsFailed")),
        "{said}"
    );
    let example = &said["findings"][0]["examples"][0];
    assert_eq!(example["run"], run);
    let commands: Vec<_> =
        example["next"].as_array().unwrap().iter().map(|next| next["command"].clone()).collect();
    assert!(
        commands.contains(&json!(format!("stepwell run retry {}", run.as_str().unwrap()))),
        "{commands:?}"
    );
    assert_eq!(said.get("store"), None, "a tenant does not see the host's disk");
    let theirs = site.as_other_tenant(get("/v1/doctor")).await.json();
    assert_eq!((&theirs["healthy"], &theirs["findings"]), (&json!(true), &json!([])), "{theirs}");

    let path = format!("/v1/runs/{}/doctor", run.as_str().unwrap());
    let one = site.get(&path).await.json();
    assert_eq!((&one["status"], &one["healthy"]), (&json!("failed"), &json!(false)), "{one}");
    assert!(one["state"].as_str().unwrap().contains("the card was declined"), "{one}");
    site.as_other_tenant(get(&path)).await.is(404, "noRun");
    site.get("/v1/doctor?late=soon").await.is(400, "badParameter");
    site.get("/v1/doctor?limit=0").await.is(400, "badParameter");
    site.get("/v1/doctor?lmit=1").await.is(400, "unknownParameter");
}

/// Runs a printed command in a shell that has `stepwell` in its `PATH`.
fn typed(folder: &Path, server: &str, command: &str) -> (Option<i32>, String, String) {
    let path =
        format!("{}:{}", Path::new(STEPWELL).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.current_dir(folder).args(["-c", command]).env("PATH", path).env("STEPWELL_SERVER", server);
    said(&shell.env_remove("STEPWELL_API_KEY").output().unwrap())
}

/// Returns the commands that the findings of one kind suggest.
fn commands(found: &Value, kind: &str) -> Vec<String> {
    let findings = found["findings"].as_array().unwrap().iter().filter(|finding| finding["kind"] == kind);
    let examples = findings.flat_map(|finding| finding["examples"].as_array().unwrap());
    let next = examples.flat_map(|example| example["next"].as_array().unwrap());
    next.filter_map(|next| next["command"].as_str()).map(str::to_owned).collect()
}

#[track_caller]
fn picked<'a>(commands: &'a [String], begins: &str) -> &'a str {
    commands
        .iter()
        .find(|command| command.starts_with(begins))
        .unwrap_or_else(|| panic!("{begins}: {commands:?}"))
}

#[test]
fn commands_printed_by_the_doctor_fix_its_findings() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let verb = |command: &str| typed(folder.path(), &url, command);
    let (code, out, err) = verb("stepwell doctor");
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(out.contains("Nothing is stuck.") && out.contains("fsyncsPerSecond"), "{out}");

    let start = r#"stepwell run start tour --input '{"visitor": "ann"}' -o id"#;
    let (failed, aside) = (verb(start).1, verb(start).1);
    assert_eq!(verb(r#"stepwell kv set tour visitors '"oops"'"#).0, Some(0));
    assert_eq!(verb(&format!("stepwell signal send {failed} welcome '{{\"by\": \"joe\"}}'")).0, Some(0));
    assert_eq!(verb(&format!("stepwell run wait {failed} --for 20s")).0, Some(7));
    assert_eq!(verb(&format!("stepwell run suspend {aside}")).0, Some(0));
    assert_eq!(
        verb("stepwell schedule put nightly '0 3 * * *' tour --input '{\"visitor\": \"moon\"}'").0,
        Some(0)
    );
    // A schedule is a run of the engine, and users may not cancel it.
    let schedules = verb("stepwell run list --workflow stepwell.schedule -o id").1;
    let schedule = schedules.lines().next().unwrap();
    let (code, _, err) = verb(&format!("stepwell run cancel {schedule} --yes"));
    assert!(code != Some(0) && err.contains("reserved for the engine"), "{code:?} {err}");

    let (code, out, err) = verb("stepwell doctor --json");
    assert_eq!(code, Some(7), "{out} {err}");
    let found: Value = serde_json::from_str(&out).unwrap();
    let (_, told, _) = verb("stepwell doctor");
    let (code, one, _) = verb(&format!("stepwell doctor {failed}"));
    assert_eq!(code, Some(7), "{one}");
    assert!(one.contains(": failed: ") && one.contains("Possible actions"), "{one}");

    // The cause is fixed here; the printed commands do the rest.
    assert_eq!(verb("stepwell kv set tour visitors 41").0, Some(0));
    for (kind, begins) in [("runsFailed", "stepwell run retry"), ("runsSuspended", "stepwell run resume")] {
        let all = commands(&found, kind);
        let command = picked(&all, begins);
        assert!(told.contains(command) && told.contains(kind), "{command} is not in {told}");
        let (code, out, err) = verb(command);
        assert_eq!(code, Some(0), "{command}: {out} {err}");
    }
    assert_eq!(verb(&format!("stepwell run wait {failed} --for 20s")).0, Some(0));
    let (code, out, err) = verb("stepwell doctor --json");
    assert_eq!(code, Some(0), "{out} {err}");
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["findings"], json!([]), "{found}");
    drop(server);

    // The same directly on the store, where no process runs workflows (`maxRuns` is 0).
    let store = ["doctor", "--json", "--database-url", "sqlite:stepwell-data/stepwell.sqlite"];
    let (code, out, err) = said(&stepwell(folder.path()).args(store).output().unwrap());
    assert_eq!(code, Some(0), "{out} {err}");
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&found["maxRuns"], &found["store"]["kind"]), (&json!(0), &json!("sqlite")), "{found}");
    assert!(found["store"]["fsyncsPerSecond"].as_f64().unwrap() > 0.0, "{found}");
    assert!(found["store"]["freeBytes"].as_u64().is_some(), "{found}");
}
