//! The API client of the command line: over HTTP to a server, or in this process on a database.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName};
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use stepwell::store::{TenantId, TenantScope};
use stepwell::{Actor, Engine, Grants, Options};
use stepwell_server::api::Caller;
use stepwell_server::outlets::system_tls;
use tower_service::Service;

use crate::config::{Config, Sources};
use crate::exit::{Code, Failure};
use crate::flows::{self, Delivery};
use crate::start::{self, Opened, Purpose};

const SERVER: &str = "http://127.0.0.1:7077";
/// File to which `stepwell dev` writes its API key.
const DEV_KEY: &str = "stepwell-data/dev.key";

/// The connection options of every verb.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Connection options")]
pub(crate) struct Target {
    /// URL of the server (default: `http://127.0.0.1:7077`).
    #[arg(long, value_name = "URL", env = "STEPWELL_SERVER", global = true)]
    server: Option<String>,
    /// Work on this database directly, without a server: `sqlite:PATH` or `postgres://…`.
    #[arg(long, value_name = "URL", global = true, conflicts_with = "server")]
    database_url: Option<String>,
    /// File with the API key (local default: `stepwell-data/dev.key`); `STEPWELL_API_KEY` can hold the key itself.
    #[arg(long, value_name = "FILE", env = "STEPWELL_API_KEY_FILE", global = true)]
    api_key_file: Option<PathBuf>,
    /// Tenant id, for use with `--database-url`; over HTTP the API key determines the tenant.
    #[arg(long, value_name = "UUID", global = true)]
    tenant: Option<String>,
    /// Maximum time to wait for a response.
    #[arg(long, value_name = "DURATION", default_value = "90s", global = true)]
    timeout: String,
    /// Print each request with its status and duration to standard error.
    #[arg(short, long, global = true)]
    verbose: bool,
}

/// A request to the API.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApiRequest {
    pub(crate) method: Method,
    /// Path and query string.
    pub(crate) path: String,
    pub(crate) headers: Vec<(HeaderName, String)>,
    /// Content type and body.
    pub(crate) body: Option<(String, Vec<u8>)>,
}

impl ApiRequest {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        ApiRequest { path: path.into(), ..ApiRequest::default() }
    }
}

#[derive(Debug)]
pub(crate) struct Answered {
    /// The content type; empty if the response has none.
    pub(crate) kind: String,
    pub(crate) body: Bytes,
}

impl Answered {
    /// Returns the body as text if it is not JSON, for example a workflow document or a diagram.
    pub(crate) fn text(&self) -> Option<String> {
        let is_json = self.kind.is_empty() || self.kind.starts_with("application/json");
        (!is_json).then(|| String::from_utf8_lossy(&self.body).into_owned())
    }

    pub(crate) fn json(&self) -> Result<Value, Failure> {
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            Failure::unexpected(format!(
                "the response is not valid JSON ({error}): is this a Stepwell server?"
            ))
        })
    }
}

type Https = hyper_rustls::HttpsConnector<hyper_util::client::legacy::connect::HttpConnector>;

enum Way {
    Server { url: String, key: Option<String>, client: HttpClient<Https, Full<Bytes>> },
    Store { router: Router, caller: Caller, engine: Engine },
}

/// Sends requests to a server or to an engine in this process.
pub(crate) struct Client {
    way: Way,
    timeout: Duration,
    is_verbose: bool,
}

impl Target {
    /// Returns the options for a server at this URL.
    pub(crate) fn at(server: String, api_key_file: Option<PathBuf>) -> Self {
        let (timeout, is_verbose) = ("90s".to_owned(), false);
        Target {
            server: Some(server),
            database_url: None,
            api_key_file,
            tenant: None,
            timeout,
            verbose: is_verbose,
        }
    }

    /// Opens the client that the options describe.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        let timeout = crate::cli::duration(&self.timeout)?;
        let way = match &self.database_url {
            Some(url) => self.store(url).await?,
            None => self.remote()?,
        };
        Ok(Client { way, timeout, is_verbose: self.verbose })
    }

    fn remote(&self) -> Result<Way, Failure> {
        let url = self.server.as_deref().unwrap_or(SERVER).trim_end_matches('/').to_owned();
        let parsed: Uri =
            url.parse().map_err(|error| Failure::new(Code::Invalid, format!("`--server {url}`: {error}")))?;
        if !matches!(parsed.scheme_str(), Some("http" | "https")) || parsed.host().is_none() {
            let why = format!("`--server {url}`: write `http://HOST:PORT` or `https://HOST`");
            return Err(Failure::new(Code::Invalid, why));
        }
        let is_here = matches!(parsed.host(), Some("127.0.0.1" | "localhost" | "[::1]"));
        let key = self.key(is_here)?;
        if parsed.scheme_str() == Some("http") && !is_here && key.is_some() {
            let why = format!("the API key would be sent unencrypted to `{url}`: use `https://`");
            return Err(Failure::new(Code::Invalid, why));
        }
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(system_tls().map_err(Failure::unexpected)?)
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Way::Server { url, key, client: HttpClient::builder(TokioExecutor::new()).build(https) })
    }

    fn key(&self, is_here: bool) -> Result<Option<String>, Failure> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(|error| {
                Failure::new(
                    Code::NotFound,
                    format!("cannot read the API key file {}: {error}", path.display()),
                )
            })
        };
        if let Some(path) = &self.api_key_file {
            return read(path).map(Some);
        }
        if let Ok(key) = std::env::var("STEPWELL_API_KEY") {
            return Ok(Some(key));
        }
        // For a local server, the key of `stepwell dev` is the default.
        let dev = Path::new(DEV_KEY);
        if is_here && dev.exists() { read(dev).map(Some) } else { Ok(None) }
    }

    /// Opens a database directly. Access to the database implies every permission; the audit log records `cli:USER`.
    async fn store(&self, url: &str) -> Result<Way, Failure> {
        let flags = vec![("database.url", "--database-url", Some(url.to_owned()))];
        let mut settings = Config::read(&Sources::of(None, flags))?.settings;
        // Messages are queued for the server, which knows its public URL.
        let listen = format!("http://{}", settings.server.listen);
        settings.server.public_url.get_or_insert(listen);
        let opened = Opened::open(&settings, Purpose::Request).await?;
        // The client starts and signals runs, but does not execute them.
        let options = Options { max_runs: 0, ..start::options(&settings) };
        let engine = start::engine(&settings, opened.store(), options, None).await?;
        let tenant = match &self.tenant {
            Some(tenant) => tenant.parse().map(TenantId::new).map_err(|_| {
                Failure::new(Code::Invalid, format!("`--tenant {tenant}`: a tenant id is a UUID"))
            })?,
            None => TenantScope::SINGLE,
        };
        let user = std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
        let caller =
            Caller::new(TenantScope::trusted(tenant), Actor::granted(format!("cli:{user}"), Grants::all()));
        let server = start::server(&settings, &opened, &engine)?;
        let (server, _) = flows::add_to(server, &settings, &engine, Delivery::Elsewhere)?;
        let router = Arc::new(server).router();
        Ok(Way::Store { router, caller, engine })
    }
}

impl Client {
    /// Sends a request and returns the response. A problem response is a failure.
    pub(crate) async fn ask(&self, asking: ApiRequest) -> Result<Answered, Failure> {
        let answered = tokio::time::timeout(self.timeout, async {
            let (status, kind, body) = self.begin(asking).await?;
            let body =
                body.collect().await.map_err(|error| Failure::new(Code::Unreachable, error.to_string()))?;
            Ok::<_, Failure>((status, kind, body.to_bytes()))
        });
        let (status, kind, body) = answered.await.map_err(|_| {
            Failure::new(
                Code::TimedOut,
                format!("no response within {} s; `--timeout` sets the limit", self.timeout.as_secs()),
            )
        })??;
        if status.is_success() { Ok(Answered { kind, body }) } else { Err(refused(status, &body)) }
    }

    /// Sends a request and returns the response body as a stream. A problem response is a failure.
    pub(crate) async fn stream(&self, asking: ApiRequest) -> Result<Body, Failure> {
        let (status, _, body) = self.begin(asking).await?;
        if status.is_success() {
            return Ok(body);
        }
        let body = body.collect().await.map_err(Failure::unexpected)?;
        Err(refused(status, &body.to_bytes()))
    }

    async fn begin(&self, asking: ApiRequest) -> Result<(StatusCode, String, Body), Failure> {
        let ApiRequest { method, path, headers, body } = asking;
        let (asked, began) = (format!("{method} {path}"), std::time::Instant::now());
        let (kind, body) = body.map_or((None, Vec::new()), |(kind, body)| (Some(kind), body));
        let base = match &self.way {
            Way::Server { url, .. } => url.as_str(),
            Way::Store { .. } => "",
        };
        let mut request = Request::builder().method(method).uri(format!("{base}{path}"));
        if let Some(kind) = kind {
            request = request.header(CONTENT_TYPE, kind);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Way::Server { key: Some(key), .. } = &self.way {
            let bearer = HeaderValue::from_str(&format!("Bearer {key}"));
            let bearer =
                bearer.map_err(|_| Failure::new(Code::Invalid, "the API key contains invalid characters"))?;
            request = request.header(AUTHORIZATION, bearer);
        }
        let wrong =
            |error: axum::http::Error| Failure::new(Code::Invalid, format!("invalid request: {error}"));
        let response = match &self.way {
            Way::Server { url, client, .. } => {
                let request = request.body(Full::new(Bytes::from(body))).map_err(wrong)?;
                let response =
                    client.request(request).await.map_err(|error| unreachable_server(url, &error))?;
                response.map(Body::new)
            }
            Way::Store { router, caller, .. } => {
                let mut request = request.body(Body::from(body)).map_err(wrong)?;
                request.extensions_mut().insert(caller.clone());
                router.clone().call(request).await.unwrap_or_else(|never| match never {})
            }
        };
        let (head, body) = response.into_parts();
        if self.is_verbose {
            let took = began.elapsed().as_millis();
            crate::output::print_message(&format!("{asked}: {} after {took} ms", head.status));
        }
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        Ok((head.status, kind.to_owned(), body))
    }

    /// Stops the engine, if a database was opened directly.
    pub(crate) async fn close(self) {
        if let Way::Store { engine, .. } = self.way {
            engine.stop(Duration::from_secs(5)).await;
        }
    }
}

fn unreachable_server(url: &str, error: &hyper_util::client::legacy::Error) -> Failure {
    use std::error::Error as _;
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        why = next.to_string();
        cause = next.source();
    }
    let what = format!(
        "cannot reach {url} ({why}). Start a server with `stepwell dev`, or name one with `--server`"
    );
    Failure::new(Code::Unreachable, what)
}

/// Converts a problem response to a failure with its exit code.
fn refused(status: StatusCode, body: &[u8]) -> Failure {
    let code = match status.as_u16() {
        400 | 413 | 415 | 422 => Code::Invalid,
        401 | 403 => Code::Denied,
        404 | 410 => Code::NotFound,
        409 | 412 | 428 => Code::Conflict,
        408 | 504 => Code::TimedOut,
        502 | 503 => Code::Unreachable,
        _ => Code::Unexpected,
    };
    let Ok(problem) = serde_json::from_slice::<Value>(body) else {
        return Failure::new(code, format!("the server answered with status {status}"));
    };
    let mut message = problem["detail"].as_str().unwrap_or("the server refused the request").to_owned();
    for error in problem["errors"].as_array().into_iter().flatten() {
        let (pointer, why) =
            (error["pointer"].as_str().unwrap_or_default(), error["message"].as_str().unwrap_or_default());
        let place = if pointer.is_empty() { String::new() } else { format!("{pointer}: ") };
        message.push_str(&format!("\n  {place}{why}"));
    }
    if code == Code::Denied && status == StatusCode::UNAUTHORIZED {
        message.push_str(" Pass an API key with `--api-key-file FILE`.");
    }
    if let Some(trace) = problem["traceId"].as_str().filter(|_| status.is_server_error()) {
        message.push_str(&format!(" (trace {trace})"));
    }
    Failure { problem: Some(Box::new(problem)), ..Failure::new(code, message) }
}
