//! Runs other programs, each within a time limit.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;
use std::{env, fs, thread};

/// A build from nothing on a slow machine.
pub(crate) const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

/// The compiler that [`lint_while_building`] has chosen.
static LINTS: OnceLock<PathBuf> = OnceLock::new();

/// As `cargo clippy -- -D warnings` would tell the compiler.
const DENY: &str = "-Dwarnings__CLIPPY_HACKERY__";

/// From now on the workspace is compiled by clippy, which is the compiler and its lints: one build makes the programs and
/// denies warnings, where `cargo clippy` would check all dependencies and the workspace a second time. Nothing is kept for
/// the next change of a crate, which makes a build from nothing a third faster.
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

/// What a program that has ended left behind.
pub(crate) struct Captured {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
}

/// The workspace's folder.
pub(crate) fn root() -> PathBuf {
    // Cargo says at run time where the package is: right even when the checkout was moved after the build.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest).parent().unwrap_or(Path::new(".")).to_path_buf()
}

/// A cargo command in the workspace, with the cargo that runs this program.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    if let Some(clippy) = LINTS.get() {
        command.env("CARGO_INCREMENTAL", "0").env("RUSTC_WORKSPACE_WRAPPER", clippy).env("CLIPPY_ARGS", DENY);
    }
    // `cargo run` describes xtask in these. Build scripts that watch them would run again for every change
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

/// Runs a command to its end; anything but success is an error.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<(), String> {
    let child = spawn(command)?;
    let status = wait(child, limit).map_err(|error| format!("`{}` {error}", shown(command)))?;
    succeeded(command, status)
}

/// Runs a command to its end and keeps its stdout, showing each line to `seen` as it comes.
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
        // A program that ends without reading its input has said why on stderr and in its status.
        let _ = pipe.write_all(stdin.as_bytes());
    }
    let status = wait(child, limit).map_err(|error| format!("`{}` {error}", shown(command)))?;
    let stdout = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
    Ok(Captured { status, stdout })
}

/// An error that names the command, unless it succeeded.
pub(crate) fn succeeded(command: &Command, status: ExitStatus) -> Result<(), String> {
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}", shown(command))) }
}

/// Builds the binaries of packages in release form and says where `name` is. Those that are needed together are built together:
/// each set of packages has its own features of what they share, and so its own build of it.
pub(crate) fn release_binary(packages: &[&str], name: &str) -> Result<PathBuf, String> {
    let mut build = cargo(["build", "--release", "--locked"]);
    for package in packages {
        build.args(["--package", package]);
    }
    run(&mut build, BUILD_LIMIT)?;
    Ok(target_folder()?.join("release").join(format!("{name}{}", env::consts::EXE_SUFFIX)))
}

/// Builds the server for trying it out, and says where it is. Not a release, which takes several times as long to compile.
pub(crate) fn quick_binary() -> Result<PathBuf, String> {
    run(&mut cargo(["build", "--package", "stepwell-server", "--bin", "stepwell"]), BUILD_LIMIT)?;
    Ok(target_folder()?.join("debug").join(format!("stepwell{}", env::consts::EXE_SUFFIX)))
}

/// A command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(OsStr::to_string_lossy).map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    if word.is_empty() || word.contains([' ', '"', '{', '*']) { format!("'{word}'") } else { word.to_owned() }
}

/// Where cargo puts what it builds, be it set by a variable, a configuration or not at all.
pub(crate) fn target_folder() -> Result<PathBuf, String> {
    let mut command = cargo(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let captured = capture(&mut command, "", BUILD_LIMIT, |_| ())?;
    succeeded(&command, captured.status)?;
    let metadata: serde_json::Value = serde_json::from_str(&captured.stdout)
        .map_err(|error| format!("`cargo metadata` printed something that is not JSON: {error}"))?;
    let folder = metadata["target_directory"].as_str();
    folder.map(PathBuf::from).ok_or_else(|| "`cargo metadata` names no target_directory".to_owned())
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    command.spawn().map_err(|error| format!("cannot start `{}`: {error}", shown(command)))
}

/// Waits for the end, and brings it about when the limit is over.
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

/// Killing cargo alone would leave the hanging test behind, holding on to our output.
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

/// Every process with its parent, where the system shows them.
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

/// The program's name comes before the parent, in parentheses, and may itself contain any of them.
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
    fn what_goes_in_comes_out() {
        let captured = capture(&mut Command::new("cat"), "one\ntwo\n", LIMIT, |_| ()).unwrap();
        assert!(captured.status.success());
        assert_eq!(captured.stdout, "one\ntwo\n");
    }

    /// The reader of the output ends, and drops what it was given, only when no process holds the pipe any more.
    #[test]
    fn a_program_over_its_limit_dies_with_its_children() {
        let (held, gone) = mpsc::channel::<()>();
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'sleep 100; true'; true"]);
        let seen = move |_: &str| {
            let _ = &held;
        };
        let Err(error) = capture(&mut command, "", Duration::from_millis(200), seen) else {
            panic!("the limit was not kept");
        };
        assert!(error.contains("was killed"), "{error}");
        assert_eq!(gone.recv_timeout(LIMIT), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn the_parent_is_found_behind_an_odd_name() {
        assert_eq!(parent_in("12 (a) b (c)) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("garbage"), None);
    }
}
