//! An issuer of the test's own: it makes keys, publishes them over HTTP, and signs whatever it is told to.

use std::sync::{Arc, Mutex, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    Ed25519KeyPair, KeyPair,
};
use rsa::RsaPrivateKey;
use rsa::pkcs1::EncodeRsaPrivateKey;
use rsa::traits::PublicKeyParts;
use serde_json::{Value, json};
use stepwell::testing::BEGINS;

use crate::web::{Web, says};

/// For whom the tokens are.
pub(crate) const AUDIENCE: &str = "stepwell";

pub(crate) fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A key with which tokens are signed.
#[derive(Clone)]
pub(crate) struct Signs {
    pub(crate) algorithm: Algorithm,
    pub(crate) key: EncodingKey,
    /// The public half, as it is published.
    pub(crate) jwk: Value,
}

impl Signs {
    /// A key of RSA; making one takes long, so there is one.
    pub(crate) fn rsa(kid: &str, algorithm: Algorithm) -> Self {
        static KEY: OnceLock<RsaPrivateKey> = OnceLock::new();
        let key = KEY.get_or_init(|| RsaPrivateKey::new(&mut rsa::rand_core::OsRng, 2048).unwrap());
        let (n, e) = (base64(key.n().to_bytes_be()), base64(key.e().to_bytes_be()));
        let jwk = json!({"kty": "RSA", "kid": kid, "n": n, "e": e, "use": "sig"});
        let key = EncodingKey::from_rsa_der(key.to_pkcs1_der().unwrap().as_bytes());
        Signs { algorithm, key, jwk }
    }

    pub(crate) fn p256(kid: &str) -> Self {
        Self::elliptic(kid, Algorithm::ES256, "P-256", &ECDSA_P256_SHA256_FIXED_SIGNING)
    }

    pub(crate) fn p384(kid: &str) -> Self {
        Self::elliptic(kid, Algorithm::ES384, "P-384", &ECDSA_P384_SHA384_FIXED_SIGNING)
    }

    fn elliptic(kid: &str, algorithm: Algorithm, curve: &str, how: &'static EcdsaSigningAlgorithm) -> Self {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(how, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(how, made.as_ref(), &random).unwrap();
        let point = &pair.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        let jwk = json!({"kty": "EC", "crv": curve, "kid": kid, "x": base64(x), "y": base64(y)});
        Signs { algorithm, key: EncodingKey::from_ec_der(made.as_ref()), jwk }
    }

    pub(crate) fn ed25519(kid: &str) -> Self {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).unwrap();
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        // The key as PKCS #8 has it (RFC 8410).
        let before = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        let made = [before.as_slice(), &seed].concat();
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": base64(pair.public_key()), "alg": "EdDSA"});
        Signs { algorithm: Algorithm::EdDSA, key: EncodingKey::from_ed_der(&made), jwk }
    }

    /// A token with these claims, as a credential.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_of(self.jwk["kid"].as_str(), claims)
    }

    /// A token that says that it is signed with this key.
    pub(crate) fn token_of(&self, kid: Option<&str>, claims: &Value) -> String {
        let header = Header { kid: kid.map(str::to_owned), ..Header::new(self.algorithm) };
        format!("Bearer {}", encode(&header, claims, &self.key).unwrap())
    }
}

/// An issuer that can be asked for its keys.
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
    pub(crate) async fn start(keys: &[&Signs]) -> Self {
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
        issuer.call_itself(&issuer.url());
        issuer.publish(keys);
        issuer
    }

    /// What `iss` is.
    pub(crate) fn url(&self) -> String {
        self.web.url("")
    }

    pub(crate) fn publish(&self, keys: &[&Signs]) {
        self.state.lock().unwrap().keys = keys.iter().map(|key| key.jwk.clone()).collect();
    }

    pub(crate) fn publish_raw(&self, keys: Vec<Value>) {
        self.state.lock().unwrap().keys = keys;
    }

    pub(crate) fn call_itself(&self, issuer: &str) {
        self.state.lock().unwrap().issuer = issuer.to_owned();
    }

    pub(crate) fn go_away(&self) {
        self.state.lock().unwrap().is_away = true;
    }

    /// How often its keys were asked for.
    pub(crate) fn fetches(&self) -> usize {
        self.web.asked().iter().filter(|asked| asked.path == "/keys").count()
    }

    /// Claims that are good, of somebody who may look and manage.
    pub(crate) fn claims(&self) -> Value {
        let now = BEGINS.micros() / 1_000_000;
        json!({
            "iss": self.url(), "aud": AUDIENCE, "sub": "ann", "iat": now, "nbf": now, "exp": now + 600,
            "scope": "openid workflow:view workflow:manage",
        })
    }
}
