//! The keys that seal tokens. One key seals new tokens, and any key of the ring can open them.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use pasetors::Local;
use pasetors::keys::SymmetricKey;
use pasetors::token::UntrustedToken;
use pasetors::version4::{LocalToken, V4};

/// Maximum length of a key id, in characters.
const MAX_ID_CHARS: usize = 64;

/// The reason why a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The id is not 1 to 64 of the allowed characters.
    #[error("`{0}` is not a key id: use 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`")]
    Id(String),
    /// The key is not 32 bytes long.
    #[error("key `{id}` must have 32 bytes (got {actual})")]
    Length {
        id: String,
        /// Length of the given key in bytes.
        actual: usize,
    },
    /// The text is not valid base64.
    #[error("key `{id}` is not valid base64")]
    Text { id: String },
    /// The ring has a different key with the same id.
    #[error("the ring has a different key `{0}`: a new key needs a new id")]
    Taken(String),
    /// The ring has no key with this id.
    #[error("there is no key `{0}`")]
    Unknown(String),
    /// The key seals new tokens, so it cannot be revoked.
    #[error("key `{0}` seals new tokens: rotate to another key first")]
    InUse(String),
    /// A ring needs at least one key.
    #[error("there is no key: a ring needs at least one")]
    Empty,
    /// The system's source of randomness failed.
    #[error("the system's source of randomness failed: {0}")]
    Randomness(String),
}

/// A symmetric key and its id. The id is readable in every token sealed under the key.
#[derive(Clone)]
pub struct Key {
    id: String,
    secret: Arc<SymmetricKey<V4>>,
}

impl Key {
    /// Creates a key from 32 bytes.
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

    /// Generates a key from the system's source of randomness.
    pub fn generate(id: impl Into<String>) -> Result<Self, KeyError> {
        Key::new(id, &random::<32>()?)
    }

    /// Reads a key in base64, in the standard or the URL-safe alphabet.
    pub fn read(id: impl Into<String>, text: &str) -> Result<Self, KeyError> {
        let (id, text) = (id.into(), text.trim().trim_end_matches('='));
        let bytes = URL_SAFE_NO_PAD.decode(text.replace('+', "-").replace('/', "_"));
        match bytes {
            Ok(bytes) => Key::new(id, &bytes),
            Err(_) => Err(KeyError::Text { id }),
        }
    }

    /// Returns the key in standard base64. Store it as a secret.
    pub fn reveal(&self) -> String {
        STANDARD.encode(self.secret.as_bytes())
    }

    /// Returns the key's id, which is readable in its tokens.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Returns `N` random bytes from the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| KeyError::Randomness(error.to_string()))?;
    Ok(bytes)
}

/// Returns true for 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`.
pub(crate) fn is_id(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=MAX_ID_CHARS).contains(&text.len()) && text.chars().all(fits)
}

/// The sealing keys of a process. The first key seals, and all keys open. Clones share the ring.
#[derive(Debug, Clone)]
pub struct KeyRing(Arc<RwLock<Vec<Key>>>);

impl KeyRing {
    /// Creates a ring with one key.
    pub fn new(key: Key) -> Self {
        KeyRing(Arc::new(RwLock::new(vec![key])))
    }

    /// Makes this the key that seals new tokens. The other keys still open theirs.
    pub fn rotate(&self, key: Key) -> Result<(), KeyError> {
        self.insert(key, true)
    }

    /// Adds a key that only opens tokens, such as the sealing key of another process.
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

    /// Replaces all keys. The first one seals new tokens. Keeps the ring if the list is empty or an id keeps its name
    /// but not its key.
    pub fn replace(&self, keys: Vec<Key>) -> Result<(), KeyError> {
        let mut ring = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_other = |key: &&Key| {
            ring.iter().any(|known| known.id == key.id && known.secret.as_bytes() != key.secret.as_bytes())
        };
        if let Some(other) = keys.iter().find(is_other) {
            return Err(KeyError::Taken(other.id.clone()));
        }
        if keys.is_empty() {
            return Err(KeyError::Empty);
        }
        *ring = keys;
        Ok(())
    }

    /// Removes a key. Tokens sealed under it can no longer be opened.
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

    /// Returns the ids of the keys, the sealing key first.
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

    /// Seals a text as a PASETO v4.local token.
    ///
    /// The footer has the key's id and `label`, both readable. Opening needs the same `bound`.
    pub(crate) fn seal(&self, text: &str, label: &str, bound: &[u8]) -> String {
        let key = self.first();
        let footer = if label.is_empty() { key.id.clone() } else { format!("{}.{label}", key.id) };
        LocalToken::encrypt(&key.secret, text.as_bytes(), Some(footer.as_bytes()), Some(bound))
            .expect("sealing a non-empty text fails only if the system's source of randomness fails")
    }

    /// Opens a text sealed under one of the keys. `bound` derives the implicit assertion from the label.
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

    /// Checks the official PASETO v4.local test vectors: valid tokens open with their message, and invalid ones fail.
    #[test]
    fn official_paseto_vectors_hold() {
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
    fn sealed_text_opens_with_any_key_of_the_ring() {
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
    fn a_ring_is_replaced_as_a_whole() {
        let (a, b) = (Key::generate("a").unwrap(), Key::generate("b").unwrap());
        let ring = KeyRing::new(a.clone());
        ring.replace(vec![b.clone(), a]).unwrap();
        assert_eq!(ring.ids(), ["b", "a"]);
        assert_eq!(ring.replace(vec![Key::generate("b").unwrap()]), Err(KeyError::Taken("b".to_owned())));
        assert_eq!(ring.replace(Vec::new()), Err(KeyError::Empty));
        assert_eq!(ring.ids(), ["b", "a"]);
        ring.replace(vec![b]).unwrap();
        assert_eq!(ring.ids(), ["b"]);
    }

    #[test]
    fn keys_round_trip_and_invalid_keys_are_rejected() {
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
