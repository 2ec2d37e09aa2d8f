//! Names, run ids and definition hashes.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::limits::Limits;

/// The name of a workflow, place, transition, signal, action or guard.
///
/// Cloning only increments a reference count, because a snapshot repeats the names of its definition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Name(Arc<str>);

impl Name {
    /// Returns the name as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the reason why this is not a valid name, or `None` if it is valid.
    ///
    /// Names are displayed, stored and used in URLs and history actions. The prefix `__` is reserved for the engine.
    pub fn invalid_reason(&self, limits: &Limits) -> Option<String> {
        let bad = |reason: &str| format!("`{self}` is not a valid name: {reason}");
        if self.is_empty() {
            return Some(bad("it is empty"));
        }
        if self.starts_with("__") {
            return Some(bad("names that start with `__` are reserved for the engine"));
        }
        if self.trim() != self.as_str() || self.chars().any(char::is_control) {
            return Some(bad("it contains control characters, or starts or ends with white space"));
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

/// The id of a run, which is one execution of a definition. The program that starts the run creates the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(uuid::Uuid);

impl RunId {
    /// Wraps a UUID. The engine uses UUID version 7, so that ids sort by creation time.
    pub const fn new(id: uuid::Uuid) -> Self {
        RunId(id)
    }

    /// Returns the all-zero id, for examples and tests.
    pub const fn nil() -> Self {
        RunId(uuid::Uuid::nil())
    }

    /// Returns the id as a UUID.
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

/// The SHA-256 hash of a definition's canonical form. Runs are pinned to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefinitionHash([u8; 32]);

impl DefinitionHash {
    /// Computes the hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        DefinitionHash(Sha256::digest(bytes).into())
    }

    /// Wraps the 32 bytes of a hash, for example bytes read from a store.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        DefinitionHash(bytes)
    }

    /// Returns the 32 bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the first twelve hex digits, for messages.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl DefinitionHash {
    /// Calls `with` with the 64 hex digits. Does not allocate, because every snapshot that is written contains them.
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

/// The error for a text that is not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a definition hash: expected 64 hex digits")]
pub struct InvalidHash(String);

impl FromStr for DefinitionHash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || InvalidHash(text.to_owned());
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
