//! What the command line asks: a server over HTTP, or the same API on a store in this process.

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
use crate::start::{self, Opened};

/// The server that is asked if none is named.
const SERVER: &str = "http://127.0.0.1:7077";
/// Where `stepwell dev` leaves its key.
const DEV_KEY: &str = "stepwell-data/dev.key";

/// Who is asked, and how.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Who is asked")]
pub(crate) struct Target {
    /// The server to ask.
    #[arg(long, value_name = "URL", env = "STEPWELL_SERVER", global = true)]
    server: Option<String>,
    /// Ask no server: work on this store directly (`sqlite:PATH`, `postgres://…`).
    #[arg(long, value_name = "URL", global = true, conflicts_with = "server")]
    database_url: Option<String>,
    /// The file with the API key; `STEPWELL_API_KEY` and `STEPWELL_API_KEY_FILE` do too.
    #[arg(long, value_name = "FILE", env = "STEPWELL_API_KEY_FILE", global = true)]
    api_key_file: Option<PathBuf>,
    /// The tenant, if a store is worked on directly; over HTTP it comes from the key.
    #[arg(long, value_name = "UUID", global = true)]
    tenant: Option<String>,
    /// How long to wait for an answer.
    #[arg(long, value_name = "DURATION", default_value = "90s", global = true)]
    timeout: String,
    /// Say what is asked and answered.
    #[arg(short, long, global = true)]
    verbose: bool,
}

/// A request to the API.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asking {
    pub(crate) method: Method,
    /// The path and the query.
    pub(crate) path: String,
    pub(crate) headers: Vec<(HeaderName, String)>,
    /// What kind of body, and the body.
    pub(crate) body: Option<(String, Vec<u8>)>,
}

impl Asking {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Asking { path: path.into(), ..Asking::default() }
    }
}

/// What was answered, if it was not a problem.
#[derive(Debug)]
pub(crate) struct Answered {
    /// What it is.
    pub(crate) kind: String,
    pub(crate) body: Bytes,
}

impl Answered {
    /// It is a text of its own kind: a document, a diagram.
    pub(crate) fn text(&self) -> Option<String> {
        let is_json = self.kind.is_empty() || self.kind.starts_with("application/json");
        (!is_json).then(|| String::from_utf8_lossy(&self.body).into_owned())
    }

    pub(crate) fn json(&self) -> Result<Value, Failure> {
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            Failure::unexpected(format!("the answer is not JSON ({error}): is this a Stepwell server?"))
        })
    }
}

type Https = hyper_rustls::HttpsConnector<hyper_util::client::legacy::connect::HttpConnector>;

enum Way {
    Server { url: String, key: Option<String>, client: HttpClient<Https, Full<Bytes>> },
    Store { router: Router, caller: Caller, engine: Engine },
}

/// Asks.
pub(crate) struct Client {
    way: Way,
    timeout: Duration,
    is_verbose: bool,
}

impl Target {
    /// Somebody to ask.
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
            let why = format!("`{url}` would get the API key in the clear: use `https://`");
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
                Failure::new(Code::NotFound, format!("the API key in {}: {error}", path.display()))
            })
        };
        if let Some(path) = &self.api_key_file {
            return read(path).map(Some);
        }
        if let Ok(key) = std::env::var("STEPWELL_API_KEY") {
            return Ok(Some(key));
        }
        // Whoever tries things out on this computer need not name the key that is there.
        let dev = Path::new(DEV_KEY);
        if is_here && dev.exists() { read(dev).map(Some) } else { Ok(None) }
    }

    /// Works on a store directly, as whoever has the right to it: everything is allowed, and on record.
    async fn store(&self, url: &str) -> Result<Way, Failure> {
        let flags = vec![("database.url", "--database-url", Some(url.to_owned()))];
        let settings = Config::read(&Sources::of(None, flags))?.settings;
        let opened = Opened::open(&settings).await?;
        // It starts and signals runs, and leaves working on them to servers.
        let options = Options { max_runs: 0, ..start::options(&settings) };
        let engine = start::engine(&settings, opened.store(), options, None).await?;
        let tenant = match &self.tenant {
            Some(tenant) => tenant.parse().map(TenantId::new).map_err(|_| {
                Failure::new(Code::Invalid, format!("`--tenant {tenant}`: a tenant is a UUID"))
            })?,
            None => TenantScope::SINGLE,
        };
        let user = std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
        let caller =
            Caller::new(TenantScope::vouched(tenant), Actor::granted(format!("cli:{user}"), Grants::all()));
        let router = Arc::new(start::server(&settings, &opened, &engine)?).router();
        Ok(Way::Store { router, caller, engine })
    }
}

impl Client {
    /// Asks, and gives the answer; a problem is a failure.
    pub(crate) async fn ask(&self, asking: Asking) -> Result<Answered, Failure> {
        let answered = tokio::time::timeout(self.timeout, async {
            let (status, kind, body) = self.begin(asking).await?;
            let body =
                body.collect().await.map_err(|error| Failure::new(Code::Unreachable, error.to_string()))?;
            Ok::<_, Failure>((status, kind, body.to_bytes()))
        });
        let (status, kind, body) = answered.await.map_err(|_| {
            Failure::new(
                Code::TimedOut,
                format!("no answer within {} s (`--timeout`)", self.timeout.as_secs()),
            )
        })??;
        if status.is_success() { Ok(Answered { kind, body }) } else { Err(refused(status, &body)) }
    }

    /// Asks for a stream, and gives its parts as they come; a problem is a failure.
    pub(crate) async fn stream(&self, asking: Asking) -> Result<Body, Failure> {
        let (status, _, body) = self.begin(asking).await?;
        if status.is_success() {
            return Ok(body);
        }
        let body = body.collect().await.map_err(Failure::unexpected)?;
        Err(refused(status, &body.to_bytes()))
    }

    async fn begin(&self, asking: Asking) -> Result<(StatusCode, String, Body), Failure> {
        let Asking { method, path, headers, body } = asking;
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
            let bearer = bearer
                .map_err(|_| Failure::new(Code::Invalid, "the API key has characters that no key has"))?;
            request = request.header(AUTHORIZATION, bearer);
        }
        let wrong =
            |error: axum::http::Error| Failure::new(Code::Invalid, format!("this cannot be asked: {error}"));
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
            crate::output::talk(&format!("{asked}: {} after {took} ms", head.status));
        }
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        Ok((head.status, kind.to_owned(), body))
    }

    /// Lets go of the store, if one was worked on.
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
        "{url} cannot be reached ({why}): start a server (`stepwell dev`), or name one with `--server`"
    );
    Failure::new(Code::Unreachable, what)
}

/// A problem, as the program ends with it.
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
        return Failure::new(code, format!("the server said {status}"));
    };
    let mut message = problem["detail"].as_str().unwrap_or("the server said no").to_owned();
    for error in problem["errors"].as_array().into_iter().flatten() {
        let (pointer, why) =
            (error["pointer"].as_str().unwrap_or_default(), error["message"].as_str().unwrap_or_default());
        let place = if pointer.is_empty() { String::new() } else { format!("{pointer}: ") };
        message.push_str(&format!("\n  {place}{why}"));
    }
    if code == Code::Denied && status == StatusCode::UNAUTHORIZED {
        message.push_str(" Name a file with one: `--api-key-file FILE`.");
    }
    if let Some(trace) = problem["traceId"].as_str().filter(|_| status.is_server_error()) {
        message.push_str(&format!(" (trace {trace})"));
    }
    Failure::new(code, message)
}
