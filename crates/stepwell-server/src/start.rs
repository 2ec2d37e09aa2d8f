//! Puts the server together from its settings: the store, the engine with its actions, flows, and the API.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stepwell::flow::{Durable, Handle, Key, KeyRing, Sealed};
use stepwell::store::{BatchMeter, Instruments, Store, TenantId, TenantScope};
use stepwell::{Engine, EnvironmentSecrets, FileSecrets, Options, Secrets};
use stepwell_postgres::PostgresStore;
use stepwell_server::actions::{self, HttpOptions};
use stepwell_server::api::{ApiOptions, IssuerOptions, KeySource, Quota, Server, TenantOf};
use stepwell_server::outlets::{Mailer, Security};
use stepwell_server::telemetry::{Sampler, Telemetry, TraceOptions};
use stepwell_sqlite::{OpenError, SqliteStore};

use crate::config::{self, MailSecurity, Oidc, Settings};
use crate::exit::{Code, Failure};
use crate::facts;

/// How long whoever starts or resumes a flow waits at most for its next pause, if requests may wait that long.
const SETTLE: Duration = Duration::from_secs(30);

/// A store that is open, as what it is.
pub(crate) enum Opened {
    /// An SQLite file.
    Sqlite(Arc<SqliteStore>),
    /// PostgreSQL.
    Postgres(Arc<PostgresStore>),
}

impl Opened {
    /// Opens the store that a URL names; what is not there yet is made.
    pub(crate) async fn open(settings: &Settings) -> Result<Self, Failure> {
        let url = settings.database.url.as_str();
        if let Some(path) = sqlite_path(url) {
            return Self::open_sqlite(&path);
        }
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            let why = format!("`{url}` names no store: write `sqlite:PATH` or `postgres://…`");
            return Err(Failure::new(Code::Invalid, why));
        }
        let options = stepwell_postgres::Options {
            schema: settings.database.schema.clone(),
            migrate_as: Some(settings.database.migrate_url.clone().unwrap_or_else(|| url.to_owned())),
            ..stepwell_postgres::Options::default()
        };
        let store = PostgresStore::open_with(url, options).await;
        let store = store.map_err(|error| {
            Failure::new(Code::Unreachable, format!("the store cannot be opened: {error}"))
        })?;
        Ok(Opened::Postgres(Arc::new(store)))
    }

    fn open_sqlite(path: &Path) -> Result<Self, Failure> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)
                .map_err(|error| Failure::unexpected(format!("{}: {error}", folder.display())))?;
        }
        let store = SqliteStore::open(path).map_err(|error| match &error {
            OpenError::InUse { .. } => {
                let why = format!("{error}. If a server has it, ask that: `--server http://127.0.0.1:7077`");
                Failure::new(Code::Conflict, why)
            }
            _ => Failure::unexpected(error),
        })?;
        Ok(Opened::Sqlite(Arc::new(store)))
    }

    /// Counts what it writes, and looks how it is doing whenever somebody asks for the metrics.
    fn measured_by(&self, telemetry: &Telemetry) {
        let (meter, with) = (BatchMeter::new(telemetry.recorder()), Instruments(telemetry.recorder()));
        let gauge = |name, about, labels: &[_]| with.gauge(name, about, labels);
        match self {
            Opened::Sqlite(store) => {
                store.measured_by(meter);
                let about = "How large the database is, and the log beside it.";
                let bytes = |part| gauge("stepwell_store_bytes", about, &[("part", part)]);
                let (file, log) = (bytes("database"), bytes("log"));
                let waiting = gauge("stepwell_store_waiting", "Writes that wait for the writer.", &[]);
                let store = Arc::downgrade(store);
                telemetry.at_each_look(move || {
                    let Some(store) = store.upgrade() else { return };
                    waiting.set(store.waiting() as f64);
                    let (in_file, in_log) = store.bytes();
                    file.set(in_file as f64);
                    log.set(in_log as f64);
                });
            }
            Opened::Postgres(store) => {
                store.measured_by(meter);
                let about = "Connections to the database, by what they do.";
                let connections = |state| gauge("stepwell_store_connections", about, &[("state", state)]);
                let (busy, idle) = (connections("busy"), connections("idle"));
                let most =
                    gauge("stepwell_store_connections_max", "Connections to the database at most.", &[]);
                let waiting = gauge("stepwell_store_waiting", "How many wait for a connection.", &[]);
                let store = Arc::downgrade(store);
                telemetry.at_each_look(move || {
                    let Some(used) = store.upgrade().map(|store| store.pool()) else { return };
                    busy.set(used.busy as f64);
                    idle.set(used.open.saturating_sub(used.busy) as f64);
                    most.set(used.most as f64);
                    waiting.set(used.waiting as f64);
                });
            }
        }
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Opened::Sqlite(store) => store.clone(),
            Opened::Postgres(store) => store.clone(),
        }
    }
}

/// The file that a URL names: `sqlite:PATH`, `sqlite://PATH`.
pub(crate) fn sqlite_path(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    (!path.is_empty()).then(|| PathBuf::from(path))
}

/// How the engine works.
pub(crate) fn options(settings: &Settings) -> Options {
    let settings = &settings.engine;
    Options {
        max_runs: settings.max_runs,
        lease_ms: settings.lease.ms(),
        retention_ms: settings.retention.map(crate::config::Span::ms),
        ..Options::default()
    }
}

/// What is counted and traced, of the store too. Spans are sent in the background of the runtime that this is called in.
pub(crate) fn telemetry(settings: &Settings, opened: &Opened) -> Result<Arc<Telemetry>, Failure> {
    let wrong = |why: String| Failure::new(Code::Invalid, format!("telemetry: {why}"));
    let telemetry = match traces(&settings.telemetry).map_err(wrong)? {
        Some(options) => Telemetry::traced(options).map_err(|error| wrong(error.to_string()))?,
        None => Telemetry::new(),
    };
    opened.measured_by(&telemetry);
    Ok(Arc::new(telemetry))
}

/// Where traces go, if they go anywhere.
fn traces(from: &config::Telemetry) -> Result<Option<TraceOptions>, String> {
    let url = match (&from.traces_endpoint, &from.endpoint) {
        _ if from.disabled => return Ok(None),
        (Some(url), _) => url.clone(),
        (None, Some(base)) => format!("{}/v1/traces", base.trim_end_matches('/')),
        (None, None) => return Ok(None),
    };
    // A collector tells the two from one another by the content type, at the same address.
    if !matches!(from.protocol.as_str(), "http/json" | "http/protobuf") {
        let protocol = &from.protocol;
        return Err(format!(
            "`telemetry.protocol` is `{protocol}`: spans are sent by `http/json`, to the collector's port for HTTP"
        ));
    }
    Ok(Some(TraceOptions {
        headers: pairs("telemetry.headers", from.headers.as_deref())?,
        resource: pairs("telemetry.resource", from.resource.as_deref())?,
        service: from.service_name.clone(),
        sampler: Sampler::read(&from.sampler, from.sampler_arg)?,
        timeout: from.timeout.0,
        ..TraceOptions::new(url)
    }))
}

/// `name=value,…`, the values percent-encoded where they have to be.
fn pairs(setting: &str, text: Option<&str>) -> Result<Vec<(String, String)>, String> {
    let parts = text.unwrap_or_default().split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("`{setting}` is `name=value,…`"))?;
            let value = percent_encoding::percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
            Ok((name.trim().to_owned(), value))
        })
        .collect()
}

/// An engine with every action that the settings allow.
pub(crate) async fn engine(
    settings: &Settings,
    store: Arc<dyn Store>,
    options: Options,
    telemetry: Option<&Arc<Telemetry>>,
) -> Result<Engine, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::new(Code::Invalid, error.to_string());
    let mut builder = Engine::builder(store).options(options);
    if let Some(telemetry) = telemetry {
        builder = builder.observer(telemetry.clone());
    }
    let http = HttpOptions {
        allow: settings.http.allow.clone(),
        only: settings.http.only.clone(),
        https_only: settings.http.https_only,
        tls: None,
    };
    builder = actions::http(builder, http.build().map_err(|error| wrong(&format!("http: {error}")))?);
    if let Some(mailer) = mailer(settings)? {
        builder = actions::email(builder, mailer);
    }
    let folder = settings.secrets.folder.as_deref().map(FileSecrets::new);
    let environment = EnvironmentSecrets::with_prefix(settings.secrets.prefix.as_str());
    builder = builder.secrets(FoldersThenEnvironment {
        folder: match settings.secrets.every_tenant {
            true => folder.map(FileSecrets::for_every_tenant),
            false => folder,
        },
        environment: match settings.secrets.every_tenant {
            true => environment.for_every_tenant(),
            false => environment,
        },
    });
    Ok(builder.start().await?)
}

fn mailer(settings: &Settings) -> Result<Option<Mailer>, Failure> {
    let mail = &settings.mail;
    let wrong = |why: String| Failure::new(Code::Invalid, why);
    let Some(host) = &mail.host else { return Ok(None) };
    let from =
        mail.from.as_ref().ok_or_else(|| wrong("`mail.from` says who mails are from: set it".to_owned()))?;
    let mut builder = Mailer::builder(host.as_str(), from.as_str());
    if let Some(port) = mail.port {
        builder = builder.port(port);
    }
    builder = builder.security(match mail.security {
        MailSecurity::Tls => Security::Tls,
        MailSecurity::StartTls => Security::StartTls,
        MailSecurity::None => Security::None,
    });
    match (&mail.user, &mail.password) {
        (Some(user), Some(password)) => builder = builder.credentials(user.as_str(), password.as_str()),
        (None, None) => {}
        _ => {
            return Err(wrong("`mail.user` and `mail.password` go together: set both or neither".to_owned()));
        }
    }
    builder.build().map(Some).map_err(|error| wrong(format!("mail: {error}")))
}

/// Secrets of files go before those of the environment.
struct FoldersThenEnvironment {
    folder: Option<FileSecrets>,
    environment: EnvironmentSecrets,
}

impl Secrets for FoldersThenEnvironment {
    fn secret(
        &self,
        scope: TenantScope,
        name: &str,
    ) -> futures_util::future::BoxFuture<'static, Result<Option<String>, String>> {
        let file = self.folder.as_ref().map(|folder| folder.secret(scope, name));
        let environment = self.environment.secret(scope, name);
        Box::pin(async move {
            if let Some(file) = file
                && let Some(secret) = file.await?
            {
                return Ok(Some(secret));
            }
            environment.await
        })
    }
}

/// The API of an engine.
pub(crate) fn server(settings: &Settings, opened: &Opened, engine: &Engine) -> Result<Server, Failure> {
    let from = &settings.server;
    let options = ApiOptions {
        body_bytes: from.body_bytes,
        body_timeout: from.body_timeout.0,
        answer_timeout: from.answer_timeout.0,
        max_wait: from.max_wait.0,
        requests_per_second: from.requests_per_second,
        burst: from.burst,
        open_per_second: from.open_per_second,
        guesses_per_minute: from.guesses_per_minute,
        proxies: from.trusted_proxies.clone(),
        quota: Quota {
            api_keys: settings.quota.api_keys,
            workflows: settings.quota.workflows,
            schedules: settings.quota.schedules,
            runs: settings.quota.runs,
        },
        metrics_are_public: settings.metrics.public,
    };
    let issuers = settings.auth.oidc.iter().map(issuer).collect::<Result<_, _>>()?;
    let server = Server::new(engine.clone(), options).with_issuers(issuers);
    let server = server.map_err(|error| Failure::new(Code::Invalid, format!("auth.oidc: {error}")))?;
    let server = server.with_store_facts(facts::of(opened, &settings.database.url));
    let Some(file) = &settings.flows.key_file else { return Ok(server) };
    let ring = ring(Path::new(file))?;
    let flows = stepwell::flow::Flows::builder(engine, ring)
        .strategy("sealed", Sealed::new())
        .strategy("handle", Handle::new())
        .strategy("durable", Durable::new().settle(settings.server.max_wait.0.min(SETTLE)))
        .begin_with("durable")
        .build()
        .map_err(|error| Failure::new(Code::Invalid, error.to_string()))?;
    Ok(server.with_flows(flows))
}

/// An issuer as the settings have it.
fn issuer(from: &Oidc) -> Result<IssuerOptions, Failure> {
    let wrong =
        |why: String| Failure::new(Code::Invalid, format!("auth.oidc: issuer `{}`: {why}", from.name));
    let tenant = match (from.tenant, &from.tenant_claim) {
        (Some(tenant), None) => TenantOf::Fixed(TenantId::new(tenant)),
        (None, Some(claim)) => TenantOf::Claim(claim.clone()),
        _ => return Err(wrong("set either `tenant` or `tenant_claim`".to_owned())),
    };
    let keys = match (&from.jwks_url, &from.jwks_file) {
        (None, None) => KeySource::Discovery,
        (Some(url), None) => KeySource::Url(url.clone()),
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file).map_err(|error| wrong(format!("{file}: {error}")))?;
            KeySource::Set(text)
        }
        (Some(_), Some(_)) => return Err(wrong("set `jwks_url` or `jwks_file`, not both".to_owned())),
    };
    let mut options = IssuerOptions::new(&from.name, &from.issuer, "", tenant);
    options.keys = keys;
    options.audiences = from.audience.all();
    options.roles.clone_from(&from.roles);
    let Oidc { algorithms, leeway, permissions_claim, actor_claim, refresh, keep, .. } = from.clone();
    options.algorithms = algorithms.unwrap_or(options.algorithms);
    options.permissions_claim = permissions_claim.unwrap_or(options.permissions_claim);
    options.actor_claim = actor_claim.unwrap_or(options.actor_claim);
    options.leeway = leeway.map_or(options.leeway, |span| span.0);
    options.refresh = refresh.map_or(options.refresh, |span| span.0);
    options.keep = keep.map_or(options.keep, |span| span.0);
    Ok(options)
}

/// The keys that seal tokens: one `id:key` a line, the first for writing.
fn ring(file: &Path) -> Result<KeyRing, Failure> {
    let wrong = |why: String| Failure::new(Code::Invalid, format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let mut keys = Vec::new();
    for (number, line) in
        text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
    {
        let (id, key) = line
            .trim()
            .split_once(':')
            .ok_or_else(|| wrong(format!("line {}: write `id:key`", number + 1)))?;
        keys.push(Key::read(id, key).map_err(|error| wrong(format!("line {}: {error}", number + 1)))?);
    }
    let mut keys = keys.into_iter();
    let first = keys.next().ok_or_else(|| wrong("there is no key in it".to_owned()))?;
    let ring = KeyRing::new(first);
    for key in keys {
        ring.accept(key).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(ring)
}
