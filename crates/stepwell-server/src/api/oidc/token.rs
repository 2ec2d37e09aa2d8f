//! Parses signed tokens (JWS compact serialization, RFC 7515) and verifies their signature with a key.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
// Not the `jsonwebtoken` crate: its version 10 has no `ring` backend, and `ring` is already linked for TLS. A
// second crypto library, selected for the whole process, would be more code than this parser.
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::json;

/// Maximum size of a token, in bytes.
pub(super) const TOKEN_BYTES: usize = 16 * 1024;
/// Maximum length of a key id, in bytes.
const KID_CHARS: usize = 256;
/// Accepted values of `typ`, in lower case. Other types, such as logout tokens, do not authenticate requests.
const TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];

/// A signature algorithm. All are asymmetric, so a server that verifies tokens cannot sign them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of RFC 7518 and RFC 8037")]
pub enum Algorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    #[serde(alias = "Ed25519")]
    EdDSA,
}

impl Algorithm {
    /// All supported algorithms, in the order of declaration.
    pub const ALL: [Algorithm; 9] = [
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::PS256,
        Algorithm::PS384,
        Algorithm::PS512,
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::EdDSA,
    ];

    fn of(name: &str) -> Option<Self> {
        Algorithm::deserialize(Value::from(name)).ok()
    }

    /// Returns the RSA parameters for verifying, or `None` if this is not an RSA algorithm.
    fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Algorithm::RS256 => &RSA_PKCS1_2048_8192_SHA256,
            Algorithm::RS384 => &RSA_PKCS1_2048_8192_SHA384,
            Algorithm::RS512 => &RSA_PKCS1_2048_8192_SHA512,
            Algorithm::PS256 => &RSA_PSS_2048_8192_SHA256,
            Algorithm::PS384 => &RSA_PSS_2048_8192_SHA384,
            Algorithm::PS512 => &RSA_PSS_2048_8192_SHA512,
            Algorithm::ES256 | Algorithm::ES384 | Algorithm::EdDSA => return None,
        })
    }
}

/// A parsed token. Do not trust its claims before its signature is verified.
pub(super) struct Token<'a> {
    pub(super) algorithm: Algorithm,
    /// Id of the signing key, as the token's header states it.
    pub(super) kid: Option<String>,
    pub(super) claims: Map<String, Value>,
    signed: &'a str,
    signature: Vec<u8>,
}

impl<'a> Token<'a> {
    /// Parses a token. Errors never contain text of the token.
    pub(super) fn read(text: &'a str) -> Result<Self, &'static str> {
        if text.len() > TOKEN_BYTES {
            return Err("the token is too long");
        }
        let mut parts = text.split('.');
        let (Some(head), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("the token does not have three parts");
        };
        let bytes = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| "a part is not valid base64url");
        let object = |part: &str| match json::read(&bytes(part)?) {
            Ok(Value::Object(object)) => Ok(object),
            _ => Err("a part is not a JSON object"),
        };
        let (header, claims) = (object(head)?, object(payload)?);
        // The header requires extensions, encryption or compression, which are not supported.
        if header.contains_key("crit") || header.contains_key("enc") || header.contains_key("zip") {
            return Err("the header requires an unsupported extension");
        }
        let name = |name: &str| header.get(name).map(Value::as_str);
        let kind = name("typ").map(|kind| kind.map(str::to_ascii_lowercase));
        if kind.is_some_and(|kind| !kind.is_some_and(|kind| TYPES.contains(&kind.as_str()))) {
            return Err("the token type is not accepted");
        }
        let algorithm =
            name("alg").flatten().and_then(Algorithm::of).ok_or("the algorithm is not supported")?;
        let kid = match name("kid") {
            None => None,
            Some(Some(kid)) if kid.len() <= KID_CHARS => Some(kid.to_owned()),
            Some(_) => return Err("the key id is invalid"),
        };
        let signed = &text[..head.len() + 1 + payload.len()];
        Ok(Token { algorithm, kid, claims, signed, signature: bytes(signature)? })
    }

    /// Verifies the signature with this key.
    pub(super) fn is_by(&self, key: &Key) -> bool {
        let (message, signature) = (self.signed.as_bytes(), self.signature.as_slice());
        let plain = |how: &'static dyn VerificationAlgorithm, public: &[u8]| {
            UnparsedPublicKey::new(how, public).verify(message, signature).is_ok()
        };
        match (&key.public, self.algorithm) {
            (Public::Rsa(public), algorithm) => {
                algorithm.rsa().is_some_and(|how| public.verify(how, message, signature).is_ok())
            }
            (Public::P256(point), Algorithm::ES256) => plain(&ECDSA_P256_SHA256_FIXED, point),
            (Public::P384(point), Algorithm::ES384) => plain(&ECDSA_P384_SHA384_FIXED, point),
            (Public::Ed25519(point), Algorithm::EdDSA) => plain(&ED25519, point),
            _ => false,
        }
    }
}

/// A public key of an issuer, for verifying signatures.
#[derive(Debug)]
pub(super) struct Key {
    kid: Option<String>,
    /// The only algorithm the key may be used with; `None` = every algorithm of its type.
    algorithm: Option<Algorithm>,
    public: Public,
}

#[derive(Debug)]
enum Public {
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// The fields of a JSON Web Key (RFC 7517) that are read.
#[derive(Debug, Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    used_for: Option<String>,
    key_ops: Option<BTreeSet<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Key {
    /// Reads a key set and skips the keys that cannot verify signatures.
    pub(super) fn set(text: &[u8]) -> Result<Vec<Self>, String> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = serde_json::from_slice(text).map_err(|error| format!("not a key set: {error}"))?;
        let keys: Vec<_> = set.keys.into_iter().filter_map(Key::of).collect();
        match keys.is_empty() {
            true => Err("no key in the set can verify signatures".to_owned()),
            false => Ok(keys),
        }
    }

    fn of(jwk: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(jwk).ok()?;
        let is_for_signatures = jwk.used_for.as_deref().is_none_or(|used_for| used_for == "sig")
            && jwk.key_ops.as_ref().is_none_or(|ops| ops.contains("verify"));
        // A key for an unsupported algorithm is skipped.
        let algorithm = match jwk.alg.as_deref() {
            None => None,
            Some(name) => Some(Algorithm::of(name)?),
        };
        let public = Public::of(&jwk).filter(|_| is_for_signatures)?;
        Some(Key { kid: jwk.kid, algorithm, public })
    }

    /// Returns true if the key's id, type and algorithm match the token's header.
    pub(super) fn fits(&self, token: &Token<'_>) -> bool {
        let is_named = token.kid.is_none() || token.kid == self.kid;
        let is_kind = match (&self.public, token.algorithm) {
            (Public::Rsa(_), algorithm) => algorithm.rsa().is_some(),
            (Public::P256(_), algorithm) => algorithm == Algorithm::ES256,
            (Public::P384(_), algorithm) => algorithm == Algorithm::ES384,
            (Public::Ed25519(_), algorithm) => algorithm == Algorithm::EdDSA,
        };
        is_named && is_kind && self.algorithm.is_none_or(|only| only == token.algorithm)
    }
}

impl Public {
    fn of(jwk: &Jwk) -> Option<Self> {
        let bytes = |part: &Option<String>| URL_SAFE_NO_PAD.decode(part.as_deref()?).ok();
        // A big-endian number without leading zeros.
        let number = |part: &Option<String>| {
            let bytes = bytes(part)?;
            let first = bytes.iter().position(|byte| *byte != 0)?;
            Some(bytes[first..].to_vec())
        };
        let point = |size: usize| {
            let (x, y) = (bytes(&jwk.x)?, bytes(&jwk.y)?);
            (x.len() == size && y.len() == size).then(|| [&[4], x.as_slice(), &y].concat())
        };
        match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => {
                Some(Public::Rsa(RsaPublicKeyComponents { n: number(&jwk.n)?, e: number(&jwk.e)? }))
            }
            ("EC", Some("P-256")) => point(32).map(Public::P256),
            ("EC", Some("P-384")) => point(48).map(Public::P384),
            ("OKP", Some("Ed25519")) => bytes(&jwk.x).filter(|x| x.len() == 32).map(Public::Ed25519),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{Algorithm, Key, Token};

    /// The test vectors were signed by another library.
    #[test]
    fn token_verifies_only_with_its_own_key() {
        let vectors: Value = serde_json::from_str(include_str!("vectors.json")).unwrap();
        let keys = Key::set(vectors.to_string().as_bytes()).unwrap();
        let tokens = vectors["tokens"].as_array().unwrap();
        assert_eq!((keys.len(), tokens.len()), (4, Algorithm::ALL.len()));
        for (text, algorithm) in tokens.iter().zip(Algorithm::ALL) {
            let token = Token::read(text.as_str().unwrap()).unwrap();
            assert_eq!((token.algorithm, &token.claims["sub"]), (algorithm, &Value::from("ann")));
            let good: Vec<_> = keys.iter().map(|key| token.is_by(key)).collect();
            let fits: Vec<_> = keys.iter().map(|key| key.fits(&token)).collect();
            assert_eq!(good.iter().filter(|is| **is).count(), 1, "{algorithm:?}");
            assert_eq!(good, fits, "{algorithm:?}");
        }
    }
}
