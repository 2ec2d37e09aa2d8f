//! Every setting there is, with its default.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use stepwell::Grants;
use stepwell::core::document::cases::duration;
use stepwell::core::time::duration_ms;
use stepwell_server::api::Algorithm;
use uuid::Uuid;

/// The configuration of the server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) server: Server,
    pub(crate) auth: Auth,
    pub(crate) quota: Quota,
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
    /// How long an answer may take to be made, waiting that was asked for not counted.
    pub(crate) answer_timeout: Span,
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
    /// Requests per second that may come from one address, or name one tenant, without a credential; 0 = any number.
    pub(crate) open_per_second: u32,
    /// Credentials that are not good which may come from one address within a minute; 0 = any number.
    pub(crate) guesses_per_minute: u32,
    /// Addresses of proxies that say truly in `X-Forwarded-For` where a request comes from.
    pub(crate) trusted_proxies: Vec<IpAddr>,
}

/// Who is let in besides those with an API key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Auth {
    /// Issuers of OpenID Connect whose tokens are taken.
    pub(crate) oidc: Vec<Oidc>,
}

/// An issuer whose tokens are taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Oidc {
    /// What it is called here: the actor is `oidc:NAME:SUB`.
    pub(crate) name: String,
    /// What `iss` has to be.
    pub(crate) issuer: String,
    /// What has to be in `aud`: one, or one of several.
    pub(crate) audience: OneOrMore,
    /// Where its keys are; without this the issuer says where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) jwks_url: Option<String>,
    /// A file with its keys, which are then always these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) jwks_file: Option<String>,
    /// How it signs; without this, as any public key can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) algorithms: Option<BTreeSet<Algorithm>>,
    /// How far its clock may be from ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leeway: Option<Span>,
    /// The id of the tenant that everybody with its tokens belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<Uuid>,
    /// Or the claim that has the tenant's id or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant_claim: Option<String>,
    /// The claim that says what somebody may do; `scope` unless this says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) permissions_claim: Option<String>,
    /// What its values permit; without this they are the names of permissions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) roles: BTreeMap<String, Grants>,
    /// The claim that says who it is; `sub` unless this says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) actor_claim: Option<String>,
    /// How old keys get before they are fetched again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refresh: Option<Span>,
    /// How long keys are good when the issuer does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keep: Option<Span>,
}

/// How much a tenant may have that has no quota of its own; 0 = any number.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quota {
    /// API keys.
    pub(crate) api_keys: u32,
    /// Workflows.
    pub(crate) workflows: u32,
    /// Schedules that are on.
    pub(crate) schedules: u32,
    /// Runs that have not ended.
    pub(crate) runs: u32,
}

/// A text, or a list of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMore {
    /// One.
    One(String),
    /// Several.
    More(BTreeSet<String>),
}

impl OneOrMore {
    pub(crate) fn all(&self) -> BTreeSet<String> {
        match self {
            OneOrMore::One(one) => [one.clone()].into(),
            OneOrMore::More(all) => all.clone(),
        }
    }
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
            answer_timeout: Span(60 * second),
            write_timeout: Span(30 * second),
            drain: Span(20 * second),
            body_bytes: 1024 * 1024,
            max_wait: Span(60 * second),
            requests_per_second: 0,
            burst: 1_000,
            open_per_second: 200,
            guesses_per_minute: 60,
            trusted_proxies: Vec::new(),
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
    /// Variables, and files that are in no tenant's folder, are for every tenant; without this only for the server's own.
    pub(crate) every_tenant: bool,
}

impl Default for Secrets {
    fn default() -> Self {
        Secrets { prefix: "STEPWELL_SECRET_".to_owned(), folder: None, every_tenant: false }
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
