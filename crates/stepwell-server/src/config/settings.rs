//! All settings with their defaults. The doc comments of the sections and fields become `docs/reference/config.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use stepwell::Grants;
use stepwell::core::document::cases::duration;
use stepwell::core::limits::LimitInfo;
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
    pub(crate) limits: Limits,
    pub(crate) data: Data,
    pub(crate) audit: Audit,
    pub(crate) flows: Flows,
    pub(crate) http: Http,
    pub(crate) mail: Mail,
    pub(crate) secrets: Secrets,
    pub(crate) log: Log,
    pub(crate) metrics: Metrics,
    pub(crate) telemetry: Telemetry,
}

/// Listening address, timeouts and limits of the HTTP server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    /// Address to listen on. Port 0 picks a free port.
    pub(crate) listen: String,
    /// URL under which people reach the server, such as `https://flows.example.com`. It is the beginning of the links
    /// in messages and answers.
    pub(crate) public_url: Option<String>,
    /// Maximum number of open connections. Further connections get 503.
    pub(crate) max_connections: usize,
    /// Maximum time for the head of a request to arrive, and maximum idle time of a connection.
    pub(crate) head_timeout: Span,
    /// Maximum time for a request body to arrive.
    pub(crate) body_timeout: Span,
    /// Maximum time to produce a response, not counting a requested wait.
    pub(crate) answer_timeout: Span,
    /// Maximum time for which a client may stop reading a response.
    pub(crate) write_timeout: Span,
    /// Maximum time for requests in flight to finish when the server stops.
    pub(crate) shutdown_timeout: Span,
    /// Maximum size of a request body in bytes.
    pub(crate) body_bytes: usize,
    /// Upper limit of the wait that a request may ask for.
    pub(crate) max_wait: Span,
    /// Rate limit per tenant, in requests per second on average; 0 means unlimited.
    pub(crate) requests_per_second: Quantity,
    /// Number of requests that a tenant may send at once before the rate limit applies.
    pub(crate) burst: u32,
    /// Rate limit for requests without a credential, per client address and per tenant, in requests per second; 0 means
    /// unlimited.
    pub(crate) anonymous_requests_per_second: Quantity,
    /// Failed authentication attempts allowed per client address and minute; 0 means unlimited.
    pub(crate) auth_failures_per_minute: Quantity,
    /// Addresses of proxies whose `X-Forwarded-For` header is trusted.
    pub(crate) trusted_proxies: Vec<IpAddr>,
}

/// Authentication besides API keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Auth {
    /// OpenID Connect issuers whose tokens are accepted.
    pub(crate) oidc: Vec<Oidc>,
}

/// An OpenID Connect issuer whose tokens are accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Oidc {
    /// Name of the issuer on this server. Actors are recorded as `oidc:NAME:SUB`.
    pub(crate) name: String,
    /// Required value of the claim `iss`.
    pub(crate) issuer: String,
    /// Accepted audiences: the claim `aud` must contain one of them.
    pub(crate) audience: OneOrMore,
    /// URL of the issuer's keys (default: OpenID Connect discovery).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) jwks_url: Option<String>,
    /// File with the issuer's keys, as a JSON Web Key Set. It is read once at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) jwks_file: Option<String>,
    /// Accepted signature algorithms (default: all that use a public key).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) algorithms: Option<BTreeSet<Algorithm>>,
    /// Allowed difference between the issuer's clock and ours (default: 30s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leeway: Option<Span>,
    /// Id of the tenant that all tokens of this issuer belong to. Set either this or `tenant_claim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<Uuid>,
    /// Claim with the id or name of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant_claim: Option<String>,
    /// Claim with the permissions or roles (default: `scope`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) permissions_claim: Option<String>,
    /// Permissions of each role. Without roles, the values of the claim are permissions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) roles: BTreeMap<String, Grants>,
    /// Claim with the roles that waits name as `role:NAME` (default: `permissions_claim` if `roles` is set).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) roles_claim: Option<String>,
    /// Claim that identifies the user, which waits name as `user:ID` (default: `sub`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) actor_claim: Option<String>,
    /// Age after which the keys are fetched again (default: 5m).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refresh: Option<Span>,
    /// Maximum age of the keys while the issuer is unreachable (default: 24h).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_stale: Option<Span>,
}

/// Default quota of tenants without their own; 0 means unlimited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quota {
    /// Maximum number of API keys.
    pub(crate) api_keys: Quantity,
    /// Maximum number of workflows.
    pub(crate) workflows: Quantity,
    /// Maximum number of enabled schedules.
    pub(crate) schedules: Quantity,
    /// Maximum number of runs that have not ended.
    pub(crate) runs: Quantity,
}

/// A string, or a list of strings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMore {
    One(String),
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
            shutdown_timeout: Span(20 * second),
            body_bytes: 1024 * 1024,
            max_wait: Span(60 * second),
            requests_per_second: Quantity(0),
            burst: 1_000,
            anonymous_requests_per_second: Quantity(200),
            auth_failures_per_minute: Quantity(60),
            trusted_proxies: Vec::new(),
        }
    }
}

/// The database: an SQLite file, or PostgreSQL.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Database {
    /// Database URL: `sqlite:PATH` or `postgres://…`, for PostgreSQL with `sslmode` and `sslrootcert` as libpq has them.
    pub(crate) url: String,
    /// PostgreSQL: URL for the role that owns and migrates the tables; without it, they must be up to date.
    pub(crate) migrate_url: Option<String>,
    /// PostgreSQL: schema of the tables.
    pub(crate) schema: Option<String>,
    /// PostgreSQL: maximum number of pooled connections. Two more are used for the session and for heartbeats.
    pub(crate) connections: usize,
    /// PostgreSQL: keep a session that shows other processes that this one is alive. Set it to false behind a
    /// transaction pooler.
    pub(crate) session: bool,
    /// PostgreSQL: notify other processes of changed runs and keys. Set it to false behind a transaction pooler.
    pub(crate) notify: bool,
    /// PostgreSQL: maximum time for an answer of the database. Then the connection counts as lost.
    pub(crate) response_timeout: Span,
    /// Maximum number of commits in one transaction.
    pub(crate) batch: usize,
    /// Maximum number of queued commits. Further ones wait.
    pub(crate) queue: usize,
}

impl Default for Database {
    fn default() -> Self {
        let options = stepwell_postgres::Options::default();
        Database {
            url: "sqlite:stepwell-data/stepwell.sqlite".to_owned(),
            migrate_url: None,
            schema: None,
            connections: options.connections,
            session: options.session,
            notify: options.notify,
            response_timeout: Span(options.response_timeout),
            batch: options.batch,
            queue: options.queue,
        }
    }
}

/// Execution and retention of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Engine {
    /// Maximum number of runs this process executes at once; 0 only serves requests.
    pub(crate) max_runs: usize,
    /// Lease of a process: without a heartbeat for this long, other processes take over its runs.
    pub(crate) lease: Span,
    /// Time for which ended runs are kept; `never` deletes none. A workflow can set its own time (`spec.retention`).
    pub(crate) retention: Lifetime,
    /// Time for which ended runs of single workflows are kept: `NAME = "7d"` or `NAME = "never"`. It overrides the time
    /// that a workflow sets itself.
    pub(crate) workflow_retention: BTreeMap<String, Lifetime>,
    /// Time for which idempotency keys of signals, data writes and flows are remembered.
    pub(crate) idempotency_key_ttl: Lifetime,
    /// Maximum number of runs of single workflows that this process executes at once: `NAME = 5`. Other workflows have
    /// no limit of their own.
    pub(crate) max_runs_per_workflow: BTreeMap<String, usize>,
    /// Timeout of actions whose step sets none.
    pub(crate) action_timeout: Lifetime,
    /// Number of crashes of processes during one step after which the run stops.
    pub(crate) max_crashes: u32,
    /// Time for which a signal is kept that its run does not expect yet.
    pub(crate) signal_ttl: Lifetime,
    /// Time for which an event stays available to waits that open later.
    pub(crate) event_ttl: Lifetime,
    /// Interval at which the database is polled for due runs, besides notifications.
    pub(crate) poll: Span,
    /// Interval between two cleanups of expired data.
    pub(crate) maintenance_interval: Span,
}

impl Default for Engine {
    fn default() -> Self {
        let options = stepwell::Options::default();
        let span = |ms| Span(Duration::from_millis(ms));
        Engine {
            max_runs: options.max_runs,
            lease: span(options.lease_ms),
            retention: options.retention_ms.map_or(Lifetime::Never, |ms| Lifetime::Span(span(ms))),
            workflow_retention: BTreeMap::new(),
            idempotency_key_ttl: Lifetime::Span(span(options.idempotency_key_ttl_ms)),
            max_runs_per_workflow: BTreeMap::new(),
            action_timeout: Lifetime::Span(span(options.action_timeout_ms)),
            max_crashes: options.max_crashes,
            signal_ttl: Lifetime::Span(span(options.signal_ttl_ms)),
            event_ttl: Lifetime::Span(span(options.event_ttl_ms)),
            poll: span(options.poll_ms),
            maintenance_interval: span(options.maintenance_interval_ms),
        }
    }
}

/// Limits of workflows, runs and data. The error for an exceeded limit names it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Limits(pub(crate) stepwell::core::Limits);

impl Limits {
    /// Returns the limits that can be configured.
    pub(crate) fn all() -> impl Iterator<Item = &'static LimitInfo> {
        stepwell::core::Limits::ALL.iter().filter(|limit| limit.least < limit.most)
    }
}

impl Serialize for Limits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut all = serde_json::to_value(&self.0).map_err(serde::ser::Error::custom)?;
        let known = Limits::all().map(|limit| (limit.name, all[limit.name].take()));
        serializer.collect_map(known.map(|(name, value)| match value.as_u64() {
            Some(u64::MAX) => (name, UNLIMITED.into()),
            _ => (name, value),
        }))
    }
}

impl<'de> Deserialize<'de> for Limits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut given = serde_json::Map::deserialize(deserializer)?;
        for value in given.values_mut().filter(|value| is_endless(value)) {
            *value = u64::MAX.into();
        }
        serde_json::from_value(given.into()).map(Limits).map_err(serde::de::Error::custom)
    }
}

/// Data: the key-value store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Data {
    /// Time for which tombstones of deleted and expired keys are kept, by namespace: `NAMESPACE = "30d"` or `"never"`.
    /// Afterwards a key counts as never written, and its revisions start again. Other namespaces keep them.
    pub(crate) tombstones: BTreeMap<String, Lifetime>,
}

/// The period of the audit trail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Audit {
    /// Time for which rows of the audit trail are kept; `never` removes none. The trail is cut at a seal, so some rows stay
    /// up to a day longer.
    pub(crate) retention: Lifetime,
}

impl Default for Audit {
    fn default() -> Self {
        Audit { retention: Lifetime::Never }
    }
}

/// Flows: sealed tokens, handles and durable runs. Every setting needs `key_file`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flows {
    /// File with the keys that seal tokens, one `id:key` per line. The first key seals new tokens. `stepwell key create`
    /// makes it, and a changed file is read again. Without a file, flows are disabled.
    pub(crate) key_file: Option<String>,
    /// Strategy of workflows that name none: `sealed`, `handle`, `durable`, or a name of `strategies`.
    pub(crate) default_strategy: String,
    /// Strategies of single workflows: `NAME = "sealed"`. They override the strategy that a document names.
    pub(crate) workflows: BTreeMap<String, String>,
    /// Workflows that may be started and resumed as flows. If empty, all may.
    pub(crate) allow: BTreeSet<String>,
    /// Workflows that may not be started and resumed as flows.
    pub(crate) block: BTreeSet<String>,
    /// Name of a cookie for tokens. Without a name, answers contain the tokens.
    pub(crate) cookie: Option<String>,
    /// Send the cookie over plain HTTP too, for development without TLS.
    pub(crate) insecure_cookie: bool,
    /// Time for which expired handles and links are kept; `never` deletes none.
    pub(crate) handle_retention: Lifetime,
    /// Strategies by name: tables `[flows.strategies.NAME]`. `sealed`, `handle` and `durable` exist without a table, and
    /// a table of that name replaces their settings.
    pub(crate) strategies: BTreeMap<String, StrategySettings>,
    /// Outlets by name, which send links: tables `[flows.outlets.NAME]`.
    pub(crate) outlets: BTreeMap<String, OutletSettings>,
}

impl Default for Flows {
    fn default() -> Self {
        Flows {
            key_file: None,
            default_strategy: "durable".to_owned(),
            workflows: BTreeMap::new(),
            allow: BTreeSet::new(),
            block: BTreeSet::new(),
            cookie: None,
            insecure_cookie: false,
            handle_retention: Lifetime::Span(Span(Duration::ZERO)),
            strategies: BTreeMap::new(),
            outlets: BTreeMap::new(),
        }
    }
}

/// A strategy, by its `kind`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum StrategySettings {
    Sealed(SealedStrategy),
    Handle(HandleStrategy),
    Durable(DurableStrategy),
}

/// Keeps the state in the token itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SealedStrategy {
    /// Lifetime of tokens (default: 15m).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<Span>,
    /// Make tokens single-use and revocable, which stores a row per use (default: false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) once: Option<bool>,
    /// Compress the state if that makes the token shorter (default: true).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compressed: Option<bool>,
}

/// Keeps the state in a row behind a single-use handle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandleStrategy {
    /// Lifetime of handles; `never` = they do not expire (default: 7d).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<Lifetime>,
}

/// Keeps the flow as a durable run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DurableStrategy {
    /// Lifetime of answer links; `never` = they do not expire (default: 30d).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<Lifetime>,
    /// Maximum time that a start or answer waits for the next pause, at most `server.max_wait` (default: 30s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) settle: Option<Span>,
}

/// An outlet, by its `kind`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum OutletSettings {
    Email(EmailOutlet),
    Webhook(WebhookOutlet),
}

/// Sends links by mail, through the SMTP server of `[mail]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmailOutlet {
    /// Templates by name: tables `[flows.outlets.NAME.templates.TEMPLATE]`. `default` is for messages that name none;
    /// without it they use a built-in text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) templates: BTreeMap<String, MailTemplate>,
    /// Maximum time for sending one mail, at most 50s (default: 20s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<Span>,
}

/// A mail with placeholders: `{{name}}` for fields of the message's data, `{{link}}`, `{{expires_at}}`, `{{place}}`,
/// `{{workflow}}` and `{{flow}}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MailTemplate {
    /// Subject of the mail, with placeholders.
    pub(crate) subject: String,
    /// Plain text. Set either this or `text_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// File with the plain text. It is read once at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) text_file: Option<String>,
    /// HTML version of the text (default: none).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) html: Option<String>,
    /// File with the HTML version. It is read once at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) html_file: Option<String>,
}

/// Posts links as signed JSON, with the headers of Standard Webhooks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WebhookOutlet {
    /// URL of the receiver (default: the recipient of each message).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    /// File with the signing secrets, one `whsec_…` per line. Messages are signed with each. It is read once at the
    /// start.
    pub(crate) secret_file: String,
    /// Hosts that messages may go to (default: every public host).
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) allow_hosts: BTreeSet<String>,
    /// Hosts in private networks or on this machine that messages may go to (default: none).
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) allow_private_hosts: BTreeSet<String>,
    /// Allow plain HTTP to other machines (default: false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) allow_plain_http: Option<bool>,
    /// Maximum time for one message, at most 50s (default: 20s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<Span>,
}

/// Targets of the action `http.request`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Http {
    /// Private hosts, addresses and networks that requests may go to.
    pub(crate) allow: Vec<String>,
    /// If not empty, requests may go only to these hosts and to those of `allow`.
    pub(crate) only: Vec<String>,
    /// Allow plain HTTP to loopback addresses only.
    pub(crate) https_only: bool,
}

/// SMTP server. Without a host, the action `email.send` is not available.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mail {
    /// Host name of the SMTP server.
    pub(crate) host: Option<String>,
    /// Port of the SMTP server (default: 465 for `tls`, 587 for `starttls`, 25 for `none`).
    pub(crate) port: Option<u16>,
    /// Sender address, such as `Example <noreply@example.com>`. Required with `host`.
    pub(crate) from: Option<String>,
    /// User name for authentication. Set together with `password`.
    pub(crate) user: Option<String>,
    /// Password for authentication. It is not shown by `stepwell config show`.
    pub(crate) password: Option<String>,
    /// Encryption: `tls`, `starttls`, or `none` for a mail server on a loopback address.
    pub(crate) security: MailSecurity,
}

/// Encryption of the connection to the SMTP server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MailSecurity {
    /// TLS from the first byte.
    #[default]
    Tls,
    /// The connection starts unencrypted and switches to TLS before any mail is sent.
    StartTls,
    None,
}

/// Sources of the secrets that workflows name with `{ $secret: NAME }`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Secrets {
    /// Prefix of the environment variables that hold secrets.
    pub(crate) prefix: String,
    /// Directory with one subdirectory per tenant and one file per secret. It has precedence over the environment.
    pub(crate) folder: Option<String>,
    /// Give variables and files outside the tenants' subdirectories to every tenant, not only to the server's own.
    pub(crate) every_tenant: bool,
}

impl Default for Secrets {
    fn default() -> Self {
        Secrets { prefix: "STEPWELL_SECRET_".to_owned(), folder: None, every_tenant: false }
    }
}

/// Log on standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    /// Log filter in the syntax of `RUST_LOG`. The variable `RUST_LOG` overrides it.
    pub(crate) filter: String,
    /// Line format: `text` or `json`.
    pub(crate) format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Log { filter: "info".to_owned(), format: LogFormat::Text }
    }
}

/// Metrics for Prometheus, at `/metrics`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metrics {
    /// Serve metrics without a credential. Otherwise they need the permission `workflow:view` in the server's tenant.
    pub(crate) public: bool,
}

/// OpenTelemetry traces. The standard variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT`, are read too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Telemetry {
    /// URL of the collector, such as `http://127.0.0.1:4318`. Without one, no traces are exported.
    pub(crate) endpoint: Option<String>,
    /// Complete URL for traces (default: `/v1/traces` under `endpoint`).
    pub(crate) traces_endpoint: Option<String>,
    /// Export protocol. Spans are always sent as `http/json`; `http/protobuf` is accepted and means the same.
    pub(crate) protocol: String,
    /// Headers for the collector, such as credentials: `name=value,…`.
    pub(crate) headers: Option<String>,
    /// Value of the resource attribute `service.name`.
    pub(crate) service_name: String,
    /// Additional resource attributes: `name=value,…`.
    pub(crate) resource: Option<String>,
    /// Sampler: `always_on`, `always_off` or `traceidratio`, optionally with the prefix `parentbased_`.
    pub(crate) sampler: String,
    /// Fraction of traces that `traceidratio` samples, from 0 to 1.
    pub(crate) sampler_arg: f64,
    /// Timeout of one export request.
    pub(crate) timeout: Span,
    /// Disable traces, regardless of the other settings.
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

/// Format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Human-readable, with colours on a terminal.
    Text,
    /// One JSON object per line.
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
        let given = Value::deserialize(deserializer)?;
        let wrong = || {
            serde::de::Error::custom(format!(
                "`{}` is not a duration, such as `30s` or `PT30S`",
                plain(&given)
            ))
        };
        span(&given).ok_or_else(wrong)
    }
}

/// Returns the duration of a text. A number has no unit, so it is none.
fn span(given: &Value) -> Option<Span> {
    let ms = duration_ms(given).filter(|_| given.is_string())?;
    Some(Span(Duration::from_millis(ms)))
}

/// Returns a value as a person writes it: a text without quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns true for the words that stand for no limit.
pub(super) fn is_endless(value: &Value) -> bool {
    matches!(value.as_str(), Some(NEVER | UNLIMITED))
}

/// A number, where 0 and `unlimited` mean no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Quantity(pub(crate) u32);

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            0 => serializer.serialize_str(UNLIMITED),
            number => number.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = Value::deserialize(deserializer)?;
        if is_endless(&given) {
            return Ok(Quantity(0));
        }
        let number = given.as_u64().and_then(|number| u32::try_from(number).ok());
        number.map(Quantity).ok_or_else(|| {
            let most = u32::MAX;
            let given = plain(&given);
            serde::de::Error::custom(format!(
                "`{given}` is neither an integer from 0 to {most} nor `{UNLIMITED}`"
            ))
        })
    }
}

/// A duration, or `never` for no end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    Span(Span),
    Never,
}

impl Lifetime {
    /// Returns the duration in milliseconds; `None` = no end.
    pub(crate) fn ms(self) -> Option<u64> {
        match self {
            Lifetime::Span(span) => Some(span.ms()),
            Lifetime::Never => None,
        }
    }
}

impl Serialize for Lifetime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Lifetime::Span(span) => span.serialize(serializer),
            Lifetime::Never => serializer.serialize_str(NEVER),
        }
    }
}

impl<'de> Deserialize<'de> for Lifetime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = Value::deserialize(deserializer)?;
        if is_endless(&given) {
            return Ok(Lifetime::Never);
        }
        let wrong = || {
            let given = plain(&given);
            let message = format!("`{given}` is not a duration, such as `30s` or `PT30S`, and not `{NEVER}`");
            serde::de::Error::custom(message)
        };
        span(&given).map(Lifetime::Span).ok_or_else(wrong)
    }
}

/// The words for no end and for no limit. Both are accepted wherever one is.
const NEVER: &str = "never";
const UNLIMITED: &str = "unlimited";

/// Returns true if the setting is a URL that may contain a password.
pub(super) fn is_url(name: &str) -> bool {
    matches!(
        name,
        "database.url" | "database.migrate_url" | "telemetry.endpoint" | "telemetry.traces_endpoint"
    )
}

/// Returns true if a field of a nested table must not be shown.
pub(super) fn is_secret_field(name: &str) -> bool {
    matches!(name, "secret" | "password" | "key" | "token")
}

/// Returns true if the value of the setting must not be shown.
pub(super) fn is_secret(name: &str) -> bool {
    matches!(name, "mail.password" | "telemetry.headers")
}
