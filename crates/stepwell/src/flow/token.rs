//! Tokens: `<name>.<raw>`, where the name is that of the strategy that made it. This module alone writes and reads the
//! raw part.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use stepwell_core::{LimitExceeded, Limits, Name, Timestamp};
use stepwell_store::{HandleHash, TenantId};
use uuid::Uuid;

use super::keys::{KeyError, KeyRing, random};

/// Compression level of deflate.
const EFFORT: u8 = 6;

/// Splits a token into the name of its strategy and the raw part.
pub(crate) fn split(token: &str) -> Option<(&str, &str)> {
    token.split_once('.').filter(|(name, raw)| super::keys::is_id(name) && !raw.is_empty())
}

/// The purpose of a sealed token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Resume the flow whose state is in the token.
    Resume,
    /// Show that the flow waits for another person.
    Watch,
}

impl Purpose {
    fn prefix(self) -> &'static str {
        match self {
            Purpose::Resume => "r",
            Purpose::Watch => "w",
        }
    }
}

/// Metadata in a sealed token, next to the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    /// Time of creation of the token.
    #[serde(rename = "i", with = "micros")]
    pub(crate) issued_at: Timestamp,
    /// Expiry time of the token.
    #[serde(rename = "e", with = "micros")]
    pub(crate) expires_at: Timestamp,
    /// Latest expiry of all tokens for the same pause, in microseconds, if it differs from `expires_at`. Answering the
    /// previous pause again makes another token for this pause.
    #[serde(rename = "l", skip_serializing_if = "Option::is_none", default)]
    pub(crate) latest: Option<i64>,
    /// Start time of the flow.
    #[serde(rename = "c", with = "micros")]
    pub(crate) created_at: Timestamp,
    /// Id of the actor who started the flow.
    #[serde(rename = "b", skip_serializing_if = "Option::is_none", default)]
    pub(crate) created_by: Option<String>,
    /// The state is compressed with deflate.
    #[serde(rename = "z", skip_serializing_if = "std::ops::Not::not", default)]
    pub(crate) is_compressed: bool,
}

impl Claims {
    /// Returns the time at which all tokens for the same pause have expired.
    pub(crate) fn all_over_at(&self) -> Timestamp {
        self.latest.map_or(self.expires_at, |latest| self.expires_at.max(Timestamp::from_micros(latest)))
    }
}

/// Serializes a time as a number, which is shorter than its text.
mod micros {
    use serde::{Deserialize, Deserializer, Serializer};
    use stepwell_core::Timestamp;

    pub(super) fn serialize<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(at.micros())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        i64::deserialize(deserializer).map(Timestamp::from_micros)
    }
}

/// The context that a sealed token is bound to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound<'a> {
    /// Name of the strategy.
    pub(crate) name: &'a str,
    pub(crate) tenant: TenantId,
    pub(crate) workflow: &'a str,
    pub(crate) purpose: Purpose,
}

impl Bound<'_> {
    fn label(&self) -> String {
        let tenant = URL_SAFE_NO_PAD.encode(self.tenant.uuid().as_bytes());
        format!("{}{tenant}.{}", self.purpose.prefix(), self.workflow)
    }
}

/// Builds the implicit assertion of a token from its name and the label in its footer.
fn bound_to(name: &str, label: &str) -> Vec<u8> {
    format!("stepwell flow\0{name}\0{label}").into_bytes()
}

/// An opened sealed token.
#[derive(Debug)]
pub(crate) struct Unsealed {
    pub(crate) tenant: TenantId,
    pub(crate) workflow: Name,
    pub(crate) purpose: Purpose,
    pub(crate) claims: Claims,
    pub(crate) state: Vec<u8>,
}

/// Seals a state as a token. Fails if the token is longer than the limit `token_bytes`.
pub(crate) fn seal(
    ring: &KeyRing,
    bound: Bound<'_>,
    mut claims: Claims,
    state: &[u8],
    compress: bool,
    limits: &Limits,
) -> Result<String, LimitExceeded> {
    let packed =
        compress.then(|| URL_SAFE_NO_PAD.encode(miniz_oxide::deflate::compress_to_vec(state, EFFORT)));
    let packed = packed.filter(|packed| packed.len() < state.len());
    claims.is_compressed = packed.is_some();
    let mut text = serde_json::to_string(&claims).expect("claims are plain data");
    text.reserve(state.len() + 1);
    text.push('\n');
    match &packed {
        Some(packed) => text.push_str(packed),
        None => text.push_str(std::str::from_utf8(state).expect("a snapshot is written as JSON")),
    }
    let label = bound.label();
    let token = format!("{}.{}", bound.name, ring.seal(&text, &label, &bound_to(bound.name, &label)));
    limits.token_bytes("the sealed token", token.len())?;
    Ok(token)
}

/// Returns the tenant that a token names. The token is not verified.
pub(crate) fn tenant_of(token: &str) -> Option<TenantId> {
    let (_, raw) = split(token)?;
    if let Some(secret) = Secret::read(raw) {
        return Some(secret.tenant);
    }
    let footer = URL_SAFE_NO_PAD.decode(raw.rsplit_once('.')?.1).ok()?;
    let (_, label) = std::str::from_utf8(&footer).ok()?.split_once('.')?;
    read_label(label).map(|(_, tenant, _)| tenant)
}

/// Opens the raw part of a sealed token. `None` if it was not sealed by this ring, whatever the reason.
pub(crate) fn open(ring: &KeyRing, name: &str, raw: &str, limits: &Limits) -> Option<Unsealed> {
    limits.token_bytes("the sealed token", name.len() + raw.len() + 1).ok()?;
    let mut seen = None;
    let opened = ring.open(raw, |label| {
        seen = read_label(label);
        Some(bound_to(name, label))
    })?;
    let (purpose, tenant, workflow) = seen?;
    let (claims, state) = opened.split_once('\n')?;
    let claims: Claims = serde_json::from_str(claims).ok()?;
    let state = if claims.is_compressed {
        let packed = URL_SAFE_NO_PAD.decode(state).ok()?;
        let most = usize::try_from(limits.snapshot_bytes).unwrap_or(usize::MAX);
        miniz_oxide::inflate::decompress_to_vec_with_limit(&packed, most).ok()?
    } else {
        state.as_bytes().to_vec()
    };
    Some(Unsealed { tenant, workflow, purpose, claims, state })
}

fn read_label(label: &str) -> Option<(Purpose, TenantId, Name)> {
    let (place, workflow) = label.split_once('.')?;
    let purpose =
        [Purpose::Resume, Purpose::Watch].into_iter().find(|one| place.starts_with(one.prefix()))?;
    let tenant = URL_SAFE_NO_PAD.decode(place.get(1..)?).ok()?;
    Some((purpose, TenantId::new(Uuid::from_slice(&tenant).ok()?), Name::from(workflow)))
}

/// The content of a handle's token: a secret and its tenant.
#[derive(Clone, Copy)]
pub(crate) struct Secret {
    pub(crate) tenant: TenantId,
    secret: [u8; 32],
}

impl Secret {
    /// Generates a secret from the system's source of randomness.
    pub(crate) fn new(tenant: TenantId) -> Result<Self, KeyError> {
        Ok(Secret { tenant, secret: random()? })
    }

    /// Reads the raw part of a handle's token. `None` if it is malformed.
    pub(crate) fn read(raw: &str) -> Option<Self> {
        let bytes: [u8; 48] = URL_SAFE_NO_PAD.decode(raw).ok()?.try_into().ok()?;
        let tenant = TenantId::new(Uuid::from_slice(&bytes[..16]).ok()?);
        let mut secret = [0; 32];
        secret.copy_from_slice(&bytes[16..]);
        Some(Secret { tenant, secret })
    }

    /// Returns the token with this secret for a strategy.
    pub(crate) fn token(&self, name: &str) -> String {
        let mut bytes = [0; 48];
        bytes[..16].copy_from_slice(self.tenant.uuid().as_bytes());
        bytes[16..].copy_from_slice(&self.secret);
        format!("{name}.{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Returns the hash by which the row is found. It covers the strategy's name, so that the secret is not valid under
    /// another name.
    pub(crate) fn hash(&self, name: &str) -> HandleHash {
        let mut hash = Sha256::new();
        hash.update(b"stepwell handle\0");
        hash.update(name.as_bytes());
        hash.update([0]);
        hash.update(self.secret);
        HandleHash(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Key;

    /// Tokens are in mailboxes and browsers: a release must open the tokens of earlier ones. This one was made when the
    /// test was written.
    #[test]
    fn token_format_is_fixed() {
        let ring = KeyRing::new(Key::new("k1", &[7; 32]).unwrap());
        let tenant = TenantId::new(Uuid::from_u128(1));
        let bound = Bound { name: "mail", tenant, workflow: "order", purpose: Purpose::Resume };
        let claims = Claims {
            issued_at: Timestamp::from_millis(1_700_000_000_000),
            expires_at: Timestamp::from_millis(1_700_000_600_000),
            latest: None,
            created_at: Timestamp::from_millis(1_700_000_000_000),
            created_by: Some("ann".to_owned()),
            is_compressed: false,
        };
        let limits = Limits::default();
        let made = seal(&ring, bound, claims.clone(), br#"{"version":3}"#, false, &limits).unwrap();
        let fixed = include_str!("../../tests/formats/token.txt").trim();
        for token in [&*made, fixed] {
            let (name, raw) = split(token).unwrap();
            let opened = open(&ring, name, raw, &limits).unwrap_or_else(|| panic!("cannot open {token}"));
            assert_eq!((name, opened.tenant, opened.workflow.as_str()), ("mail", tenant, "order"));
            assert_eq!((opened.claims, &*opened.state), (claims.clone(), &br#"{"version":3}"#[..]));
        }
    }
}
