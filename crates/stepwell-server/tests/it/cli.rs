//! The command line on a server and directly on a store: the same commands, the same answers, the same exit codes.

use std::path::Path;

use serde_json::{Value, json};

use crate::said;
use crate::serving::{dev, stepwell};

/// Runs a command and returns the exit code, the standard output and the standard error.
fn verb(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    said(&stepwell(folder).args(arguments).output().unwrap())
}

#[track_caller]
pub(crate) fn json(folder: &Path, arguments: &[&str]) -> Value {
    let (code, out, err) = verb(folder, &[arguments, &["--json"]].concat());
    assert_eq!(code, Some(0), "{arguments:?}: {out} {err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

/// Runs every command with these arguments appended: they select a server or a store.
fn through(folder: &Path, way: &[&str]) {
    let ask = |arguments: &[&str]| json(folder, &[arguments, way].concat());
    let code = |arguments: &[&str]| verb(folder, &[arguments, way].concat()).0;
    assert_eq!(ask(&["kv", "set", "story", "a key/with %", r#"{"n": 1}"#])["created"], true);
    assert_eq!(ask(&["kv", "get", "story", "a key/with %"])["value"], json!({"n": 1}));
    assert_eq!(code(&["kv", "set", "story", "a key/with %", "2", "--if-match", "7"]), Some(4));
    assert_eq!(code(&["kv", "set", "story", "a key/with %", "2", "--create-only"]), Some(4));
    assert_eq!(ask(&["kv", "increment", "story", "n", "--by", "-2"])["value"], -2);
    assert_eq!(ask(&["kv", "list", "story"])["items"].as_array().unwrap().len(), 2);
    let (_, table, _) = verb(folder, &[&["kv", "list", "story"][..], way].concat());
    assert!(table.contains("KEY") && table.contains("a key/with %"), "{table}");
    let (_, ids, _) = verb(folder, &[&["kv", "list", "story", "-o", "id"][..], way].concat());
    assert_eq!(ids, "a key/with %\nn");
    let (_, dry, _) = verb(folder, &[&["kv", "delete", "story", "n", "--dry-run"][..], way].concat());
    assert_eq!(dry, "DELETE /v1/kv/story/n");
    assert_eq!(code(&["kv", "delete", "story", "n", "--yes"]), Some(0));
    assert_eq!(code(&["kv", "get", "story", "n"]), Some(3));
    assert_eq!(code(&["run", "start", "nothing-of-the-kind"]), Some(3));
    assert_eq!(code(&["run", "start"]), Some(2));
    assert_eq!(code(&["run", "list", "--status", "sleeping"]), Some(2));

    let put = ask(&[
        "action",
        "put",
        "pay.charge",
        "--about",
        "Takes money.",
        "--output-schema",
        r#"{"type": "object"}"#,
    ]);
    assert_eq!((&put["remote"], &put["output"]), (&json!(true), &json!({"type": "object"})));
    assert_eq!(ask(&["action", "show", "pay.charge"])["about"], "Takes money.");
    assert_eq!(code(&["action", "put", "store.set"]), Some(6));
    assert_eq!(ask(&["task", "list"])["items"], json!([]));
    assert_eq!(code(&["action", "delete", "pay.charge", "--yes"]), Some(0));
    assert_eq!(code(&["action", "show", "pay.charge"]), Some(3));

    let run =
        ask(&["run", "start", "tour", "--input", r#"{"visitor": "ann"}"#])["id"].as_str().unwrap().to_owned();
    assert_eq!(ask(&["run", "show", &run])["workflow"], "tour");
    let (_, id, _) =
        verb(folder, &[&["run", "list", "--workflow", "tour", "-o", "id", "--limit", "1"][..], way].concat());
    assert_eq!(id, run);
    // A unique prefix of an id is enough. Two ids rarely share all but their last five digits.
    assert_eq!(ask(&["run", "show", &run[..31]])["id"], run.as_str());
    assert_eq!(code(&["run", "show", "ffffffff"]), Some(3));
    assert_eq!(ask(&["wait", "list", "--run", &run])["items"][0]["place"], "welcome");
    assert_eq!(code(&["run", "retry", &run]), Some(4));
    assert_eq!(code(&["run", "cancel", &run, "--if-match", "9", "--yes"]), Some(4));
    assert_eq!(code(&["run", "wait", &run, "--for", "10ms"]), Some(8));
    assert_eq!(code(&["run", "cancel", &run, "--reason", "a test", "--yes"]), Some(0));
    assert_eq!(ask(&["run", "show", &run])["status"], "cancelled");
    assert_eq!(code(&["run", "wait", &run]), Some(7));
    let (code, watched, _) = verb(folder, &[&["run", "watch", &run][..], way].concat());
    assert_eq!(code, Some(7));
    assert!(watched.contains("__start") && watched.contains("status cancelled"), "{watched}");
}

#[test]
fn every_command_works_on_a_server_and_on_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    through(folder.path(), &["--server", &url]);

    let key = folder.path().join("stepwell-data/dev.key");
    std::fs::write(folder.path().join("wrong.key"), "swk_wrong").unwrap();
    let (code, _, err) =
        verb(folder.path(), &["run", "list", "--server", &url, "--api-key-file", "wrong.key"]);
    assert_eq!(code, Some(5), "{err}");
    assert!(err.contains("--api-key-file"), "{err}");
    assert_eq!(
        verb(folder.path(), &["run", "list", "--server", &url, "--api-key-file", key.to_str().unwrap()]).0,
        Some(0)
    );

    let (code, _, err) =
        verb(folder.path(), &["run", "list", "--database-url", "sqlite:stepwell-data/stepwell.sqlite"]);
    assert_eq!(code, Some(4), "{err}");
    assert!(err.contains("in use") && err.contains("--server"), "{err}");
    drop(server);

    let store = ["--database-url", "sqlite:stepwell-data/stepwell.sqlite"];
    let (code, ..) =
        verb(folder.path(), &[&["kv", "delete", "story", "a key/with %", "--yes"][..], &store].concat());
    assert_eq!(code, Some(0));
    through(folder.path(), &store);
}

#[test]
fn an_unreachable_server_is_reported_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, _, err) = verb(folder.path(), &["run", "list", "--server", &format!("http://{free}")]);
    assert_eq!(code, Some(9), "{err}");
    assert!(err.contains("stepwell dev"), "{err}");
    assert_eq!(verb(folder.path(), &["run", "list", "--server", "127.0.0.1"]).0, Some(6));
    std::fs::write(folder.path().join("key"), "swk_x").unwrap();
    let (code, _, err) =
        verb(folder.path(), &["run", "list", "--server", "http://example.com", "--api-key-file", "key"]);
    assert_eq!(code, Some(6));
    assert!(err.contains("unencrypted"), "{err}");
}

#[test]
fn the_configuration_is_shown_with_its_origin() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("stepwell.toml"), "[server]\nburst = 5\n").unwrap();
    let mut command = stepwell(folder.path());
    command.env("STEPWELL_DATABASE__URL", "postgres://me:hush@db.example.com/x");
    let (code, out, err) =
        said(&command.args(["config", "show", "--origin", "--listen", "127.0.0.1:1"]).output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("server.burst") && out.contains("# file stepwell.toml"), "{out}");
    assert!(out.contains("# flag --listen") && out.contains("# environment STEPWELL_DATABASE__URL"), "{out}");
    assert!(!out.contains("hush"), "{out}");
    std::fs::write(folder.path().join("stepwell.toml"), "[servr]\nburst = 5\n").unwrap();
    let (code, _, err) = verb(folder.path(), &["config", "show"]);
    assert_eq!(code, Some(6), "{err}");
    assert!(err.contains("servr.burst"), "{err}");
}

/// Backs up an SQLite file and reads its status while a server has it open; restores, checks and migrates it after the
/// server has stopped.
#[test]
fn a_store_is_backed_up_while_in_use_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let store = ["--database-url", "sqlite:stepwell-data/stepwell.sqlite"];
    let db = |arguments: &[&str]| verb(folder.path(), &[&["db"][..], arguments, &store].concat());
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    json(folder.path(), &["kv", "set", "story", "before", "1", "--server", &url]);
    let (code, out, err) = db(&["backup", "monday.sqlite", "--json"]);
    assert_eq!(code, Some(0), "{out} {err}");
    assert_eq!(db(&["backup", "monday.sqlite"]).0, Some(4), "a backup is not overwritten by accident");
    json(folder.path(), &["kv", "set", "story", "after", "1", "--server", &url]);
    let status: Value = serde_json::from_str(&db(&["status", "--json"]).1).unwrap();
    assert!(status["sound"] == true && status["fsyncsPerSecond"].as_f64().unwrap() > 0.0, "{status}");
    assert_eq!(db(&["restore", "monday.sqlite", "--replace"]).0, Some(4), "a server has it open");
    drop(server);

    std::fs::write(folder.path().join("damaged.sqlite"), "not a database at all").unwrap();
    assert_eq!(db(&["restore", "damaged.sqlite", "--replace"]).0, Some(6));
    assert_eq!(db(&["restore", "monday.sqlite"]).0, Some(4), "an existing store is not replaced by accident");
    let (code, out, err) = db(&["restore", "monday.sqlite", "--replace"]);
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(err.contains("is kept as"), "{err}");
    assert_eq!(db(&["check"]).0, Some(0));
    assert_eq!(db(&["migrate"]).0, Some(0));
    let get = |key: &str| verb(folder.path(), &[&["kv", "get", "story", key][..], &store].concat()).0;
    assert_eq!((get("before"), get("after")), (Some(0), Some(3)));
    let postgres =
        verb(folder.path(), &["db", "backup", "x", "--database-url", "postgres://db.example.com/x"]);
    assert!(postgres.0 == Some(6) && postgres.2.contains("pg_dump"), "{postgres:?}");
}
