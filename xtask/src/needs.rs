//! Sees to it that the programs a build needs are there, installing them where that is ours to do.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use crate::process;

/// Something the machine must have that cargo does not bring.
pub(crate) struct Need {
    /// Looked for in `PATH` and where Debian keeps the programs of a PostgreSQL server; one of them is a module of Python.
    program: &'static str,
    /// Debian's packages that bring it.
    packages: &'static [&'static str],
    why: &'static str,
}

/// What the server is built with.
pub(crate) const BUILD: &[Need] =
    &[Need { program: "cc", packages: &["gcc", "libc6-dev"], why: "the bundled SQLite is compiled from C" }];

/// What all tests and proofs need.
pub(crate) const TESTS: &[Need] = &[
    Need { program: "cc", packages: &["gcc", "libc6-dev"], why: "the bundled SQLite is compiled from C" },
    Need { program: "git", packages: &["git"], why: "tidy asks it which files belong to the project" },
    Need {
        program: "postgres",
        packages: &[POSTGRESQL],
        why: "the PostgreSQL backend is tested on a real server",
    },
    Need {
        program: "python3",
        packages: &["python3"],
        why: "schemathesis, which holds the server to its contract, and an example worker",
    },
    Need {
        program: "node",
        packages: &["nodejs"],
        why: "the example worker in TypeScript is run, and the reference of JSONata",
    },
    Need {
        program: "npm",
        packages: &["npm"],
        why: "the compiler of TypeScript and the reference of JSONata come from there",
    },
    Need {
        program: ENSUREPIP,
        packages: &["python3-venv"],
        why: "schemathesis gets an environment of its own",
    },
];

/// The module of Python that makes environments; Debian has it in a package of its own.
const ENSUREPIP: &str = "ensurepip";

const POSTGRESQL: &str = "postgresql";

/// One folder per version, with the programs in its `bin`.
const POSTGRESQL_VERSIONS: &str = "/usr/lib/postgresql";

/// While this is there, Debian's package starts no server of its own when it is installed.
const NO_SERVER: (&str, &str) =
    ("/etc/postgresql-common/createcluster.d/stepwell.conf", "create_main_cluster = false\n");

const INSTALL_LIMIT: Duration = Duration::from_secs(10 * 60);

/// What to do about the needs that are not met.
#[derive(Debug, PartialEq)]
enum Remedy {
    Nothing,
    Install(Vec<&'static str>),
    Ask(String),
}

/// Makes sure that every need is met: installs what is missing where that is allowed, else says what to install.
pub(crate) fn ensure(needs: &[Need]) -> Result<(), String> {
    match remedy(needs, is_there, || in_path("apt-get") && is_root()) {
        Remedy::Nothing => Ok(()),
        Remedy::Install(packages) => install(&packages),
        Remedy::Ask(message) => Err(message),
    }
}

/// Like [`ensure`], but installs nothing.
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

/// Keeps the setting only for the installation: what the machine's owner installs later is theirs.
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
    fn nothing_is_done_when_everything_is_there() {
        assert_eq!(remedy(TESTS, |_| true, || panic!("must not be asked")), Remedy::Nothing);
    }

    #[test]
    fn what_is_missing_is_installed_where_that_is_allowed() {
        let remedy = remedy(TESTS, |program| program != "cc", || true);
        assert_eq!(remedy, Remedy::Install(vec!["gcc", "libc6-dev"]));
    }

    #[test]
    fn elsewhere_the_person_is_told_what_and_why() {
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

    /// The path of a folder that does not exist yet.
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
    fn no_server_is_started_by_the_installation_and_nothing_stays_behind() {
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
