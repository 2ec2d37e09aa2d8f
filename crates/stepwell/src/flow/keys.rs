//! The keys under which tokens are sealed: one for writing, any number for reading, each with an id.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use pasetors::Local;
use pasetors::keys::SymmetricKey;
use pasetors::token::UntrustedToken;
use pasetors::version4::{LocalToken, V4};

/// Characters an id may have at most.
const MAX_ID_CHARS: usize = 64;

/// Why a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The id is none.
    #[error("`{0}` is not a key id: use 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`")]
    Id(String),
    /// The key has another length.
    #[error("a key has 32 bytes, and `{id}` has {actual}")]
    Length {
        /// The key.
        id: String,
        /// How many bytes it has.
        actual: usize,
    },
    /// The text is no key.
    #[error("`{id}` is not the base64 of a key")]
    Text {
        /// The key.
        id: String,
    },
    /// Another key has the id.
    #[error("there is another key `{0}`: a new key needs a new id")]
    Taken(String),
    /// There is no such key.
    #[error("there is no key `{0}`")]
    Unknown(String),
    /// It is the one that writes.
    #[error("key `{0}` seals new tokens: put another in its place first")]
    InUse(String),
    /// The system gave no randomness.
    #[error("the system gave no randomness: {0}")]
    Randomness(String),
}

/// A key and its id. The id is written into every token sealed under it, for all to see.
#[derive(Clone)]
pub struct Key {
    id: String,
    secret: Arc<SymmetricKey<V4>>,
}

impl Key {
    /// A key of 32 bytes.
    pub fn new(id: impl Into<String>, bytes: &[u8]) -> Result<Self, KeyError> {
        let id = id.into();
        if !is_id(&id) {
            return Err(KeyError::Id(id));
        }
        match SymmetricKey::from(bytes) {
            Ok(secret) => Ok(Key { id, secret: Arc::new(secret) }),
            Err(_) => Err(KeyError::Length { id, actual: bytes.len() }),
        }
    }

    /// A new key from the system's source of randomness.
    pub fn generate(id: impl Into<String>) -> Result<Self, KeyError> {
        Key::new(id, &random::<32>()?)
    }

    /// Reads a key written in base64, of either alphabet.
    pub fn read(id: impl Into<String>, text: &str) -> Result<Self, KeyError> {
        let (id, text) = (id.into(), text.trim().trim_end_matches('='));
        let bytes = URL_SAFE_NO_PAD.decode(text.replace('+', "-").replace('/', "_"));
        match bytes {
            Ok(bytes) => Key::new(id, &bytes),
            Err(_) => Err(KeyError::Text { id }),
        }
    }

    /// The key in base64, to be kept somewhere safe.
    pub fn reveal(&self) -> String {
        STANDARD.encode(self.secret.as_bytes())
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

/// So many random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| KeyError::Randomness(error.to_string()))?;
    Ok(bytes)
}

/// A name that can be told apart in a token.
pub(crate) fn is_id(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=MAX_ID_CHARS).contains(&text.len()) && text.chars().all(fits)
}

/// The keys of a process: one seals, all open. Clones are the same ring.
#[derive(Debug, Clone)]
pub struct KeyRing(Arc<RwLock<Vec<Key>>>);

impl KeyRing {
    /// A ring with one key.
    pub fn new(key: Key) -> Self {
        KeyRing(Arc::new(RwLock::new(vec![key])))
    }

    /// New tokens are sealed under this key from here on. What was sealed under others can still be opened.
    pub fn rotate(&self, key: Key) -> Result<(), KeyError> {
        self.insert(key, true)
    }

    /// What was sealed under this key can be opened from here on: by another process, which has it as its first.
    pub fn accept(&self, key: Key) -> Result<(), KeyError> {
        self.insert(key, false)
    }

    fn insert(&self, key: Key, first: bool) -> Result<(), KeyError> {
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = keys.iter().position(|known| known.id == key.id) {
            if keys[at].secret.as_bytes() != key.secret.as_bytes() {
                return Err(KeyError::Taken(key.id));
            }
            if first {
                let known = keys.remove(at);
                keys.insert(0, known);
            }
            return Ok(());
        }
        let at = if first { 0 } else { keys.len() };
        keys.insert(at, key);
        Ok(())
    }

    /// Nothing that was sealed under this key can be opened any more.
    pub fn revoke(&self, id: &str) -> Result<(), KeyError> {
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match keys.iter().position(|known| known.id == id) {
            None => Err(KeyError::Unknown(id.to_owned())),
            Some(0) => Err(KeyError::InUse(id.to_owned())),
            Some(at) => {
                keys.remove(at);
                Ok(())
            }
        }
    }

    /// The ids of its keys, the one that seals first.
    pub fn ids(&self) -> Vec<String> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().map(|key| key.id.clone()).collect()
    }

    fn first(&self) -> Key {
        self.0.read().unwrap_or_else(PoisonError::into_inner)[0].clone()
    }

    fn get(&self, id: &str) -> Option<Key> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().find(|key| key.id == id).cloned()
    }

    /// Seals a text as a PASETO of version 4. `label` follows the key's id in the footer, for all to see; `bound` has to be
    /// the same when it is opened.
    pub(crate) fn seal(&self, text: &str, label: &str, bound: &[u8]) -> String {
        let key = self.first();
        let footer = if label.is_empty() { key.id.clone() } else { format!("{}.{label}", key.id) };
        LocalToken::encrypt(&key.secret, text.as_bytes(), Some(footer.as_bytes()), Some(bound))
            .expect("a text that is not empty can be sealed as long as the system gives randomness")
    }

    /// Opens what was sealed under one of the keys; `bound` makes what it has to be bound to out of the label.
    pub(crate) fn open(&self, sealed: &str, bound: impl FnOnce(&str) -> Option<Vec<u8>>) -> Option<String> {
        let token = UntrustedToken::<Local, V4>::try_from(sealed).ok()?;
        let footer = std::str::from_utf8(token.untrusted_footer()).ok()?;
        let (id, label) = footer.split_once('.').unwrap_or((footer, ""));
        let (key, bound) = (self.get(id)?, bound(label)?);
        let opened = LocalToken::decrypt(&key.secret, &token, None, Some(&bound)).ok()?;
        Some(opened.payload().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{Key, KeyError, KeyRing};
    use pasetors::Local;
    use pasetors::token::UntrustedToken;
    use pasetors::version4::{LocalToken, V4};

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    /// The official vectors of PASETO v4.local: what should open does, with its message; what should not does not.
    #[test]
    fn the_official_vectors_of_the_token_format_hold() {
        let vectors: Value = serde_json::from_str(include_str!("../../tests/paseto_v4_local.json")).unwrap();
        let vectors = vectors["tests"].as_array().unwrap();
        let (mut opened, mut refused) = (0, 0);
        for vector in vectors {
            let text = |field: &str| vector[field].as_str().unwrap_or_default();
            let key = Key::new("vector", &hex(text("key"))).unwrap();
            let footer = Some(text("footer").as_bytes()).filter(|footer| !footer.is_empty());
            let bound = text("implicit-assertion").as_bytes();
            let token = UntrustedToken::<Local, V4>::try_from(text("token"));
            let result =
                token.and_then(|token| LocalToken::decrypt(&key.secret, &token, footer, Some(bound)));
            if vector["expect-fail"] == true {
                assert!(result.is_err(), "{}", text("name"));
                refused += 1;
            } else {
                assert_eq!(result.unwrap().payload(), text("payload"), "{}", text("name"));
                opened += 1;
            }
        }
        assert!(opened >= 9 && refused >= 3, "{opened} opened, {refused} refused");
    }

    #[test]
    fn what_is_sealed_opens_under_any_key_of_the_ring_and_only_where_it_is_bound_to() {
        let ring = KeyRing::new(Key::generate("a").unwrap());
        let sealed = ring.seal("hello", "label", b"here");
        let opened = ring.open(&sealed, |label| (label == "label").then(|| b"here".to_vec())).unwrap();
        assert_eq!(opened, "hello");
        assert!(ring.open(&sealed, |_| Some(b"there".to_vec())).is_none());
        ring.rotate(Key::generate("b").unwrap()).unwrap();
        assert_eq!(ring.ids(), ["b", "a"]);
        let later = ring.seal("again", "", b"here");
        assert_eq!(ring.open(&later, |_| Some(b"here".to_vec())).unwrap(), "again");
        assert_eq!(ring.open(&sealed, |_| Some(b"here".to_vec())).unwrap(), "hello");
        assert_eq!(ring.revoke("b"), Err(KeyError::InUse("b".to_owned())));
        ring.revoke("a").unwrap();
        assert_eq!(ring.revoke("a"), Err(KeyError::Unknown("a".to_owned())));
        assert!(ring.open(&sealed, |_| Some(b"here".to_vec())).is_none());
        assert_eq!(ring.open(&later, |_| Some(b"here".to_vec())).unwrap(), "again");
    }

    #[test]
    fn keys_are_read_as_they_were_written_and_mistakes_are_named() {
        let key = Key::generate("2026-11").unwrap();
        let read = Key::read("2026-11", &key.reveal()).unwrap();
        let ring = KeyRing::new(key.clone());
        ring.rotate(read).unwrap();
        assert_eq!(ring.ids(), ["2026-11"], "the same key is the same key");
        let other = Key::generate("2026-11").unwrap();
        assert_eq!(ring.accept(other), Err(KeyError::Taken("2026-11".to_owned())));
        assert!(matches!(Key::read("x", "not base64!"), Err(KeyError::Text { .. })));
        assert!(matches!(Key::read("x", "AAAA"), Err(KeyError::Length { actual: 3, .. })));
        for id in ["", "a.b", "a b", &"x".repeat(65)] {
            assert_eq!(Key::generate(id).unwrap_err(), KeyError::Id(id.to_owned()));
        }
        let shown = format!("{key:?}");
        assert!(!shown.contains(&key.reveal()[..8]), "{shown}");
    }
}
