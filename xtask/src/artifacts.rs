//! Builds tests, examples and programs with one set of options, and finds the resulting executables.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

use crate::process;

/// Options of every build. Cargo unifies features over the selected packages, so any other selection would compile a
/// second copy of nearly every dependency.
pub(crate) const EVERYTHING: [&str; 3] = ["--workspace", "--all-features", "--locked"];

/// Environment variable with the path of cargo's build messages. If set, that build is used instead of building again.
pub(crate) const FILE: &str = "STEPWELL_ARTIFACTS";

/// The executables of one build.
pub(crate) struct Artifacts(Vec<Executable>);

/// One executable of a build.
#[derive(Debug, PartialEq)]
pub(crate) struct Executable {
    pub(crate) kind: Kind,
    /// Name of the cargo target.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Folder of the package, in which cargo runs its tests.
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Test,
    Program,
    Example,
}

impl Artifacts {
    /// Builds the targets selected by cargo's `options`, or reads the build that [`FILE`] names.
    pub(crate) fn of(options: &[&str]) -> Result<Artifacts, String> {
        match env::var_os(FILE) {
            Some(path) => fs::read_to_string(&path)
                .map(|messages| Artifacts::read(&messages))
                .map_err(|error| format!("cannot read {FILE}={}: {error}", path.display())),
            None => Ok(Artifacts::read(&built(options)?)),
        }
    }

    /// Builds the targets selected by cargo's `options` and writes cargo's messages to [`file()`].
    pub(crate) fn build_and_keep(options: &[&str]) -> Result<Artifacts, String> {
        let messages = built(options)?;
        let path = file()?;
        fs::write(&path, &messages).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Artifacts::read(&messages))
    }

    fn read(messages: &str) -> Artifacts {
        let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Artifacts(messages.filter_map(|message| Executable::read(&message)).collect())
    }

    pub(crate) fn program(&self, name: &str) -> Result<PathBuf, String> {
        self.find(Kind::Program, name).map(|found| found.path.clone())
    }

    pub(crate) fn find(&self, kind: Kind, name: &str) -> Result<&Executable, String> {
        let found = self.0.iter().find(|executable| executable.kind == kind && executable.name == name);
        found.ok_or_else(|| format!("the build made no {kind:?} `{name}`"))
    }

    /// Returns the examples, sorted by name.
    pub(crate) fn examples(&self) -> Vec<&Executable> {
        self.all(Kind::Example)
    }

    /// Returns the test executables, sorted by name.
    pub(crate) fn tests(&self) -> Vec<&Executable> {
        self.all(Kind::Test)
    }

    fn all(&self, kind: Kind) -> Vec<&Executable> {
        let mut found: Vec<_> = self.0.iter().filter(|executable| executable.kind == kind).collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }
}

/// Returns the file to which [`Artifacts::build_and_keep`] writes.
pub(crate) fn file() -> Result<PathBuf, String> {
    Ok(process::target_folder()?.join("xtask/artifacts.json"))
}

/// Builds the targets and returns cargo's messages.
fn built(options: &[&str]) -> Result<String, String> {
    let mut command = process::cargo(["build", "--message-format", "json-render-diagnostics"]);
    command.args(EVERYTHING).args(options);
    let captured = process::capture(&mut command, "", process::BUILD_LIMIT, |_| ())?;
    process::succeeded(&command, captured.status)?;
    Ok(captured.stdout)
}

impl Executable {
    fn read(message: &Value) -> Option<Executable> {
        let kind = match (message["profile"]["test"].as_bool()?, message["target"]["kind"][0].as_str()?) {
            (true, _) => Kind::Test,
            (false, "bin") => Kind::Program,
            (false, "example") => Kind::Example,
            _ => return None,
        };
        Some(Executable {
            kind,
            name: message["target"]["name"].as_str()?.to_owned(),
            path: message["executable"].as_str()?.into(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    }

    /// Returns a command that runs the executable as cargo would.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn executables_are_read_from_cargos_messages() {
        let artifact = |kind: &str, name: &str, test: bool, executable: Option<&str>| {
            json!({"reason": "compiler-artifact", "manifest_path": "/p/a/Cargo.toml", "profile": {"test": test},
                "target": {"kind": [kind], "name": name}, "executable": executable})
        };
        let messages = [
            artifact("lib", "a", false, None),
            artifact("lib", "a", true, Some("/t/a-1")),
            artifact("bin", "b", false, Some("/t/b")),
            artifact("example", "z", false, Some("/t/z")),
            artifact("example", "e", false, Some("/t/e")),
            json!({"reason": "build-finished", "success": true}),
        ];
        let text: Vec<String> = messages.iter().map(ToString::to_string).collect();
        let artifacts = Artifacts::read(&text.join("\n"));
        assert_eq!(artifacts.0.len(), 4);
        assert_eq!(artifacts.program("b").unwrap(), PathBuf::from("/t/b"));
        assert_eq!(artifacts.find(Kind::Test, "a").unwrap().folder, PathBuf::from("/p/a"));
        assert_eq!(artifacts.examples().iter().map(|found| &found.name[..]).collect::<Vec<_>>(), ["e", "z"]);
        assert!(artifacts.program("a").unwrap_err().contains("`a`"));
    }
}
