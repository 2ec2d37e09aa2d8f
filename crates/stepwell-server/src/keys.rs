//! The file with the keys that seal tokens: reading it, following its changes, and the commands that make and rotate it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use stepwell::flow::{Key, KeyRing};

use crate::exit::{Code, Failure};
use crate::own_key::write_secret;

/// Interval between two checks of the key file for changes.
const CHECKED_EVERY: Duration = Duration::from_secs(1);

fn wrong(file: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Invalid, format!("{}: {why}", file.display()))
}

/// Parses the keys of a file: one `id:key` per line, the first for new tokens. Ignores lines that start with `#`.
fn parse(file: &Path, text: &str) -> Result<Vec<Key>, Failure> {
    let mut keys: Vec<Key> = Vec::new();
    for (number, line) in
        text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
    {
        let at = |why: &dyn std::fmt::Display| wrong(file, format!("line {}: {why}", number + 1));
        let (id, key) = line.trim().split_once(':').ok_or_else(|| at(&"expected `id:key`"))?;
        let key = Key::read(id, key).map_err(|error| at(&error))?;
        if keys.iter().any(|known| known.id() == key.id()) {
            return Err(at(&format!("key `{id}` is in the file twice")));
        }
        keys.push(key);
    }
    if keys.is_empty() {
        return Err(wrong(file, "the file contains no key: `stepwell key create FILE` makes one"));
    }
    Ok(keys)
}

/// Reads the keys that seal tokens.
pub(crate) fn ring(file: &Path) -> Result<KeyRing, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| wrong(file, error))?;
    let mut keys = parse(file, &text)?.into_iter();
    let first = keys.next().expect("a parsed file has at least one key");
    let ring = KeyRing::new(first);
    keys.try_for_each(|key| ring.accept(key)).map_err(|error| wrong(file, error))?;
    Ok(ring)
}

/// The lines of a key file. Comments and blank lines stay where they are.
pub(crate) struct KeyFile {
    path: PathBuf,
    lines: Vec<String>,
}

impl KeyFile {
    /// Starts a new file.
    pub(crate) fn new(path: &Path) -> Self {
        let about = "# Keys that seal tokens. The first one seals new tokens, all of them open tokens. Keep this file secret.";
        KeyFile { path: path.to_owned(), lines: vec![about.to_owned()] }
    }

    /// Reads a file and checks its keys.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::new(Code::NotFound, format!("{}: {error}", path.display())))?;
        parse(path, &text)?;
        Ok(KeyFile { path: path.to_owned(), lines: text.lines().map(str::to_owned).collect() })
    }

    /// Returns the ids of the keys with their lines, the sealing key first.
    fn places(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.lines.iter().enumerate().filter(|(_, line)| !line.starts_with('#'));
        lines.filter_map(|(number, line)| Some((number, line.trim().split_once(':')?.0)))
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.places().map(|(_, id)| id.to_owned()).collect()
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.places().any(|(_, known)| known == id)
    }

    fn place(&self, id: &str) -> Result<usize, Failure> {
        let ids: Vec<_> = self.ids().iter().map(|id| format!("`{id}`")).collect();
        self.places().find(|(_, known)| *known == id).map(|(number, _)| number).ok_or_else(|| {
            let why = format!("{} has no key `{id}`; its keys are {}", self.path.display(), ids.join(", "));
            Failure::new(Code::NotFound, why)
        })
    }

    /// Adds a key, before all others if it seals new tokens.
    pub(crate) fn add(&mut self, key: &Key, seals: bool) -> Result<(), Failure> {
        if self.has(key.id()) {
            let why = format!("{} has a key `{}` already: choose another id", self.path.display(), key.id());
            return Err(Failure::new(Code::Conflict, why));
        }
        let first = self.places().next().map(|(number, _)| number);
        let at = first.filter(|_| seals).unwrap_or(self.lines.len());
        self.lines.insert(at, format!("{}:{}", key.id(), key.reveal()));
        Ok(())
    }

    /// Makes this key the one that seals new tokens.
    pub(crate) fn activate(&mut self, id: &str) -> Result<(), Failure> {
        let line = self.lines.remove(self.place(id)?);
        let first = self.places().next().map_or(self.lines.len(), |(number, _)| number);
        self.lines.insert(first, line);
        Ok(())
    }

    /// Removes a key that seals no new tokens.
    pub(crate) fn remove(&mut self, id: &str) -> Result<(), Failure> {
        let place = self.place(id)?;
        if self.places().next().is_some_and(|(first, _)| first == place) {
            let why = format!("key `{id}` seals new tokens: activate or add another key first");
            return Err(Failure::new(Code::Conflict, why));
        }
        self.lines.remove(place);
        Ok(())
    }

    /// Replaces the file in one step, so that a server never reads half of it. Only its owner can read it.
    pub(crate) fn write(&self) -> Result<(), Failure> {
        let mut next = self.path.clone().into_os_string();
        next.push(format!(".{}.new", std::process::id()));
        let next = PathBuf::from(next);
        write_secret(&next, &(self.lines.join("\n") + "\n"))?;
        std::fs::rename(&next, &self.path)
            .map_err(|error| Failure::unexpected(wrong(&self.path, error).message))
    }
}

/// Reads the file again whenever it changes. An unreadable file changes nothing and is logged.
pub(crate) async fn follow(file: PathBuf, ring: KeyRing) {
    let mut known = std::fs::read_to_string(&file).unwrap_or_default();
    loop {
        tokio::time::sleep(CHECKED_EVERY).await;
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        if text == known {
            continue;
        }
        match parse(&file, &text).map(|keys| ring.replace(keys)) {
            Ok(Ok(())) => tracing::info!(keys = ?ring.ids(), "the key file has changed and was read again"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the key file has changed, but the old keys stay in use");
            }
            Err(failure) => {
                tracing::warn!(error = %failure.message, "the key file has changed, but the old keys stay in use");
            }
        }
        known = text;
    }
}
