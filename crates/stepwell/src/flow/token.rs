//! Tokens: `<name>.<raw>`, where the name says which strategy made it. What a strategy's own part holds is made and read here,
//! and nowhere else.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use stepwell_core::{LimitExceeded, Limits, Name, Timestamp};
use stepwell_store::{HandleHash, TenantId};
use uuid::Uuid;

use super::keys::{KeyError, KeyRing, random};

/// How hard deflate tries.
const EFFORT: u8 = 6;

/// A token taken apart into the strategy's name and its own part.
pub(crate) fn split(token: &str) -> Option<(&str, &str)> {
    token.split_once('.').filter(|(name, raw)| super::keys::is_id(name) && !raw.is_empty())
}

/// What a sealed token may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To go on with the flow that is in it.
    Resume,
    /// To see that the flow waits for somebody else.
    Watch,
}

impl Purpose {
    fn letter(self) -> &'static str {
        match self {
            Purpose::Resume => "r",
            Purpose::Watch => "w",
        }
    }
}

/// What is said of a state that is sealed, besides the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    /// When the token was made.
    #[serde(rename = "i", with = "micros")]
    pub(crate) issued_at: Timestamp,
    /// When it is over.
    #[serde(rename = "e", with = "micros")]
    pub(crate) expires_at: Timestamp,
    /// When the last token is over that the same pause may have, in microseconds, if that is another: whoever answers the
    /// pause before once more gets another one.
    #[serde(rename = "l", skip_serializing_if = "Option::is_none", default)]
    pub(crate) latest: Option<i64>,
    /// When the flow began.
    #[serde(rename = "c", with = "micros")]
    pub(crate) created_at: Timestamp,
    /// Who began it.
    #[serde(rename = "b", skip_serializing_if = "Option::is_none", default)]
    pub(crate) created_by: Option<String>,
    /// The state is compressed.
    #[serde(rename = "z", skip_serializing_if = "std::ops::Not::not", default)]
    pub(crate) is_compressed: bool,
}

impl Claims {
    /// When every token of the same pause is over.
    pub(crate) fn all_over_at(&self) -> Timestamp {
        self.latest.map_or(self.expires_at, |latest| self.expires_at.max(Timestamp::from_micros(latest)))
    }
}

/// A time as a number: shorter than its text.
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

/// What a sealed token is bound to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound<'a> {
    /// The strategy's name.
    pub(crate) name: &'a str,
    pub(crate) tenant: TenantId,
    pub(crate) workflow: &'a str,
    pub(crate) purpose: Purpose,
}

impl Bound<'_> {
    fn label(&self) -> String {
        let tenant = URL_SAFE_NO_PAD.encode(self.tenant.uuid().as_bytes());
        format!("{}{tenant}.{}", self.purpose.letter(), self.workflow)
    }
}

/// What the token has to be bound to, given its name and the label in its footer.
fn bound_to(name: &str, label: &str) -> Vec<u8> {
    format!("stepwell flow\0{name}\0{label}").into_bytes()
}

/// A state that was sealed.
#[derive(Debug)]
pub(crate) struct Unsealed {
    pub(crate) tenant: TenantId,
    pub(crate) workflow: Name,
    pub(crate) purpose: Purpose,
    pub(crate) claims: Claims,
    pub(crate) state: Vec<u8>,
}

/// Seals a state.
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

/// The tenant that a token names. Whether it is a good token is not known yet.
pub(crate) fn tenant_of(token: &str) -> Option<TenantId> {
    let (_, raw) = split(token)?;
    if let Some(secret) = Secret::read(raw) {
        return Some(secret.tenant);
    }
    let footer = URL_SAFE_NO_PAD.decode(raw.rsplit_once('.')?.1).ok()?;
    let (_, label) = std::str::from_utf8(&footer).ok()?.split_once('.')?;
    read_label(label).map(|(_, tenant, _)| tenant)
}

/// Opens a sealed token's own part; `None` = it is not one that was made here, whatever is wrong with it.
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
        [Purpose::Resume, Purpose::Watch].into_iter().find(|one| place.starts_with(one.letter()))?;
    let tenant = URL_SAFE_NO_PAD.decode(place.get(1..)?).ok()?;
    Some((purpose, TenantId::new(Uuid::from_slice(&tenant).ok()?), Name::from(workflow)))
}

/// The secret behind a handle, and whose it is: what a handle's token holds.
#[derive(Clone, Copy)]
pub(crate) struct Secret {
    pub(crate) tenant: TenantId,
    secret: [u8; 32],
}

impl Secret {
    /// A new one, from the system's source of randomness.
    pub(crate) fn new(tenant: TenantId) -> Result<Self, KeyError> {
        Ok(Secret { tenant, secret: random()? })
    }

    /// Reads a handle's own part; `None` = it is none.
    pub(crate) fn read(raw: &str) -> Option<Self> {
        let bytes: [u8; 48] = URL_SAFE_NO_PAD.decode(raw).ok()?.try_into().ok()?;
        let tenant = TenantId::new(Uuid::from_slice(&bytes[..16]).ok()?);
        let mut secret = [0; 32];
        secret.copy_from_slice(&bytes[16..]);
        Some(Secret { tenant, secret })
    }

    /// The token of a strategy.
    pub(crate) fn token(&self, name: &str) -> String {
        let mut bytes = [0; 48];
        bytes[..16].copy_from_slice(self.tenant.uuid().as_bytes());
        bytes[16..].copy_from_slice(&self.secret);
        format!("{name}.{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// What it is found by. The strategy's name is part of it: under another name it is another secret.
    pub(crate) fn hash(&self, name: &str) -> HandleHash {
        let mut hash = Sha256::new();
        hash.update(b"stepwell handle\0");
        hash.update(name.as_bytes());
        hash.update([0]);
        hash.update(self.secret);
        HandleHash(hash.finalize().into())
    }
}
