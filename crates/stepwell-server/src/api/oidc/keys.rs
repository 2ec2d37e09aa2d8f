//! Caches the public keys of an issuer. It fetches them on demand and limits the rate of requests to the issuer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::header::{ACCEPT, USER_AGENT};
use axum::http::{Request, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use serde::Deserialize;
use tokio::time::Instant;

use super::token::{Key, Token};
use super::{IssuerOptions, KeySource};
use crate::outlets::SetupError;
use crate::outlets::client::{HttpClient, Unanswered, client, unanswered};
use crate::outlets::target::{Allowed, plain_host};

/// Maximum time for fetching the keys, discovery included.
const WITHIN: Duration = Duration::from_secs(5);
/// Maximum size of an issuer's response, in bytes.
const ANSWER_BYTES: usize = 256 * 1024;

/// Path of the discovery document under the issuer's URL.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// The cached public keys of an issuer.
pub(super) struct Keys {
    /// Address that keys are fetched from; `None` = the key set is fixed.
    source: Option<Source>,
    state: Mutex<State>,
    /// Held while keys are fetched, so that only one request to the issuer runs at a time.
    asking: tokio::sync::Mutex<()>,
    refresh: Duration,
    max_stale: Duration,
    pause: Duration,
}

#[derive(Default)]
struct State {
    known: Option<Known>,
    /// Time of the last request to the issuer, failed ones included.
    asked: Option<Instant>,
}

#[derive(Clone)]
struct Known {
    keys: Arc<Vec<Key>>,
    at: Instant,
}

/// The issuer's keys could not be fetched and none are cached.
#[derive(Debug)]
pub(super) struct IssuerUnavailable;

impl Keys {
    pub(super) fn new(options: &IssuerOptions) -> Result<Self, SetupError> {
        let wrong = |why: String| SetupError::new(format!("issuer `{}`: {why}", options.name));
        let mut state = State::default();
        let source = match &options.keys {
            KeySource::Set(text) => {
                let keys = Key::set(text.as_bytes()).map_err(|why| wrong(format!("invalid keys: {why}")))?;
                state.known = Some(Known { keys: Arc::new(keys), at: Instant::now() });
                None
            }
            KeySource::Discovery => {
                let url = format!("{}{DISCOVERY}", options.issuer.trim_end_matches('/'));
                Some(Source::new(&url, Some(options.issuer.clone())).map_err(wrong)?)
            }
            KeySource::Url(url) => Some(Source::new(url, None).map_err(wrong)?),
        };
        let IssuerOptions { refresh, max_stale, pause, .. } = *options;
        Ok(Keys {
            source,
            state: Mutex::new(state),
            asking: tokio::sync::Mutex::default(),
            refresh,
            max_stale,
            pause,
        })
    }

    /// Returns the one key that fits the token. Returns `None` if no key fits, or more than one.
    pub(super) async fn of(self: &Arc<Self>, token: &Token<'_>) -> Result<Option<KeyOf>, IssuerUnavailable> {
        let known = self.known();
        if let Some(known) = &known
            && let Some(key) = KeyOf::find(&known.keys, token)
        {
            if self.source.is_some() && known.at.elapsed() > self.refresh && self.is_time_to_ask() {
                let keys = self.clone();
                tokio::spawn(async move { keys.ask().await });
            }
            return Ok(Some(key));
        }
        self.ask().await;
        let known = self.known().ok_or(IssuerUnavailable)?;
        Ok(KeyOf::find(&known.keys, token))
    }

    /// Returns the cached keys, unless they are older than `max_stale`.
    fn known(&self) -> Option<Known> {
        let known = self.state().known.clone();
        known.filter(|known| self.source.is_none() || known.at.elapsed() <= self.max_stale)
    }

    fn is_time_to_ask(&self) -> bool {
        self.state().asked.is_none_or(|asked| asked.elapsed() >= self.pause)
    }

    /// Fetches the issuer's keys, unless the last request was less than `pause` ago.
    async fn ask(&self) {
        let Some(source) = &self.source else { return };
        let _turn = self.asking.lock().await;
        if !self.is_time_to_ask() {
            return;
        }
        self.state().asked = Some(Instant::now());
        match tokio::time::timeout(WITHIN, source.keys()).await.unwrap_or_else(|_| Err("timed out".into())) {
            Ok(keys) => {
                tracing::debug!(from = %source.url, keys = keys.len(), "fetched the keys of an issuer");
                self.state().known = Some(Known { keys: Arc::new(keys), at: Instant::now() });
            }
            Err(why) => {
                tracing::warn!(from = %source.url, %why, "cannot fetch an issuer's keys; cached keys stay in use");
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key, by its index in the set that it was found in.
pub(super) struct KeyOf {
    keys: Arc<Vec<Key>>,
    at: usize,
}

impl KeyOf {
    fn find(keys: &Arc<Vec<Key>>, token: &Token<'_>) -> Option<Self> {
        let mut fitting = keys.iter().enumerate().filter(|(_, key)| key.fits(token));
        let (Some((at, _)), None) = (fitting.next(), fitting.next()) else { return None };
        Some(KeyOf { keys: keys.clone(), at })
    }

    pub(super) fn key(&self) -> &Key {
        &self.keys[self.at]
    }
}

/// Address and HTTP client for fetching an issuer's keys.
struct Source {
    url: Uri,
    /// If set, `url` is a discovery document, and its `issuer` must be this one.
    issuer: Option<String>,
    allowed: Arc<Allowed>,
    client: HttpClient,
}

/// The fields of a discovery document that are read.
#[derive(Deserialize)]
struct Discovered {
    issuer: String,
    jwks_uri: String,
}

impl Source {
    fn new(url: &str, issuer: Option<String>) -> Result<Self, String> {
        let mut allowed = Allowed::default();
        // The operator configured this host, so it may be in a private network. Hosts that it refers to may not.
        if let Some(host) = url.parse::<Uri>().ok().as_ref().and_then(Uri::host) {
            allowed.private.insert(plain_host(host));
        }
        let url = allowed.target(url).map_err(|error| format!("cannot fetch keys from `{url}`: {error}"))?;
        let allowed = Arc::new(allowed);
        let client = client(allowed.clone(), None, WITHIN).map_err(|error| error.to_string())?;
        Ok(Source { url, issuer, allowed, client })
    }

    async fn keys(&self) -> Result<Vec<Key>, String> {
        let first = self.get(self.url.clone()).await?;
        let Some(issuer) = &self.issuer else { return Key::set(&first) };
        let found: Discovered = serde_json::from_slice(&first)
            .map_err(|error| format!("the discovery document cannot be parsed: {error}"))?;
        if found.issuer != *issuer {
            return Err("the discovery document names another issuer".to_owned());
        }
        let url = self.allowed.target(&found.jwks_uri);
        Key::set(&self.get(url.map_err(|error| format!("`jwks_uri` is invalid: {error}"))?).await?)
    }

    async fn get(&self, url: Uri) -> Result<Bytes, String> {
        let request = Request::get(url)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("stepwell/", env!("CARGO_PKG_VERSION")));
        let request = request.body(Full::new(Bytes::new())).map_err(|error| error.to_string())?;
        let response = self.client.request(request).await.map_err(|error| match unanswered(&error) {
            Unanswered::Forbidden(forbidden) => forbidden.to_string(),
            Unanswered::Broken(why) => why,
        })?;
        if response.status() != StatusCode::OK {
            return Err(format!("the issuer answered with status {}", response.status().as_u16()));
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
        body.map(http_body_util::Collected::to_bytes)
            .map_err(|error| format!("the response of the issuer cannot be read: {error}"))
    }
}
