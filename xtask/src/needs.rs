//! Checks that the programs a build needs are installed, and installs them where that is allowed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use crate::process;

/// A program that the machine needs and cargo does not install.
pub(crate) struct Need {
    /// Searched in `PATH` and in Debian's folders of PostgreSQL programs. `ensurepip` is a Python module instead.
    program: &'static str,
    /// Debian packages that contain the program.
    packages: &'static [&'static str],
    why: &'static str,
}

/// Needs of building the server.
pub(crate) const BUILD: &[Need] =
    &[Need { program: "cc", packages: &["gcc", "libc6-dev"], why: "the bundled SQLite is compiled from C" }];

/// Needs of all tests and proofs.
pub(crate) const TESTS: &[Need] = &[
    Need { program: "cc", packages: &["gcc", "libc6-dev"], why: "the bundled SQLite is compiled from C" },
    Need { program: "git", packages: &["git"], why: "tidy gets the list of files from it" },
    Need {
        program: "postgres",
        packages: &[POSTGRESQL],
        why: "the PostgreSQL backend is tested on a real server",
    },
    Need {
        program: "psql",
        packages: &[POSTGRESQL],
        why: "the proof `first-hour` sets up a database as docs/postgres.md says",
    },
    Need {
        program: "python3",
        packages: &["python3"],
        why: "schemathesis, which checks the server against its contract, and an example worker",
    },
    Need {
        program: "node",
        packages: &["nodejs"],
        why: "runs the TypeScript example worker and the JSONata reference",
    },
    Need {
        program: "npm",
        packages: &["npm"],
        why: "installs the TypeScript compiler and the JSONata reference",
    },
    Need {
        program: ENSUREPIP,
        packages: &["python3-venv"],
        why: "schemathesis is installed into its own virtual environment",
    },
];

/// Python module that creates virtual environments; Debian has it in a separate package.
const ENSUREPIP: &str = "ensurepip";

const POSTGRESQL: &str = "postgresql";

/// Debian's folder with one subfolder per PostgreSQL version, each with its programs in `bin`.
const POSTGRESQL_VERSIONS: &str = "/usr/lib/postgresql";

/// Path and content of a setting: while the file exists, installing Debian's package starts no server.
const NO_SERVER: (&str, &str) =
    ("/etc/postgresql-common/createcluster.d/stepwell.conf", "create_main_cluster = false\n");

const INSTALL_LIMIT: Duration = Duration::from_secs(10 * 60);

/// The action for unmet needs.
#[derive(Debug, PartialEq)]
enum Remedy {
    Nothing,
    Install(Vec<&'static str>),
    Ask(String),
}

/// Installs missing programs where that is allowed. Otherwise the error says what to install.
pub(crate) fn ensure(needs: &[Need]) -> Result<(), String> {
    match remedy(needs, is_there, || in_path("apt-get") && is_root()) {
        Remedy::Nothing => Ok(()),
        Remedy::Install(packages) => install(&packages),
        Remedy::Ask(message) => Err(message),
    }
}

/// Like [`ensure`], but never installs anything.
pub(crate) fn check(needs: &[Need]) -> Result<(), String> {
    match remedy(needs, is_there, || false) {
        Remedy::Nothing | Remedy::Install(_) => Ok(()),
        Remedy::Ask(message) => Err(message),
    }
}

fn remedy(needs: &[Need], present: impl Fn(&str) -> bool, may_install: impl Fn() -> bool) -> Remedy {
    let missing: Vec<&Need> = needs.iter().filter(|need| !present(need.program)).collect();
    if missing.is_empty() {
        return Remedy::Nothing;
    }
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages).copied().collect();
    if may_install() {
        return Remedy::Install(packages);
    }
    let whys: Vec<String> =
        missing.iter().map(|need| format!("`{}` is missing ({})", need.program, need.why)).collect();
    Remedy::Ask(format!("{}; on Debian: apt-get install {}", whys.join(", "), packages.join(" ")))
}

fn install(packages: &[&str]) -> Result<(), String> {
    eprintln!("xtask: installing {} from the system's packages", packages.join(" "));
    let apt_get = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    process::run(apt_get().arg("update"), INSTALL_LIMIT)?;
    let mut command = apt_get();
    command.args(["install", "-y", "--no-install-recommends"]).args(packages);
    if packages.contains(&POSTGRESQL) {
        without_server(Path::new(NO_SERVER.0), || process::run(&mut command, INSTALL_LIMIT))
    } else {
        process::run(&mut command, INSTALL_LIMIT)
    }
}

/// Runs an installation with the setting file in place. Removes the file afterwards, so that later installations are
/// unaffected.
fn without_server(path: &Path, install: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, NO_SERVER.1))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    let installed = install();
    fs::remove_file(path).map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
    installed
}

fn is_there(program: &str) -> bool {
    in_path(program) || in_versions(Path::new(POSTGRESQL_VERSIONS), program) || is_module(program)
}

fn is_module(name: &str) -> bool {
    let import = format!("import {name}");
    name == ENSUREPIP
        && Command::new("python3").args(["-c", &import]).output().is_ok_and(|output| output.status.success())
}

fn in_versions(versions: &Path, program: &str) -> bool {
    let mut found = fs::read_dir(versions).into_iter().flatten().flatten();
    found.any(|version| version.path().join("bin").join(program).is_file())
}

fn in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .any(|folder| fs::metadata(folder.join(program)).is_ok_and(|found| found.is_file()))
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn nothing_is_installed_if_nothing_is_missing() {
        assert_eq!(remedy(TESTS, |_| true, || panic!("must not be called")), Remedy::Nothing);
    }

    #[test]
    fn missing_packages_are_installed_if_allowed() {
        let remedy = remedy(TESTS, |program| program != "cc", || true);
        assert_eq!(remedy, Remedy::Install(vec!["gcc", "libc6-dev"]));
    }

    #[test]
    fn missing_packages_are_named_with_reason() {
        let Remedy::Ask(message) = remedy(TESTS, |program| program != "cc", || false) else {
            panic!("must ask");
        };
        assert!(message.contains("`cc` is missing (the bundled SQLite"), "{message}");
        assert!(message.contains("apt-get install gcc libc6-dev"), "{message}");
    }

    #[test]
    fn programs_are_found_in_the_path() {
        assert!(in_path("sh"));
        assert!(!in_path("no-program-has-this-name"));
    }

    /// Returns the path of a folder that does not exist yet.
    fn scratch(name: &str) -> PathBuf {
        env::temp_dir().join(format!("stepwell-needs-{name}-{}", std::process::id()))
    }

    #[test]
    fn programs_are_found_in_any_version() {
        let versions = scratch("versions");
        assert!(!in_versions(&versions, "postgres"));
        fs::create_dir_all(versions.join("16/bin")).unwrap();
        fs::write(versions.join("16/bin/postgres"), "").unwrap();
        assert!(in_versions(&versions, "postgres"));
        assert!(!in_versions(&versions, "initdb"));
        fs::remove_dir_all(versions).unwrap();
    }

    #[test]
    fn installation_starts_no_server_and_cleans_up() {
        let folder = scratch("no-server");
        let path = folder.join("createcluster.d/stepwell.conf");
        let install = || {
            assert_eq!(fs::read_to_string(&path).unwrap(), NO_SERVER.1);
            Err("no network".to_owned())
        };
        assert_eq!(without_server(&path, install), Err("no network".to_owned()));
        assert!(!path.exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
