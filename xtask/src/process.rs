//! Runs other programs, each within a time limit.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;
use std::{env, fs, thread};

/// Time limit of a full build on a slow machine.
pub(crate) const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Path of `clippy-driver`, set by [`lint_while_building`].
static LINTS: OnceLock<PathBuf> = OnceLock::new();

/// Clippy arguments, encoded like those of `cargo clippy -- -D warnings`.
const DENY: &str = "-Dwarnings__CLIPPY_HACKERY__";

/// Compiles the workspace with clippy from now on. One build then produces the programs and denies warnings, while
/// `cargo clippy` would check all dependencies and the workspace a second time. Incremental compilation is off, which
/// makes a full build a third faster.
pub(crate) fn lint_while_building() -> Result<(), String> {
    let mut command = Command::new("rustc");
    let captured = capture(command.args(["--print", "sysroot"]), "", BUILD_LIMIT, |_| ())?;
    succeeded(&command, captured.status)?;
    let clippy = Path::new(captured.stdout.trim()).join("bin/clippy-driver");
    if !clippy.is_file() {
        return Err(format!("{} is missing: rustup component add clippy", clippy.display()));
    }
    LINTS.get_or_init(|| clippy);
    Ok(())
}

/// The exit status and the output of a program.
pub(crate) struct Captured {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
}

/// Returns the folder of the workspace.
pub(crate) fn root() -> PathBuf {
    // Cargo sets the variable at run time, which is correct even if the checkout was moved after the build.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest).parent().unwrap_or(Path::new(".")).to_path_buf()
}

/// Returns a cargo command in the workspace, with the cargo that runs this program.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    if let Some(clippy) = LINTS.get() {
        command.env("CARGO_INCREMENTAL", "0").env("RUSTC_WORKSPACE_WRAPPER", clippy).env("CLIPPY_ARGS", DENY);
    }
    // `cargo run` describes xtask in these variables. Build scripts that watch them would rerun for every change
    // between `cargo xtask test` and a plain `cargo test`.
    for (name, _) in env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end. Any status but success is an error.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<(), String> {
    let child = spawn(command)?;
    let status = wait(child, limit).map_err(|error| format!("`{}` {error}", shown(command)))?;
    succeeded(command, status)
}

/// Runs a command to its end and returns its stdout. Passes each line to `seen` as it arrives.
pub(crate) fn capture(
    command: &mut Command,
    stdin: &str,
    limit: Duration,
    seen: impl Fn(&str) + Send + 'static,
) -> Result<Captured, String> {
    let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let reader = child.stdout.take().map(|stdout| {
        thread::spawn(move || {
            let mut text = String::new();
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                seen(&line);
                text.push_str(&line);
                text.push('\n');
            }
            text
        })
    });
    if let Some(mut pipe) = child.stdin.take() {
        // A program that ends without reading its input explains that on stderr and in its status.
        let _ = pipe.write_all(stdin.as_bytes());
    }
    let status = wait(child, limit).map_err(|error| format!("`{}` {error}", shown(command)))?;
    let stdout = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
    Ok(Captured { status, stdout })
}

/// Returns an error that names the command, unless it succeeded.
pub(crate) fn succeeded(command: &Command, status: ExitStatus) -> Result<(), String> {
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}", shown(command))) }
}

/// Builds the binaries of packages in release mode and returns the path of `name`. Packages that are needed together
/// are built together: each set of packages has its own features of shared dependencies, and so its own build of them.
pub(crate) fn release_binary(packages: &[&str], name: &str) -> Result<PathBuf, String> {
    let mut build = cargo(["build", "--release", "--locked"]);
    for package in packages {
        build.args(["--package", package]);
    }
    run(&mut build, BUILD_LIMIT)?;
    Ok(target_folder()?.join("release").join(format!("{name}{}", env::consts::EXE_SUFFIX)))
}

/// Builds the server in debug mode and returns its path. A release build takes several times as long.
pub(crate) fn quick_binary() -> Result<PathBuf, String> {
    run(&mut cargo(["build", "--package", "stepwell-server", "--bin", "stepwell"]), BUILD_LIMIT)?;
    Ok(target_folder()?.join("debug").join(format!("stepwell{}", env::consts::EXE_SUFFIX)))
}

/// Returns a command as it would be typed in a shell.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(OsStr::to_string_lossy).map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    if word.is_empty() || word.contains([' ', '"', '{', '*']) { format!("'{word}'") } else { word.to_owned() }
}

/// Returns cargo's target folder, however it is configured.
pub(crate) fn target_folder() -> Result<PathBuf, String> {
    let mut command = cargo(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let captured = capture(&mut command, "", BUILD_LIMIT, |_| ())?;
    succeeded(&command, captured.status)?;
    let metadata: serde_json::Value = serde_json::from_str(&captured.stdout)
        .map_err(|error| format!("`cargo metadata` did not print JSON: {error}"))?;
    let folder = metadata["target_directory"].as_str();
    folder.map(PathBuf::from).ok_or_else(|| "`cargo metadata` names no target_directory".to_owned())
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    command.spawn().map_err(|error| format!("cannot start `{}`: {error}", shown(command)))
}

/// Waits for the end of a process and kills it after the limit.
fn wait(mut child: Child, limit: Duration) -> Result<ExitStatus, String> {
    let id = child.id();
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send(child.wait()));
    match end.recv_timeout(limit) {
        Ok(status) => status.map_err(|error| format!("could not be waited for: {error}")),
        Err(_) => {
            kill_with_descendants(id);
            Err(format!("did not end within {} s and was killed", limit.as_secs()))
        }
    }
}

/// Kills a process and its descendants. Killing cargo alone would leave a hanging test behind that keeps our output
/// open.
fn kill_with_descendants(id: u32) {
    let mut ids = vec![id];
    let parents = parents();
    let mut next = 0;
    while let Some(&parent) = ids.get(next) {
        ids.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
        next += 1;
    }
    // The shell's own `kill`, since the program is not on every machine.
    let mut kill = Command::new("sh");
    kill.args(["-c", "kill -KILL \"$@\"", "kill"]).args(ids.iter().map(u32::to_string));
    let _ = kill.stderr(Stdio::null()).status();
}

/// Returns every process with its parent, where the system provides them.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((id, parent_in(&stat)?))
        })
        .collect()
}

/// Extracts the parent from a `stat` line. The program name before it is in parentheses and may itself contain
/// parentheses and spaces.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn a_failure_names_the_command() {
        let error = run(Command::new("sh").args(["-c", "exit 3"]), LIMIT).unwrap_err();
        assert!(error.contains("sh -c 'exit 3'") && error.contains('3'), "{error}");
    }

    #[test]
    fn output_is_captured() {
        let captured = capture(&mut Command::new("cat"), "one\ntwo\n", LIMIT, |_| ()).unwrap();
        assert!(captured.status.success());
        assert_eq!(captured.stdout, "one\ntwo\n");
    }

    /// The reader of the output ends, and drops its closure, only when no process holds the pipe any more.
    #[test]
    fn timeout_kills_program_and_descendants() {
        let (held, gone) = mpsc::channel::<()>();
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'sleep 100; true'; true"]);
        let seen = move |_: &str| {
            let _ = &held;
        };
        let Err(error) = capture(&mut command, "", Duration::from_millis(200), seen) else {
            panic!("the limit was not enforced");
        };
        assert!(error.contains("was killed"), "{error}");
        assert_eq!(gone.recv_timeout(LIMIT), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn parent_is_found_after_an_odd_name() {
        assert_eq!(parent_in("12 (a) b (c)) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("garbage"), None);
    }
}
