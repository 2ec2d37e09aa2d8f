//! Documentation: the reference matches the code, every command has help, and the examples in the docs work.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use stepwell::core::document::Bundle;
use stepwell::core::{Spec, WorkflowSource};

use crate::serving::{dev, stepwell};
use crate::{STEPWELL, run, said, smtp};

pub(crate) fn project() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The reference is committed so that reviews show its changes.
#[test]
fn committed_reference_matches_the_code() {
    let folder = tempfile::tempdir().unwrap();
    let output = stepwell(folder.path()).args(["docs", "."]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for name in ["http.md", "cli.md", "config.md"] {
        let made = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let committed =
            std::fs::read_to_string(project().join("docs/reference").join(name)).unwrap_or_default();
        let differs = made.lines().zip(committed.lines()).find(|(made, committed)| made != committed);
        assert!(
            made == committed,
            "docs/reference/{name} is out of date (first difference: {differs:?}): run `stepwell docs docs/reference`"
        );
    }
}

/// Returns every command of the reference as its list of words.
fn verbs() -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    assert!(stepwell(folder.path()).args(["docs", "."]).status().unwrap().success());
    let text = std::fs::read_to_string(folder.path().join("cli.md")).unwrap();
    let named = text.lines().filter_map(|line| line.strip_prefix("stepwell "));
    let words = |line: &str| {
        let words = line.split(' ').take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut verbs: Vec<_> = named.map(words).filter(|words| !words.is_empty()).collect();
    verbs.sort();
    verbs.dedup();
    verbs
}

#[test]
fn every_command_has_help_and_rejects_unknown_flags() {
    let verbs = verbs();
    assert!(verbs.len() > 100, "{}", verbs.len());
    let check = |(number, verb): (usize, &Vec<String>)| {
        let (code, help, err) = said(&Command::new(STEPWELL).args(verb).arg("--help").output().unwrap());
        assert_eq!(code, Some(0), "{verb:?}: {err}");
        let about = help.lines().next().unwrap_or_default();
        assert!(about.len() >= 10 && !about.starts_with("Usage"), "{verb:?} has no description: {help}");
        assert!(help.contains("Usage: stepwell"), "{verb:?}: {help}");
        // All commands share one parser, so a sample shows that unknown flags are rejected.
        if number % 8 == 0 {
            let unknown = Command::new(STEPWELL).args(verb).arg("--no-such-flag").output().unwrap();
            let (code, _, err) = said(&unknown);
            assert_eq!(code, Some(2), "{verb:?}: {err}");
        }
    };
    std::thread::scope(|scope| {
        for some in verbs.chunks(verbs.len().div_ceil(4)) {
            scope.spawn(move || some.iter().enumerate().for_each(check));
        }
    });
}

#[test]
fn completions_and_man_pages_are_generated() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, err) = said(&run(&["completions", shell], ""));
        assert_eq!(code, Some(0), "{shell}: {err}");
        assert!(script.contains("doctor") && script.contains("retry"), "{shell}");
    }
    assert_eq!(said(&run(&["completions", "cmd"], "")).0, Some(2));
    let (code, page, _) = said(&run(&["man"], ""));
    assert!(code == Some(0) && page.contains(".TH"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    assert!(stepwell(folder.path()).args(["man", "--dir", "man"]).status().unwrap().success());
    for page in ["stepwell.1", "stepwell-run.1", "stepwell-run-retry.1", "stepwell-doctor.1"] {
        assert!(folder.path().join("man").join(page).exists(), "{page}");
    }
}

#[test]
fn bench_leaves_no_files_behind() {
    let folder = tempfile::tempdir().unwrap();
    let bench = ["bench", "--seconds", "1", "--in-flight", "8", "--json"];
    let (code, out, err) = said(&stepwell(folder.path()).args(bench).output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    let figures: Value = serde_json::from_str(&out).unwrap();
    for figure in ["fsyncsPerSecond", "stepsPerSecond", "runs"] {
        assert!(figures[figure].as_f64().unwrap() > 0.0, "{figures}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path().join("stepwell-data")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let postgres = ["bench", "--database-url", "postgres://db.example.com/x"];
    assert_eq!(said(&stepwell(folder.path()).args(postgres).output().unwrap()).0, Some(6));
}

/// A shell command that runs a script in `folder`, with `stepwell` on its path and set to the server at `url`.
pub(crate) fn shell(folder: &Path, url: &str, script: &str) -> Command {
    let path =
        format!("{}:{}", Path::new(STEPWELL).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("timeout");
    shell
        .current_dir(folder)
        .args(["120", "bash", "-c", script])
        .env("PATH", path)
        .env("STEPWELL_SERVER", url);
    shell
}

#[test]
fn interrupted_watch_exits_with_the_signal_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        // The watcher has started when it has printed the first checkpoint. Its signals are reset because a program
        // that is started in the background ignores SIGINT, and these tests may run in the background themselves.
        let script = format!(
            r#"set -m
RUN=$(stepwell run start tour --input '{{"visitor": "ann"}}' -o id)
env --default-signal stepwell run watch "$RUN" > watched & WATCHER=$!
until [ -s watched ]; do sleep 0.05; done
kill -{signal} $WATCHER; wait $WATCHER; echo $?; rm watched"#
        );
        let (ended, out, err) = said(&shell(folder.path(), &url, &script).output().unwrap());
        assert_eq!((ended, out.lines().last()), (Some(0), Some(code.to_string().as_str())), "{out} {err}");
    }
}

#[test]
fn commands_work_together_in_a_shell_script() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let script = r#"set -eu
RUN=$(stepwell run start tour --input '{"visitor": "ann"}' -o id)
stepwell signal send "$RUN" welcome '{"by": "joe"}' -o id > said
stepwell run wait "$RUN" --for 20s > said
test "$(stepwell run show "$RUN" --version 0 --json | grep -c '"version":0')" = 1
stepwell state set tour greeting '"hello"' > said
stepwell state get tour greeting --json | grep -q hello
stepwell state increment tour count --by 2 > said
stepwell state increment tour count -v > said 2> talk
grep -q 'POST /v1/state/workflow/tour/count/increment: 200' talk
stepwell state delete tour greeting --yes
stepwell maintenance cleanup --json | grep -q expiredCells
stepwell maintenance heal tour --json | grep -q '"runs":1'
stepwell maintenance heal tour --status failed --json | grep -q '"runs":0'
if stepwell maintenance heal tour --where 'city^=Bo' 2> said; then exit 1; fi
stepwell event emit NOBODY_CARES '{"n": 1}' --id 7 --json > said
stepwell workflow export --json > bundle
stepwell workflow import bundle --dry-run --json > said
stepwell kv set story watched 1 > said
timeout 20 stepwell kv watch story watched --json > watched & WATCHER=$!
until [ -s watched ]; do sleep 0.05; done
kill $WATCHER
grep -q '"value":1' watched
"#;
    let (code, out, err) = said(&shell(folder.path(), &url, script).output().unwrap());
    assert_eq!(code, Some(0), "{out} {err}");
}

/// Returns the code blocks of one language in a Markdown text.
pub(crate) fn blocks(text: &str, kind: &str) -> Vec<String> {
    let (mut found, mut block) = (Vec::new(), None::<String>);
    for line in text.lines() {
        match (&mut block, line.strip_prefix("```")) {
            (None, Some(head)) => block = (head == kind).then(String::new).or(Some("\0".to_owned())),
            (Some(text), Some("")) => {
                found.extend(Some(std::mem::take(text)).filter(|text| !text.starts_with('\0')));
                block = None;
            }
            (Some(text), _) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

#[test]
fn getting_started_commands_work_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let text = std::fs::read_to_string(project().join("docs/getting-started.md")).unwrap();
    let blocks = blocks(&text, "sh");
    assert!(blocks.len() >= 6, "{blocks:?}");
    let script = format!("set -eu\n{}", blocks.join("\n")).replace("http://127.0.0.1:7077", &url);
    let mut story = shell(folder.path(), &url, &script);
    let (code, out, err) = said(&story.output().unwrap());
    assert_eq!(code, Some(0), "{out}\n{err}");
    for told in ["\"status\":\"failed\"", "\"status\":\"completed\"", "warm hello, eve", "Nothing is stuck."]
    {
        assert!(out.contains(told), "{told} is not in {out}");
    }
    // Two runs have counted the guest: one started by hand, one by an event that was emitted twice.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let (_, said, _) =
            said(&shell(folder.path(), &url, "stepwell kv get guests eve --json").output().unwrap());
        if serde_json::from_str::<Value>(&said).unwrap()["value"] == 2 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{said}");
    }
}

#[test]
fn server_page_commands_work_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let text = std::fs::read_to_string(project().join("docs/server.md")).unwrap();
    let script =
        format!("set -eu\n{}", blocks(&text, "sh").join("\n")).replace("http://127.0.0.1:7077", &url);
    let (code, out, err) = said(&shell(folder.path(), &url, &script).output().unwrap());
    assert_eq!(code, Some(0), "{out}\n{err}");
    for told in ["\"status\":\"waiting\"", "\"status\":\"completed\"", "\"secret\":\"swk_"] {
        assert!(out.contains(told), "{told} is not in {out}");
    }
}

/// Writes the configuration and the workflow documents of a page to a folder.
fn save_blocks(text: &str, folder: &Path, mail_port: u16) {
    let settings = blocks(text, "toml").join("\n").replace("1025", &mail_port.to_string());
    std::fs::write(folder.join("stepwell.toml"), settings).unwrap();
    for block in blocks(text, "yaml").iter().filter(|block| !block.starts_with("- ")) {
        let source = WorkflowSource::read(block, None).unwrap();
        std::fs::write(folder.join(format!("{}.yaml", source.name())), block).unwrap();
    }
}

/// G11: login, invitation and approval run from documents and configuration alone, driven with curl.
#[tokio::test(flavor = "multi_thread")]
async fn flow_commands_work_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let mails = smtp::Server::start().await;
    let text = std::fs::read_to_string(project().join("docs/flows.md")).unwrap();
    save_blocks(&text, folder.path(), mails.port);
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let script =
        format!("set -eu\n{}", blocks(&text, "sh").join("\n")).replace("http://127.0.0.1:7077", &url);
    let mut story = shell(folder.path(), &url, &script);
    let told = tokio::task::spawn_blocking(move || said(&story.output().unwrap()));
    // The reader of the page saves the mail.
    let mail = mails.mail().await.decoded().replace('\r', "");
    assert!(mail.contains("Hello Bea") && mail.contains(&format!("{url}/l/handle.")), "{mail}");
    std::fs::write(folder.path().join("mail.new"), mail).unwrap();
    std::fs::rename(folder.path().join("mail.new"), folder.path().join("mail.txt")).unwrap();
    let (code, out, err) = told.await.unwrap();
    assert_eq!(code, Some(0), "{out}\n{err}");
    for told in [
        "\"strategy\":\"sealed\"",
        "\"pointer\":\"/password\"",
        "\"result\":{\"user\":\"ann\"}",
        "\"watchOnly\":true",
        "\"sent\":\"mail\"",
        "410\n",
        "\"outcomes\":[\"approve\"]",
        "\"result\":{\"approved\":true}",
    ] {
        assert!(out.contains(told), "{told} is not in {out}");
    }
    let done = std::fs::read_to_string(folder.path().join("done.html")).unwrap();
    assert!(done.contains("<html"), "{done}");
}

/// B23: the commands about remote workers, among them changes that a worker commits with its result.
#[test]
fn worker_commands_work_as_written() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(project().join("examples"), folder.path().join("examples")).unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let text = std::fs::read_to_string(project().join("docs/remote.md")).unwrap();
    let script = format!(
        "set -eu\ntrap 'kill $(jobs -p)' EXIT\nexport URL={url} KEY=$(cat stepwell-data/dev.key)\n\
         api() {{ curl -sS --fail-with-body -H \"Authorization: Bearer $KEY\" \"$@\"; echo; }}\n{}",
        blocks(&text, "sh").join("\n")
    );
    let (code, out, err) = said(&shell(folder.path(), &url, &script).output().unwrap());
    assert_eq!(code, Some(0), "{out}\n{err}");
    for told in ["\"text\":\"HELLO\"", "\"outcome\":\"completed\"", "\"value\":1"] {
        assert!(out.contains(told), "{told} is not in {out}");
    }
}

/// Completes a list of steps to a workflow document; other blocks are returned unchanged.
fn completed(block: &str) -> String {
    if !block.starts_with("- ") {
        return block.to_owned();
    }
    let steps: Vec<_> = block.lines().map(|line| format!("  {line}")).collect();
    format!("name: snippet\nsteps:\n{}\n", steps.join("\n"))
}

#[test]
fn every_workflow_in_the_docs_can_be_read() {
    let mut pages = vec![project().join("README.md")];
    let docs = std::fs::read_dir(project().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    pages.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    let mut read = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for block in blocks(&text, "yaml") {
            let whole = completed(&block);
            let problems = match block.contains("kind: Bundle") {
                true => Bundle::read(&whole).err(),
                false => WorkflowSource::read(&whole, Some("snippet")).err(),
            };
            assert!(problems.is_none(), "{}: {problems:?} in\n{block}", page.display());
            read += 1;
        }
        for block in blocks(&text, "json") {
            if let Some(spec) = block.starts_with('{').then(|| serde_json::from_str::<Spec>(&block)) {
                spec.unwrap_or_else(|error| panic!("{}: {error} in\n{block}", page.display()))
                    .build()
                    .unwrap();
            } else {
                serde_json::from_str::<Value>(&format!("{{{block}}}")).unwrap();
            }
            read += 1;
        }
    }
    assert!(read > 12, "{read}");
}
