//! The names and ids that tie a run, its definition and its parts together.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::limits::Limits;

/// A name an author gave to something: a workflow, place, transition, signal, action or guard.
///
/// Cloning costs a reference count, because a snapshot repeats the names of its definition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Name(Arc<str>);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Why it cannot be a name, if it cannot: names are shown, stored and put into URLs and history actions; `__` begins
    /// the engine's own.
    pub fn fault(&self, limits: &Limits) -> Option<String> {
        let bad = |reason: &str| format!("`{self}` is not a name: {reason}");
        if self.is_empty() {
            return Some(bad("it is empty"));
        }
        if self.starts_with("__") {
            return Some(bad("names that begin with `__` belong to the engine"));
        }
        if self.trim() != self.as_str() || self.chars().any(char::is_control) {
            return Some(bad("it has control characters or white space around it"));
        }
        limits.name_chars("the name", self.chars().count()).err().map(|exceeded| bad(&exceeded.to_string()))
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Name(text.into())
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        Name(text.into())
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

/// Which run (an execution of a definition). Made by whoever starts it; core only carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(uuid::Uuid);

impl RunId {
    /// A run id from a UUID (the engine uses version 7, so that ids sort by time).
    pub const fn new(id: uuid::Uuid) -> Self {
        RunId(id)
    }

    /// The all-zero id, for examples and tests.
    pub const fn nil() -> Self {
        RunId(uuid::Uuid::nil())
    }

    /// The UUID.
    pub const fn uuid(self) -> uuid::Uuid {
        self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for RunId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(RunId)
    }
}

/// SHA-256 over a definition's canonical form: what a run is pinned to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefinitionHash([u8; 32]);

impl DefinitionHash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        DefinitionHash(Sha256::digest(bytes).into())
    }

    /// A hash from its bytes, as a store keeps them.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        DefinitionHash(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first twelve hex digits, for messages.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl DefinitionHash {
    /// Calls `with` with the 64 hex digits; every snapshot that is written has them, so they are made without allocating.
    fn hex<T>(&self, with: impl FnOnce(&str) -> T) -> T {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (index, byte) in self.0.iter().enumerate() {
            text[index * 2] = DIGITS[usize::from(byte >> 4)];
            text[index * 2 + 1] = DIGITS[usize::from(byte & 15)];
        }
        with(std::str::from_utf8(&text).expect("hex digits are ASCII"))
    }
}

impl fmt::Display for DefinitionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hex(|text| f.write_str(text))
    }
}

impl fmt::Debug for DefinitionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DefinitionHash({})", self.short())
    }
}

/// The text was not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a definition hash: 64 hex digits are expected")]
pub struct NotAHash(String);

impl FromStr for DefinitionHash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NotAHash(text.to_owned());
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[index * 2..index * 2 + 2], 16).map_err(|_| wrong())?;
        }
        Ok(DefinitionHash(bytes))
    }
}

impl Serialize for DefinitionHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.hex(|text| serializer.serialize_str(text))
    }
}

impl<'de> Deserialize<'de> for DefinitionHash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
