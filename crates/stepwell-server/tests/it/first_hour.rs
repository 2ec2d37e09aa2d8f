//! The first hour of a new user: the first API key, a file that is in use, the home page, settings from the environment,
//! refused addresses, and commands that can be pasted.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::manual::{blocks, project};
use crate::serving::{Serving, dev, dev_with, started, stepwell};
use crate::{STEPWELL, said};

/// Returns the command of a server in `folder` on a free port.
fn server(folder: &Path) -> Command {
    let mut command = stepwell(folder);
    command.args(["server", "start", "--listen", "127.0.0.1:0"]);
    command
}

/// Starts a server whose messages go to a file of its folder.
fn started_with_messages(folder: &Path, more: &[&str]) -> (Serving, impl Fn(&str) -> String) {
    let file = folder.join("messages");
    // A shell redirects the messages, because `started` discards them.
    let words = ["exec \"$0\" \"$@\" 2> messages", STEPWELL, "server", "start", "--listen", "127.0.0.1:0"];
    let mut command = Command::new("sh");
    command.current_dir(folder).env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.arg("-c").args(words).args(more);
    let serving = started(command, folder);
    let message = move |part: &str| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let text = std::fs::read_to_string(&file).unwrap();
            if text.contains(part) {
                return text;
            }
            assert!(Instant::now() < deadline, "`{part}` is not in {text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    (serving, message)
}

/// Runs a command line of the program's own messages.
fn pasted(folder: &Path, line: &str) -> (Option<i32>, String, String) {
    let path = format!("{}:/usr/bin:/bin", Path::new(STEPWELL).parent().unwrap().display());
    let mut shell = Command::new("sh");
    said(&shell.current_dir(folder).env_clear().env("PATH", path).args(["-c", line]).output().unwrap())
}

/// Returns the one line of a text that contains a part.
#[track_caller]
fn line_with(text: &str, part: &str) -> String {
    let mut found = text.lines().filter(|line| line.contains(part));
    let line = found.next().unwrap_or_else(|| panic!("`{part}` is not in {text}"));
    line.trim().to_owned()
}

#[test]
fn fresh_server_names_the_commands_for_the_first_api_key() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, message) = started_with_messages(folder.path(), &[]);
    let text = message("--database-url");
    let (restart, create) = (line_with(&text, "--create-api-key"), line_with(&text, "apikey create"));
    assert_eq!(restart, "stepwell server start --listen 127.0.0.1:0 --create-api-key admin.key");
    assert_eq!(server.get("/v1/whoami").status, 401);
    assert_eq!(server.terminate(), Some(0));

    // The other command works as it is printed.
    let (code, out, err) = pasted(folder.path(), &format!("{create} --json"));
    assert_eq!(code, Some(0), "{out} {err}");
    let created: Value = serde_json::from_str(&out).unwrap();
    let (server, message) = started_with_messages(folder.path(), &[]);
    let who = server.ask_by(created["secret"].as_str().unwrap(), "GET", "/v1/whoami", None);
    assert_eq!((who.status, &who.json()["actor"]), (200, &json!("apikey:admin")));
    assert!(!message("listens on").contains("There is no API key yet"));
}

#[test]
fn server_creates_an_api_key_once_and_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("admin.key");
    let flag = ["--create-api-key", "admin.key"];
    let (mut server, message) = started_with_messages(folder.path(), &flag);
    let secret = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let who = |server: &Serving| server.ask_by(&secret, "GET", "/v1/whoami", None);
    assert_eq!(who(&server).status, 200);
    let granted = who(&server).json()["permissions"].as_array().unwrap().len();
    assert!(granted >= 6, "{granted}");
    let told = message("created the API key `admin`");
    assert!(!told.contains(&secret) && !told.contains("There is no API key yet"), "{told}");
    assert_eq!(server.terminate(), Some(0));

    let (mut server, message) = started_with_messages(folder.path(), &flag);
    message("admin.key contains the API key `admin`, which is valid");
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), secret);
    assert_eq!(who(&server).status, 200);
    assert_eq!(server.terminate(), Some(0));

    let refused = |wanted: &str| {
        let (code, _, err) = said(&self::server(folder.path()).args(flag).output().unwrap());
        assert!(code == Some(4) && err.contains(wanted), "{code:?} {err}");
    };
    std::fs::write(&file, "precious").unwrap();
    refused("contains no valid API key of this database");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    std::fs::remove_file(&file).unwrap();
    refused("an API key named `admin` exists already");
    assert!(!file.exists());

    // With the flag, the first start may be on an address that other machines reach.
    let other = tempfile::tempdir().unwrap();
    let mut public = stepwell(other.path());
    public.args(["server", "start", "--listen", "0.0.0.0:0"]).args(flag);
    drop(started(public, other.path()));
}

#[test]
fn command_on_a_file_in_use_names_the_server_and_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let store = ["--database-url", "sqlite:stepwell-data/stepwell.sqlite"];
    let run = |words: &[&str]| said(&stepwell(folder.path()).args(words).args(store).output().unwrap());
    let create = ["apikey", "create", "ci", "--permission", "workflow:view"];
    let mut server = dev(folder.path());
    let at = format!("process {}, the server at http://{}", server.child.id(), server.address);
    let (code, _, err) = run(&create);
    assert_eq!(code, Some(4), "{err}");
    let instead = format!("--server http://{} --api-key-file FILE", server.address);
    assert!(err.contains(&at) && err.contains(&instead) && err.contains("--create-api-key FILE"), "{err}");
    std::fs::write(folder.path().join("copy.sqlite"), "").unwrap();
    for words in [&["db", "migrate"][..], &["db", "restore", "copy.sqlite", "--replace"]] {
        let (code, _, err) = run(words);
        assert!(code == Some(4) && err.contains(&at) && err.contains("Stop that process first"), "{err}");
    }
    // The advice works.
    let told = ["--server", &format!("http://{}", server.address), "--api-key-file", "stepwell-data/dev.key"];
    let sent = stepwell(folder.path()).args(create).args(told).output().unwrap();
    assert!(sent.status.success(), "{sent:?}");

    // A killed server leaves its address in the file. It must not be taken for the next owner.
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let lock = folder.path().join("stepwell-data/stepwell.sqlite.lock");
    assert!(std::fs::read_to_string(&lock).unwrap().contains(&server.address));
    let mut flock = Command::new("flock");
    flock.arg("-o").arg(&lock).args(["sh", "-c", "echo held; read line"]);
    let mut holder =
        flock.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    holder.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
    let (code, _, err) = run(&create);
    assert!(code == Some(4) && err.contains("another process") && !err.contains(&server.address), "{err}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert_eq!(run(&create).0, Some(4), "the key exists");
    assert_eq!(std::fs::read_to_string(&lock).unwrap(), "", "the last owner has ended");
}

#[test]
fn dev_keeps_its_api_key_while_it_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = dev(folder.path());
    let key = first.key.clone();
    assert_eq!(first.terminate(), Some(0));
    let mut second = dev(folder.path());
    assert_eq!(second.key, key);
    let mine = second.get("/v1/apikeys").json();
    assert_eq!(mine["items"].as_array().unwrap().len(), 1, "{mine}");
    let path = format!("/v1/apikeys/{}", mine["items"][0]["id"].as_str().unwrap());
    assert_eq!(second.ask("DELETE", &path, None).status, 204);
    assert_eq!(second.terminate(), Some(0));
    let third = dev(folder.path());
    assert_ne!(third.key, key, "a revoked key is replaced");
    assert_eq!(
        (third.get("/v1/whoami").status, third.ask_by(&key, "GET", "/v1/whoami", None).status),
        (200, 401)
    );
}

#[test]
fn home_page_answers_browsers_and_programs() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let program = server.ask_by("none", "GET", "/", None);
    assert_eq!(program.status, 200, "{program:?}");
    let home = program.json();
    assert_eq!(
        (&home["name"], home["version"].as_str()),
        (&json!("stepwell"), Some(env!("CARGO_PKG_VERSION")))
    );
    let links: Vec<_> =
        home["links"].as_object().unwrap().values().map(|link| link.as_str().unwrap()).collect();
    assert!(links.len() >= 4, "{links:?}");
    let accept = "x\r\naccept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8";
    let page = server.ask_by(accept, "GET", "/", None);
    assert!(page.status == 200 && page.head.contains("text/html; charset=utf-8"), "{page:?}");
    assert!(page.body.contains(env!("CARGO_PKG_VERSION")) && !page.body.contains("<script"), "{page:?}");
    for link in links {
        assert_eq!(server.ask_by("none", "GET", &format!("/{link}"), None).status, 200, "{link}");
        assert!(page.body.contains(&format!("href=\"{link}\"")), "{link}");
    }
    let head = server.ask_by(accept, "HEAD", "/", None);
    assert_eq!((head.status, head.body.as_str()), (200, ""), "{head:?}");
    assert!(head.head.contains("text/html"), "{head:?}");
    assert_eq!(server.ask_by("none", "POST", "/", None).status, 405);
}

/// A setting of the reference: its name, its type, its default and its variable.
struct Setting {
    name: String,
    kind: String,
    default: String,
    variable: String,
}

/// Returns every setting of the reference that the program generates.
fn settings() -> Vec<Setting> {
    let folder = tempfile::tempdir().unwrap();
    assert!(stepwell(folder.path()).args(["docs", "."]).status().unwrap().success());
    let text = std::fs::read_to_string(folder.path().join("config.md")).unwrap();
    let (mut section, mut found) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("## [") {
            section = name.trim_end_matches(']').to_owned();
        }
        let cells: Vec<_> = line.trim_start_matches("| ").split(" | ").collect();
        if let [name, kind, default, variable, _, ..] = cells[..]
            && variable.starts_with("`STEPWELL_")
        {
            let plain = |cell: &str| cell.trim_matches('`').to_owned();
            let name = format!("{section}.{}", plain(name));
            let (default, variable) = (plain(default), plain(variable));
            found.push(Setting { name, kind: kind.to_owned(), default, variable });
        }
    }
    found
}

impl Setting {
    /// Returns texts for the variable, each with the value that it means.
    fn samples(&self) -> Vec<(String, Value)> {
        let same = |texts: &[&str]| texts.iter().map(|text| ((*text).to_owned(), json!(text))).collect();
        let meant = |texts: &[&str], value: Value| {
            texts.iter().map(|text| ((*text).to_owned(), value.clone())).collect()
        };
        match self.kind.as_str() {
            // The text of a number stays a text.
            "text" if matches!(self.name.as_str(), "mail.password" | "telemetry.headers") => {
                meant(&["7"], json!("***"))
            }
            "text" => same(&["7", "a text"]),
            "integer" => {
                let less = self.default.parse::<u64>().map_or(2_525, |default| default - 1);
                vec![(less.to_string(), json!(less))]
            }
            "integer or `unlimited`" => [meant(&["7"], json!(7)), same(&["unlimited", "never"])].concat(),
            "number" => meant(&["0.25"], json!(0.25)),
            "boolean" if self.default == "true" => meant(&["false"], json!(false)),
            "boolean" => meant(&["true"], json!(true)),
            "duration" => same(&["17s", "PT18S"]),
            "duration or `never`" => same(&["17s", "never", "unlimited"]),
            "list of texts" => meant(&["a, b", r#"["a", "b"]"#, "['a', 'b']"], json!(["a", "b"])),
            "list of addresses" => meant(&["192.0.2.1,::1"], json!(["192.0.2.1", "::1"])),
            "list of tables" => {
                let value = json!([{"name": "a", "issuer": "https://id.example.com", "audience": "x"}]);
                let toml = r#"[{ name = "a", issuer = "https://id.example.com", audience = "x" }]"#;
                meant(&[&value.to_string(), toml], value.clone())
            }
            "table of texts" => {
                meant(&[r#"{"a": "sealed"}"#, "{ a = 'sealed' }", "a = 'sealed'"], json!({"a": "sealed"}))
            }
            "table of integers" => meant(&[r#"{"a": 5}"#, "a = 5"], json!({"a": 5})),
            "table of durations or `never`" => meant(&[r#"{"a": "7d"}"#, "a = '7d'"], json!({"a": "7d"})),
            "tables" => {
                let kind = if self.name == "flows.outlets" { "email" } else { "sealed" };
                let json = format!(r#"{{"a": {{"kind": "{kind}"}}}}"#);
                meant(&[&json, &format!("[a]\nkind = '{kind}'")], json!({"a": {"kind": kind}}))
            }
            choice if choice.starts_with('`') => same(&[choice.rsplit('`').nth(1).unwrap()]),
            other => panic!("{}: add a sample of the type `{other}`", self.name),
        }
    }
}

/// A past bug: `STEPWELL_MAIL__PORT=2525` stopped the server, because the number was taken for a text.
#[test]
fn every_setting_works_from_the_environment() {
    let settings = settings();
    assert!(settings.len() > 70, "{}", settings.len());
    let rounds = settings.iter().map(|setting| setting.samples().len()).max().unwrap();
    for round in 0..rounds {
        let folder = tempfile::tempdir().unwrap();
        let mut show = stepwell(folder.path());
        show.args(["config", "show", "--json"]);
        let given: Vec<_> = settings
            .iter()
            .map(|setting| (setting, setting.samples().into_iter().cycle().nth(round).unwrap()))
            .collect();
        show.envs(given.iter().map(|(setting, (text, _))| (&setting.variable, text)));
        let (code, out, err) = said(&show.output().unwrap());
        assert_eq!(code, Some(0), "{err}");
        let shown: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(shown.as_object().unwrap().len(), settings.len(), "the reference lists every setting");
        for (Setting { name, variable, .. }, (text, value)) in given {
            assert_eq!(shown[name]["value"], value, "{variable}={text}");
            assert_eq!(shown[name]["origin"], format!("environment {variable}"));
        }
    }
}

#[test]
fn wrong_values_from_the_environment_name_their_bounds() {
    let folder = tempfile::tempdir().unwrap();
    for (variable, text, wanted) in [
        ("STEPWELL_MAIL__PORT", "70000", "an integer from 0 to 65535"),
        ("STEPWELL_MAIL__PORT", "smtp", "`mail.port` has the invalid value \"smtp\""),
        ("STEPWELL_ENGINE__LEASE", "30", "`30` is not a duration, such as `30s`"),
        ("STEPWELL_ENGINE__LEASE", "1ms", "`engine.lease`"),
        ("STEPWELL_ENGINE__MAX_RUNS", "many", "expected an integer"),
        ("STEPWELL_ENGINE__SIGNAL_TTL", "soon", "not `never`"),
        ("STEPWELL_SERVER__MAX_CONNECTIONS", "0", "from 1 to 1000000"),
        ("STEPWELL_QUOTA__RUNS", "-1", "nor `unlimited`"),
        ("STEPWELL_LIMITS__VALUE_DEPTH", "65", "it must be from 4 to 64"),
        ("STEPWELL_LIMITS__CELL_BYTES", "unlimited", "it must be from "),
        ("STEPWELL_LIMITS__SNAPSHOT_BYTES", "16777216", "`snapshot_bytes`"),
        ("STEPWELL_LIMITS__INBOXES", "5", "did you mean `limits.inbox`"),
    ] {
        let (code, _, err) =
            said(&stepwell(folder.path()).args(["config", "show"]).env(variable, text).output().unwrap());
        assert_eq!(code, Some(6), "{variable}={text}: {err}");
        assert!(err.contains(wanted), "{variable}={text}: {err}");
    }
}

/// The server applies settings of every kind, not only shows them.
#[test]
fn settings_from_the_environment_take_effect() {
    let folder = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = dev_with(
        folder.path(),
        &[
            ("STEPWELL_MAIL__HOST", "127.0.0.1"),
            ("STEPWELL_MAIL__PORT", "2525"),
            ("STEPWELL_MAIL__FROM", "noreply@example.com"),
            ("STEPWELL_MAIL__SECURITY", "none"),
            ("STEPWELL_HTTP__ALLOW", "127.0.0.1"),
            ("STEPWELL_ENGINE__ACTION_TIMEOUT", "150ms"),
            ("STEPWELL_ENGINE__MAX_RUNS_PER_WORKFLOW", "{ waits = 3 }"),
            ("STEPWELL_LIMITS__PAYLOAD_BYTES", "1000"),
            ("STEPWELL_LIMITS__LOOP_ROUNDS", "unlimited"),
            ("STEPWELL_SERVER__REQUESTS_PER_SECOND", "unlimited"),
        ],
    );
    let actions = server.get("/v1/actions").body;
    assert!(actions.contains("email.send"), "{actions}");
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let text = format!(
        "name: waits\nsteps:\n  - {{ id: ask, type: action.call, action: http.request, input: {{ url: '{url}' }} }}\n"
    );
    let published =
        server.send("POST", "/v1/workflows/waits/versions?activate=true", "application/yaml", &text);
    assert_eq!(published.status, 201, "{published:?}");
    let run = server.ask("POST", "/v1/runs?wait=30s", Some(&json!({"workflow": "waits"}))).json();
    assert_eq!(run["run"]["error"]["code"], "timeout", "{run}");
    assert!(run["run"]["error"]["message"].as_str().unwrap().contains("150 ms"), "{run}");
    let tour = json!({"workflow": "tour", "input": {"visitor": "ann"}});
    let run = server.ask("POST", "/v1/runs", Some(&tour)).json()["id"].as_str().unwrap().to_owned();
    let long = json!({"by": "x".repeat(1_000)});
    let refused = server.ask("POST", &format!("/v1/runs/{run}/signals/welcome"), Some(&long));
    assert!(refused.status == 422 && refused.body.contains("payload_bytes"), "{refused:?}");
}

#[test]
fn refused_address_names_the_setting_and_the_value() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let text = "name: ask\nsteps:\n  - { id: ask, type: action.call, action: http.request, input: { url: { $expr: payload.url } } }\n";
    server.send("POST", "/v1/workflows/ask/versions?activate=true", "application/yaml", text);
    let start = json!({"workflow": "ask", "input": {"url": "https://10.1.2.3/"}});
    let error = server.ask("POST", "/v1/runs?wait=30s", Some(&start)).json()["run"]["error"].take();
    assert_eq!(error["code"], "refusedAddress", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("add \"10.1.2.3\" to the setting `http.allow`"), "{message}");
    drop(server);

    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    std::fs::write(folder.path().join("hook.secret"), secret).unwrap();
    let outlet = |more: &str| {
        format!(
            "[flows.outlets.crm]\nkind = \"webhook\"\nsecret_file = \"hook.secret\"\nurl = \"https://10.1.2.3/in\"\n{more}"
        )
    };
    for (more, advice) in [
        ("", "add \"10.1.2.3\" to the setting `flows.outlets.crm.allow_private_hosts`"),
        ("allow_hosts = [\"crm.example.com\"]\n", "to the setting `flows.outlets.crm.allow_hosts`"),
    ] {
        std::fs::write(folder.path().join("stepwell.toml"), outlet(more)).unwrap();
        let refused = stepwell(folder.path()).args(["dev", "--listen", "127.0.0.1:0"]).output().unwrap();
        let (code, _, err) = said(&refused);
        assert!(code == Some(6) && err.contains(advice), "{err}");
    }
    let allowed = outlet("allow_private_hosts = [\"10.1.2.3\"]\n");
    std::fs::write(folder.path().join("stepwell.toml"), allowed).unwrap();
    drop(dev(folder.path()));
}

/// Commands that a new user pastes contain nothing to fill in.
#[test]
fn first_pages_contain_no_placeholders_in_commands() {
    for page in ["README.md", "docs/getting-started.md", "docs/server.md", "docs/postgres.md"] {
        let text = std::fs::read_to_string(project().join(page)).unwrap();
        let commands = [blocks(&text, "sh"), blocks(&text, "console")].concat().concat();
        assert!(!commands.is_empty(), "{page} has no commands");
        for placeholder in ["…", "example.com", "<", "68eb5b0c902ad0e8"] {
            let found = commands.lines().find(|line| line.replace("<<", "").contains(placeholder));
            assert_eq!(found, None, "{page}: `{placeholder}` cannot be pasted");
        }
    }
}
