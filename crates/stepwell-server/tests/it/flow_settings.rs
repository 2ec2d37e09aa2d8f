//! Flows of the server by settings alone: strategies, outlets, cookie, lists, answer links and the key commands.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::said;
use crate::serving::{Serving, dev, stepwell};

const ASK: &str = "name: ask\nstrategy: handle\nsteps:\n  - { id: ask, type: human.task }\n  - { id: done, type: control.return, value: done }\n";

/// Starts `stepwell dev` with this configuration.
fn served(folder: &Path, settings: &str) -> Serving {
    std::fs::write(folder.join("stepwell.toml"), settings).unwrap();
    dev(folder)
}

fn publish(server: &Serving, name: &str, text: &str) -> Value {
    let path = format!("/v1/workflows/{name}/versions?activate=true");
    server.send("POST", &path, "application/yaml", text).json()
}

/// Runs `stepwell` in a folder with this standard input. Returns exit code, output and errors.
fn command(folder: &Path, words: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut command: Command = stepwell(folder);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    said(&child.wait_with_output().unwrap())
}

/// G11: a setting that is wrong or has no effect stops the start, and the message names it.
#[test]
fn wrong_settings_of_flows_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(command(folder.path(), &["key", "create", "flow.keys"], "").0, Some(0));
    let keys = "[flows]\nkey_file = \"flow.keys\"\n";
    let cases = [
        ("[flows]\ncookie = \"flow\"\n".to_owned(), "flows.key_file"),
        (format!("{keys}default_strategy = \"nowhere\"\n"), "`nowhere`"),
        (format!("{keys}workflows = {{ login = \"saeled\" }}\n"), "flows.workflows.login"),
        (format!("{keys}workflows = {{ resume = \"sealed\" }}\n"), "`resume`"),
        (format!("{keys}allow = [\"show\"]\n"), "`show`"),
        (format!("{keys}insecure_cookie = true\n"), "flows.insecure_cookie"),
        (format!("{keys}[flows.strategies.quick]\nkind = \"handle\"\nonce = true\n"), "once"),
        (format!("{keys}[flows.strategies.quick]\nkind = \"sealed\"\nttl = \"0s\"\n"), "ttl"),
        (format!("{keys}[flows.strategies.quick]\nkind = \"sealed\"\nttl = \"never\"\n"), "never"),
        (format!("{keys}[flows.strategies.watch]\nkind = \"sealed\"\n"), "watch"),
        (format!("{keys}[flows.outlets.mail]\nkind = \"email\"\n"), "server.public_url"),
        (
            format!(
                "[server]\npublic_url = \"https://a.example.com\"\n{keys}[flows.outlets.mail]\nkind = \"email\"\n"
            ),
            "mail.host",
        ),
        (format!("[server]\npublic_url = \"a.example.com\"\n{keys}"), "server.public_url"),
        (
            format!(
                "[server]\npublic_url = \"https://a.example.com\"\n{keys}[flows.outlets.hook]\nkind = \"webhook\"\nsecret_file = \"none\"\n"
            ),
            "secret_file",
        ),
    ];
    for (settings, named) in cases {
        std::fs::write(folder.path().join("stepwell.toml"), &settings).unwrap();
        let (code, _, err) = command(folder.path(), &["server", "start", "--listen", "127.0.0.1:0"], "");
        assert_eq!(code, Some(6), "{settings}: {err}");
        assert!(err.contains(named), "{settings}: {err}");
    }
}

/// E10: with a configured cookie, tokens are in the cookie and not in the body.
#[test]
fn a_configured_cookie_carries_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(folder.path(), "[flows]\ncookie = \"flow\"\ninsecure_cookie = true\n");
    publish(&server, "ask", ASK);
    let begun = server.ask("POST", "/v1/flows/ask", None);
    assert_eq!(begun.status, 201, "{begun:?}");
    assert!(begun.json().get("token").is_none() && begun.json().get("url").is_none(), "{begun:?}");
    let cookie = begun.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap().to_owned();
    assert!(cookie.starts_with("flow=handle.") && cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
    let token = cookie.split(';').next().unwrap();
    let kind = format!("application/json\r\ncookie: {token}");
    let ended = server.send_by("none", "POST", "/v1/flows/resume", &kind, "{}");
    assert_eq!((ended.status, &ended.json()["result"]), (200, &json!("done")), "{ended:?}");
    assert!(ended.head.contains("set-cookie: flow=;") && ended.head.contains("Max-Age=0"), "{ended:?}");
}

/// G11: allowed and blocked workflows, lifetimes and the strategy of a workflow come from the configuration.
#[test]
fn settings_decide_strategy_lifetime_and_allowed_workflows() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "[flows]\nblock = [\"other\"]\nworkflows = { third = \"quick\" }\n\
                    [flows.strategies.quick]\nkind = \"durable\"\nttl = \"never\"\n";
    let server = served(folder.path(), settings);
    for name in ["ask", "other", "third"] {
        publish(&server, name, &ASK.replace("name: ask", &format!("name: {name}")));
    }
    let begun = server.ask("POST", "/v1/flows/ask", None).json();
    assert_eq!(begun["strategy"], "handle");
    let url = begun["url"].as_str().unwrap();
    assert!(url.starts_with(&format!("http://{}/l/handle.", server.address)), "{url}");
    let refused = server.ask("POST", "/v1/flows/other", None);
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("notAllowed")));
    let third = server.ask("POST", "/v1/flows/third", None).json();
    assert_eq!((&third["strategy"], third.get("expiresAt")), (&json!("quick"), None));
    let run = server.ask("POST", "/v1/runs", Some(&json!({"workflow": "ask"})));
    assert_eq!((run.status, &run.json()["code"]), (409, &json!("notARun")));
    let shown = command(folder.path(), &["config", "show", "--json"], "").1;
    assert!(shown.contains("\"kind\":\"durable\""), "{shown}");
}

/// G11: values of flow steps that cannot work are refused when the document is published, and so is a change of the
/// strategy without effect.
#[test]
fn flow_steps_that_cannot_work_are_not_published() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "[server]\npublic_url = \"https://flows.example.com\"\n[mail]\nhost = \"127.0.0.1\"\nport = 1\n\
                    security = \"none\"\nfrom = \"flows@example.com\"\n[flows.outlets.mail]\nkind = \"email\"\n";
    let server = served(folder.path(), settings);
    let send = |more: &str| {
        format!(
            "name: send\nsteps:\n  - {{ id: send, type: action.call, action: flow.sendOut, input: {{ outlet: mail, to: a@example.com, {more} }} }}\n  - {{ id: ask, type: human.task }}\n"
        )
    };
    let change = "name: send\nstrategy: sealed\nsteps:\n  - { id: ask, type: human.task }\n  - { id: change, type: action.call, action: flow.useStrategy, input: { strategy: handle } }\n";
    for (text, code) in [
        (send("template: nope"), "unknownTemplate"),
        (send("ttl: 0s"), "badTtl"),
        (send("ttl: soon"), "badTtl"),
        (change.to_owned(), "noWait"),
    ] {
        let refused = publish(&server, "send", &text);
        assert_eq!(refused["errors"][0]["code"], code, "{text}: {refused}");
    }
    assert_eq!(publish(&server, "send", &send("template: default, ttl: 1h"))["version"], 1);
}

/// G11: an answer link is created over HTTP and on the command line, and answers its wait.
#[test]
fn an_answer_link_is_created_over_http_and_cli() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(folder.path(), "");
    let two = "name: two\nsteps:\n  - id: both\n    type: control.parallel\n    branches:\n      - [{ id: left, type: human.task, answerers: [role:boss] }]\n      - [{ id: right, type: human.task }]\n";
    publish(&server, "two", two);
    let run = server.ask("POST", "/v1/runs", Some(&json!({"workflow": "two"}))).json()["id"].clone();
    let run = run.as_str().unwrap();
    let path = format!("/v1/runs/{run}/answer-links");
    let unclear = server.ask("POST", &path, None);
    assert_eq!((unclear.status, &unclear.json()["code"]), (422, &json!("ambiguousWait")), "{unclear:?}");
    let unknown = json!({"place": "left", "send": {"outlet": "mail", "to": "ann@example.com"}});
    let unknown = server.ask("POST", &path, Some(&unknown));
    assert_eq!((unknown.status, &unknown.json()["code"]), (422, &json!("unknownOutlet")), "{unknown:?}");
    let refused = server.ask("POST", &path, Some(&json!({"place": "left"})));
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("notAnswerer")), "{refused:?}");
    let asked = json!({"place": "left", "ttl": "1h", "reason": "by phone"});
    let made = server.keyed_by(&server.key, "once", &path, &asked);
    assert_eq!(made.status, 201, "{made:?}");
    let again = server.keyed_by(&server.key, "once", &path, &asked);
    assert!(again.head.contains("idempotency-replayed: true") && again.json() == made.json(), "{again:?}");
    let link = made.json();
    assert_eq!((&link["place"], &link["outcomes"]), (&json!("left"), &json!(["left"])));
    assert!(link["expiresAt"].is_string() && link["url"].is_string(), "{link}");
    let answer = json!({"token": link["token"], "input": {}});
    assert_eq!(server.ask("POST", "/v1/flows/resume", Some(&answer)).status, 200);
    let none = server.ask("POST", &path, Some(&asked));
    assert_eq!((none.status, &none.json()["code"]), (409, &json!("noWait")), "{none:?}");

    let url = format!("http://{}", server.address);
    let words = ["token", "create", run, "--place", "right", "--ttl", "1h", "--json", "--server", &url];
    let (code, made, err) = command(folder.path(), &words, "");
    assert_eq!(code, Some(0), "{err}");
    let token = serde_json::from_str::<Value>(&made).unwrap()["token"].as_str().unwrap().to_owned();
    let words = ["token", "resume", "{}", "--server", &url];
    let (code, _, err) = command(folder.path(), &words, &token);
    assert_eq!(code, Some(0), "{err}");
    let done = server.get(&format!("/v1/runs/{run}?wait=10s")).json();
    assert_eq!(done["status"], "completed", "{done}");
}

/// E1: the key commands change the file in one step, and the server reads it again. A wrong file changes nothing.
#[test]
fn key_commands_rotate_the_keys_of_a_running_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(folder.path(), "");
    publish(&server, "ask", &ASK.replace("handle", "sealed"));
    let begin = || server.ask("POST", "/v1/flows/ask", None).json()["token"].clone();
    let resume =
        |token: &Value| server.ask("POST", "/v1/flows/resume", Some(&json!({"token": token}))).status;
    let file = "stepwell-data/flow.keys";
    let ids = || {
        let keys = server.get("/v1/keys").json();
        keys["items"].as_array().unwrap().iter().map(|key| key["id"].clone()).collect::<Vec<_>>()
    };
    let soon = |expected: &[&str]| {
        let began = Instant::now();
        while ids() != expected {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?} instead of {expected:?}", ids());
        }
    };
    let key = |words: &[&str]| command(folder.path(), &[&["key"], words].concat(), "");
    let old = begin();
    assert_eq!(key(&["rotate", file, "--id", "next", "--inactive"]).1.trim(), "next");
    soon(&["dev", "next"]);
    assert_eq!(key(&["activate", file, "next"]).0, Some(0));
    soon(&["next", "dev"]);
    assert_eq!(resume(&old), 200, "a token of the old key is valid");
    assert_eq!(key(&["remove", file, "next"]).0, Some(4), "the sealing key stays");
    assert_eq!(key(&["remove", file, "missing"]).0, Some(3));
    assert_eq!(key(&["create", file]).0, Some(4));
    let old = begin();
    let path = folder.path().join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, "next:short\n").unwrap();
    assert_eq!(key(&["rotate", file]).0, Some(6));
    std::fs::write(&path, text).unwrap();
    assert_eq!(key(&["rotate", file, "--id", "third", "--dry-run"]).0, Some(0));
    assert_eq!(key(&["rotate", file, "--id", "third"]).0, Some(0));
    soon(&["third", "next", "dev"]);
    assert_eq!(key(&["remove", file, "next"]).0, Some(0));
    soon(&["third", "dev"]);
    assert_eq!(resume(&old), 410, "a token of a removed key is not valid");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}
