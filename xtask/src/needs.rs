//! Sees to it that the programs a build needs are there, installing them where that is ours to do.

use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use crate::process;

/// Something the machine must have that cargo does not bring.
struct Need {
    /// Looked for in `PATH`.
    program: &'static str,
    /// Debian's packages that bring it.
    packages: &'static [&'static str],
    why: &'static str,
}

const NEEDS: &[Need] = &[
    Need { program: "cc", packages: &["gcc", "libc6-dev"], why: "the bundled SQLite is compiled from C" },
    Need { program: "git", packages: &["git"], why: "tidy asks it which files belong to the project" },
];

const INSTALL_LIMIT: Duration = Duration::from_secs(10 * 60);

/// What to do about the needs that are not met.
#[derive(Debug, PartialEq)]
enum Remedy {
    Nothing,
    Install(Vec<&'static str>),
    Ask(String),
}

/// Makes sure that every need is met, or says what to install.
pub(crate) fn ensure() -> Result<(), String> {
    match remedy(NEEDS, in_path, || in_path("apt-get") && is_root()) {
        Remedy::Nothing => Ok(()),
        Remedy::Install(packages) => install(&packages),
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
    process::run(apt_get().args(["install", "-y", "--no-install-recommends"]).args(packages), INSTALL_LIMIT)
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

    #[test]
    fn nothing_is_done_when_everything_is_there() {
        assert_eq!(remedy(NEEDS, |_| true, || panic!("must not be asked")), Remedy::Nothing);
    }

    #[test]
    fn what_is_missing_is_installed_where_that_is_allowed() {
        let remedy = remedy(NEEDS, |program| program != "cc", || true);
        assert_eq!(remedy, Remedy::Install(vec!["gcc", "libc6-dev"]));
    }

    #[test]
    fn elsewhere_the_person_is_told_what_and_why() {
        let Remedy::Ask(message) = remedy(NEEDS, |program| program != "cc", || false) else {
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
}
