//! The keys of an issuer: fetched when they are needed, known for a while, and never asked for more often than that.

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

/// How long an answer of an issuer may take.
const WITHIN: Duration = Duration::from_secs(5);
/// Bytes that an answer of an issuer has at most.
const ANSWER_BYTES: usize = 256 * 1024;

/// Where what a server says of itself is found, under an issuer.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// The keys of an issuer.
pub(super) struct Keys {
    /// Where they come from; `None` = they are always the same.
    source: Option<Source>,
    state: Mutex<State>,
    /// Whoever has it asks the issuer; there is one at a time.
    asking: tokio::sync::Mutex<()>,
    refresh: Duration,
    keep: Duration,
    pause: Duration,
}

#[derive(Default)]
struct State {
    known: Option<Known>,
    /// When the issuer was last asked, whatever came of it.
    asked: Option<Instant>,
}

#[derive(Clone)]
struct Known {
    keys: Arc<Vec<Key>>,
    at: Instant,
}

/// Nobody knows the issuer's keys now.
#[derive(Debug)]
pub(super) struct Away;

impl Keys {
    pub(super) fn new(options: &IssuerOptions) -> Result<Self, SetupError> {
        let wrong = |why: String| SetupError::new(format!("issuer `{}`: {why}", options.name));
        let mut state = State::default();
        let source = match &options.keys {
            KeySource::Set(text) => {
                let keys = Key::set(text.as_bytes()).map_err(|why| wrong(format!("its keys: {why}")))?;
                state.known = Some(Known { keys: Arc::new(keys), at: Instant::now() });
                None
            }
            KeySource::Discovery => {
                let url = format!("{}{DISCOVERY}", options.issuer.trim_end_matches('/'));
                Some(Source::new(&url, Some(options.issuer.clone())).map_err(wrong)?)
            }
            KeySource::Url(url) => Some(Source::new(url, None).map_err(wrong)?),
        };
        let IssuerOptions { refresh, keep, pause, .. } = *options;
        Ok(Keys {
            source,
            state: Mutex::new(state),
            asking: tokio::sync::Mutex::default(),
            refresh,
            keep,
            pause,
        })
    }

    /// The key that a token is signed with, if the issuer has it and only it can be meant.
    pub(super) async fn of(self: &Arc<Self>, token: &Token<'_>) -> Result<Option<KeyOf>, Away> {
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
        let known = self.known().ok_or(Away)?;
        Ok(KeyOf::find(&known.keys, token))
    }

    /// What is known, unless it was known for too long.
    fn known(&self) -> Option<Known> {
        let known = self.state().known.clone();
        known.filter(|known| self.source.is_none() || known.at.elapsed() <= self.keep)
    }

    fn is_time_to_ask(&self) -> bool {
        self.state().asked.is_none_or(|asked| asked.elapsed() >= self.pause)
    }

    /// Asks the issuer for its keys, unless that was done a moment ago.
    async fn ask(&self) {
        let Some(source) = &self.source else { return };
        let _turn = self.asking.lock().await;
        if !self.is_time_to_ask() {
            return;
        }
        self.state().asked = Some(Instant::now());
        match tokio::time::timeout(WITHIN, source.keys())
            .await
            .unwrap_or_else(|_| Err("it took too long".into()))
        {
            Ok(keys) => {
                tracing::debug!(from = %source.url, keys = keys.len(), "an issuer's keys were fetched");
                self.state().known = Some(Known { keys: Arc::new(keys), at: Instant::now() });
            }
            Err(why) => {
                tracing::warn!(from = %source.url, %why, "an issuer's keys cannot be had; those known go on");
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key among those it was found in.
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

/// Where the keys of an issuer are fetched.
struct Source {
    url: Uri,
    /// What is found there says where the keys are, and has to be of this issuer.
    issuer: Option<String>,
    allowed: Arc<Allowed>,
    client: HttpClient,
}

/// What an issuer says of itself, as far as it is looked at.
#[derive(Deserialize)]
struct Discovered {
    issuer: String,
    jwks_uri: String,
}

impl Source {
    fn new(url: &str, issuer: Option<String>) -> Result<Self, String> {
        let mut allowed = Allowed::default();
        // Whoever runs the server has named this host: it may be in their own network. Others it leads to may not.
        if let Some(host) = url.parse::<Uri>().ok().as_ref().and_then(Uri::host) {
            allowed.private.insert(plain_host(host));
        }
        let url =
            allowed.target(url).map_err(|error| format!("its keys cannot be fetched at `{url}`: {error}"))?;
        let allowed = Arc::new(allowed);
        let client = client(allowed.clone(), None, WITHIN).map_err(|error| error.to_string())?;
        Ok(Source { url, issuer, allowed, client })
    }

    async fn keys(&self) -> Result<Vec<Key>, String> {
        let first = self.get(self.url.clone()).await?;
        let Some(issuer) = &self.issuer else { return Key::set(&first) };
        let found: Discovered = serde_json::from_slice(&first)
            .map_err(|error| format!("what it says of itself cannot be read: {error}"))?;
        if found.issuer != *issuer {
            return Err("it says that it is another issuer".to_owned());
        }
        let url = self.allowed.target(&found.jwks_uri);
        Key::set(&self.get(url.map_err(|error| format!("where it says its keys are: {error}"))?).await?)
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
            return Err(format!("it answered with status {}", response.status().as_u16()));
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
        body.map(http_body_util::Collected::to_bytes)
            .map_err(|error| format!("its answer was not read: {error}"))
    }
}
