//! The HTTP client for outgoing requests. It connects only to addresses that were checked.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};

use super::SetupError;
use super::target::{Allowed, Forbidden, Resolver};

/// Read buffer of a connection in bytes. It is also the maximum size of a response head.
const BUFFER: usize = 64 * 1024;

/// An HTTP client without a connection pool, so that each request resolves its host and checks the addresses.
pub(crate) type HttpClient = Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>;

/// Builds a client. A host that is an IP address is not resolved, so callers must check such requests first with
/// `Allowed::check`.
pub(crate) fn client(
    allowed: Arc<Allowed>,
    tls: Option<ClientConfig>,
    connect_within: Duration,
) -> Result<HttpClient, SetupError> {
    let mut tls = tls.map_or_else(system_tls, Ok)?;
    tls.alpn_protocols.clear();
    let mut http = HttpConnector::new_with_resolver(Resolver::new(allowed));
    http.enforce_http(false);
    http.set_connect_timeout(Some(connect_within));
    let https =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(http);
    let client = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .http1_max_buf_size(BUFFER)
        .build(https);
    Ok(client)
}

/// Reason why a request got no response.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The host resolves to a forbidden address. Not retryable.
    Forbidden(Forbidden),
    /// A network error. Retryable.
    Broken(String),
}

/// Classifies an error of the client.
pub(crate) fn unanswered(error: &(dyn StdError + 'static)) -> Unanswered {
    let (mut why, mut cause) = (Vec::new(), Some(error));
    while let Some(error) = cause {
        if let Some(forbidden) = error.downcast_ref::<Forbidden>() {
            return Unanswered::Forbidden(forbidden.clone());
        }
        why.push(error.to_string());
        cause = error.source();
    }
    Unanswered::Broken(why.join(": "))
}

/// Returns a TLS configuration that trusts the certificate authorities of the system.
pub fn system_tls() -> Result<ClientConfig, SetupError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!("the system has no certificate authorities: https connections will fail");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| SetupError(error.to_string()))?;
    Ok(versions.with_root_certificates(roots).with_no_client_auth())
}
