//! An OpenID Connect issuer for tests: it generates keys, publishes them over HTTP and signs any claims.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256,
    RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair, RsaPublicKeyComponents,
};
use serde_json::{Value, json};
use stepwell::testing::BEGINS;

use crate::web::{Web, says};

/// Audience (`aud`) of the tokens.
pub(crate) const AUDIENCE: &str = "stepwell";
/// An RSA key for these tests only. It is stored in a file because `ring` cannot generate RSA keys.
const RSA: &str = include_str!("issuer.key");

pub(crate) fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The private half of a key.
enum Private {
    Rsa(RsaKeyPair, &'static dyn RsaEncoding),
    Elliptic(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    /// A secret that the verifier knows too.
    Shared(hmac::Key),
}

/// A key that signs tokens.
pub(crate) struct SigningKey {
    pub(crate) algorithm: &'static str,
    private: Private,
    /// The public half as a JSON Web Key.
    pub(crate) jwk: Value,
}

impl SigningKey {
    pub(crate) fn rsa(kid: &str, algorithm: &'static str) -> Self {
        let how: &'static dyn RsaEncoding = match algorithm {
            "RS256" => &RSA_PKCS1_SHA256,
            "RS384" => &RSA_PKCS1_SHA384,
            "RS512" => &RSA_PKCS1_SHA512,
            "PS256" => &RSA_PSS_SHA256,
            "PS384" => &RSA_PSS_SHA384,
            "PS512" => &RSA_PSS_SHA512,
            other => panic!("{other} is not an RSA algorithm"),
        };
        let text: String = RSA.split_whitespace().collect();
        let pair = RsaKeyPair::from_pkcs8(&STANDARD.decode(text).unwrap()).unwrap();
        let RsaPublicKeyComponents { n, e } = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
        let (n, e) = (base64(n), base64(e));
        let jwk = json!({"kty": "RSA", "kid": kid, "n": n, "e": e, "use": "sig"});
        SigningKey { algorithm, private: Private::Rsa(pair, how), jwk }
    }

    pub(crate) fn p256(kid: &str) -> Self {
        Self::elliptic(kid, "ES256", "P-256", &ECDSA_P256_SHA256_FIXED_SIGNING)
    }

    pub(crate) fn p384(kid: &str) -> Self {
        Self::elliptic(kid, "ES384", "P-384", &ECDSA_P384_SHA384_FIXED_SIGNING)
    }

    fn elliptic(
        kid: &str,
        algorithm: &'static str,
        curve: &str,
        how: &'static EcdsaSigningAlgorithm,
    ) -> Self {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(how, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(how, made.as_ref(), &random).unwrap();
        let point = pair.public_key().as_ref()[1..].to_vec();
        let (x, y) = point.split_at(point.len() / 2);
        let jwk = json!({"kty": "EC", "crv": curve, "kid": kid, "x": base64(x), "y": base64(y)});
        SigningKey { algorithm, private: Private::Elliptic(pair), jwk }
    }

    pub(crate) fn ed25519(kid: &str) -> Self {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(made.as_ref()).unwrap();
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": base64(pair.public_key()), "alg": "EdDSA"});
        SigningKey { algorithm: "EdDSA", private: Private::Ed25519(pair), jwk }
    }

    /// A shared secret for forged tokens, in the hope that the verifier takes the same bytes as its key.
    pub(crate) fn shared(kid: &str, secret: &[u8]) -> Self {
        let private = Private::Shared(hmac::Key::new(hmac::HMAC_SHA256, secret));
        SigningKey { algorithm: "HS256", private, jwk: json!({"kid": kid}) }
    }

    /// Signs these claims and returns the value of the `Authorization` header.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_of(self.jwk["kid"].as_str(), claims)
    }

    /// Signs these claims under the key id `kid`, which may be another key's, or under none.
    pub(crate) fn token_of(&self, kid: Option<&str>, claims: &Value) -> String {
        let mut header = json!({"typ": "JWT", "alg": self.algorithm});
        if let Some(kid) = kid {
            header["kid"] = kid.into();
        }
        let signed = format!("{}.{}", base64(header.to_string()), base64(claims.to_string()));
        format!("Bearer {signed}.{}", base64(self.signature(signed.as_bytes())))
    }

    fn signature(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.private {
            Private::Rsa(pair, how) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*how, &random, message, &mut signature).unwrap();
                signature
            }
            Private::Elliptic(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Private::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
            Private::Shared(key) => hmac::sign(key, message).as_ref().to_vec(),
        }
    }
}

/// A running issuer, with a discovery document and its public keys.
pub(crate) struct Issuer {
    pub(crate) web: Web,
    state: Arc<Mutex<State>>,
}

struct State {
    issuer: String,
    keys: Vec<Value>,
    is_away: bool,
}

impl Issuer {
    pub(crate) async fn start(keys: &[&SigningKey]) -> Self {
        let state = State { issuer: String::new(), keys: Vec::new(), is_away: false };
        let state = Arc::new(Mutex::new(state));
        let answers = state.clone();
        let web = Web::start(move |asked| {
            let State { issuer, keys, is_away } = &*answers.lock().unwrap();
            match asked.path.as_str() {
                _ if *is_away => says(503, &[], "away"),
                "/.well-known/openid-configuration" => {
                    let found = json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys")});
                    says(200, &[("content-type", "application/json")], found.to_string())
                }
                "/keys" => says(200, &[], json!({"keys": keys}).to_string()),
                _ => says(404, &[], ""),
            }
        })
        .await;
        let issuer = Issuer { state, web };
        issuer.set_issuer(&issuer.url());
        issuer.publish(keys);
        issuer
    }

    /// URL of the issuer, and `iss` of its tokens.
    pub(crate) fn url(&self) -> String {
        self.web.url("")
    }

    pub(crate) fn publish(&self, keys: &[&SigningKey]) {
        self.state.lock().unwrap().keys = keys.iter().map(|key| key.jwk.clone()).collect();
    }

    pub(crate) fn publish_raw(&self, keys: Vec<Value>) {
        self.state.lock().unwrap().keys = keys;
    }

    pub(crate) fn set_issuer(&self, issuer: &str) {
        self.state.lock().unwrap().issuer = issuer.to_owned();
    }

    pub(crate) fn become_unavailable(&self) {
        self.state.lock().unwrap().is_away = true;
    }

    /// Number of times the keys were fetched.
    pub(crate) fn fetches(&self) -> usize {
        self.web.asked().iter().filter(|asked| asked.path == "/keys").count()
    }

    /// Valid claims of a user with the permissions `workflow:view` and `workflow:manage`.
    pub(crate) fn claims(&self) -> Value {
        let now = BEGINS.micros() / 1_000_000;
        json!({
            "iss": self.url(), "aud": AUDIENCE, "sub": "ann", "iat": now, "nbf": now, "exp": now + 600,
            "scope": "openid workflow:view workflow:manage",
        })
    }
}
