//! Every setting there is, with its default.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use stepwell::core::document::cases::duration;
use stepwell::core::time::duration_ms;

/// The configuration of the server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) server: Server,
    pub(crate) database: Database,
    pub(crate) engine: Engine,
    pub(crate) flows: Flows,
    pub(crate) http: Http,
    pub(crate) mail: Mail,
    pub(crate) secrets: Secrets,
    pub(crate) log: Log,
    pub(crate) metrics: Metrics,
    pub(crate) telemetry: Telemetry,
}

/// Who may connect, and how long they may take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    /// The address to listen at; port 0 = any free one.
    pub(crate) listen: String,
    /// The address that people and programs reach the server by, for links in mails.
    pub(crate) public_url: Option<String>,
    /// Connections at a time.
    pub(crate) max_connections: usize,
    /// How long the head of a request may take to arrive, and how long a connection may be idle.
    pub(crate) head_timeout: Span,
    /// How long a body may take to arrive.
    pub(crate) body_timeout: Span,
    /// How long a client may take to read some of an answer.
    pub(crate) write_timeout: Span,
    /// How long what is under way may take when the server is to stop.
    pub(crate) drain: Span,
    /// Bytes that a body has at most.
    pub(crate) body_bytes: usize,
    /// The longest that a request may ask to wait.
    pub(crate) max_wait: Span,
    /// Requests per second that a tenant may make on average; 0 = any number.
    pub(crate) requests_per_second: u32,
    /// Requests that a tenant may make at once.
    pub(crate) burst: u32,
}

impl Default for Server {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Server {
            listen: "127.0.0.1:7077".to_owned(),
            public_url: None,
            max_connections: 10_000,
            head_timeout: Span(30 * second),
            body_timeout: Span(30 * second),
            write_timeout: Span(30 * second),
            drain: Span(20 * second),
            body_bytes: 1024 * 1024,
            max_wait: Span(60 * second),
            requests_per_second: 0,
            burst: 1_000,
        }
    }
}

/// Where everything is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Database {
    /// `sqlite:PATH` or `postgres://…`.
    pub(crate) url: String,
    /// PostgreSQL: whose connection makes the tables and brings them up to date, if that is not the same role.
    pub(crate) migrate_url: Option<String>,
    /// PostgreSQL: the schema that the tables are in.
    pub(crate) schema: Option<String>,
}

impl Default for Database {
    fn default() -> Self {
        Database { url: "sqlite:stepwell-data/stepwell.sqlite".to_owned(), migrate_url: None, schema: None }
    }
}

/// How runs are worked on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Engine {
    /// Runs that this process works on at a time; 0 = it only answers requests.
    pub(crate) max_runs: usize,
    /// How long a process counts as living without a heartbeat.
    pub(crate) lease: Span,
    /// How long a run is kept after its end; nothing = for ever.
    pub(crate) retention: Option<Span>,
}

impl Default for Engine {
    fn default() -> Self {
        let options = stepwell::Options::default();
        let span = |ms| Span(Duration::from_millis(ms));
        Engine {
            max_runs: options.max_runs,
            lease: span(options.lease_ms),
            retention: options.retention_ms.map(span),
        }
    }
}

/// Flows that rest in tokens and behind handles.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flows {
    /// The file with the keys that seal tokens, one `id:key` a line, the first for writing; without it there are no flows.
    pub(crate) key_file: Option<String>,
}

/// Where the action `http.request` may go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Http {
    /// Hosts, addresses and networks that may be asked although they are private.
    pub(crate) allow: Vec<String>,
    /// If there are any, only these hosts are asked, and those of `allow`.
    pub(crate) only: Vec<String>,
    /// Only this computer is asked in the clear.
    pub(crate) https_only: bool,
}

/// The server that takes mails; without a host there is no action `email.send`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mail {
    /// The host.
    pub(crate) host: Option<String>,
    /// The port, if it is not the usual one.
    pub(crate) port: Option<u16>,
    /// Who mails are from.
    pub(crate) from: Option<String>,
    /// The name to sign in with.
    pub(crate) user: Option<String>,
    /// The password.
    pub(crate) password: Option<String>,
    /// `tls`, `starttls`, or `none` for a mail server on this computer.
    pub(crate) security: MailSecurity,
}

/// How what is said to the mail server is protected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MailSecurity {
    /// Encrypted from the first byte.
    #[default]
    Tls,
    /// Encrypted before anything is said.
    StartTls,
    /// Not at all.
    None,
}

/// Where `{ $secret: NAME }` is looked up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Secrets {
    /// What the names of variables begin with that hold secrets of workflows.
    pub(crate) prefix: String,
    /// A folder with a folder for each tenant, and in it a file for each secret; it goes before the environment.
    pub(crate) folder: Option<String>,
}

impl Default for Secrets {
    fn default() -> Self {
        Secrets { prefix: "STEPWELL_SECRET_".to_owned(), folder: None }
    }
}

/// What is written to standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    /// What is written, as `RUST_LOG` says it, which goes before this.
    pub(crate) filter: String,
    /// `text` or `json`.
    pub(crate) format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Log { filter: "info".to_owned(), format: LogFormat::Text }
    }
}

/// What is counted (`/metrics`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metrics {
    /// Everybody who can connect may read them; otherwise a credential with `workflow:view` of the server's own tenant is needed.
    pub(crate) public: bool,
}

/// Where traces go. Each setting also has its usual name, such as `OTEL_EXPORTER_OTLP_ENDPOINT`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Telemetry {
    /// The collector, such as `http://127.0.0.1:4318`; without one there are no traces.
    pub(crate) endpoint: Option<String>,
    /// The whole address for traces, if it is not `/v1/traces` there.
    pub(crate) traces_endpoint: Option<String>,
    /// How it is spoken to: `http/json`.
    pub(crate) protocol: String,
    /// What is sent along, such as credentials: `name=value,…`.
    pub(crate) headers: Option<String>,
    /// What this service is called there.
    pub(crate) service_name: String,
    /// What else is to be said of this process: `name=value,…`.
    pub(crate) resource: Option<String>,
    /// Which traces are written: `always_on`, `always_off`, `traceidratio`, also with `parentbased_` before it.
    pub(crate) sampler: String,
    /// The part that `traceidratio` writes, from 0 to 1.
    pub(crate) sampler_arg: f64,
    /// How long the collector may take.
    pub(crate) timeout: Span,
    /// There are no traces, whatever else is set.
    pub(crate) disabled: bool,
}

impl Default for Telemetry {
    fn default() -> Self {
        Telemetry {
            endpoint: None,
            traces_endpoint: None,
            protocol: "http/json".to_owned(),
            headers: None,
            service_name: "stepwell".to_owned(),
            resource: None,
            sampler: "parentbased_always_on".to_owned(),
            sampler_arg: 1.0,
            timeout: Span(Duration::from_secs(10)),
            disabled: false,
        }
    }
}

/// How a line of the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A duration: `30s`, `PT30S`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl Span {
    pub(crate) fn ms(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&duration(self.ms()))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let ms = duration_ms(&Value::String(text.clone()));
        let wrong =
            || serde::de::Error::custom(format!("`{text}` is not a duration, such as `30s` or `PT30S`"));
        ms.map(|ms| Span(Duration::from_millis(ms))).ok_or_else(wrong)
    }
}

/// The setting is a URL that may have a password in it.
pub(super) fn is_url(name: &str) -> bool {
    matches!(
        name,
        "database.url" | "database.migrate_url" | "telemetry.endpoint" | "telemetry.traces_endpoint"
    )
}

/// The setting is nobody's business.
pub(super) fn is_secret(name: &str) -> bool {
    matches!(name, "mail.password" | "telemetry.headers")
}

/// The setting itself is the name of a file.
pub(super) fn is_file(name: &str) -> bool {
    name == "flows.key_file"
}
