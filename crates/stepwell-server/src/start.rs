//! Builds the server from its settings: store, engine with actions, flows and API.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepwell::store::{BatchMeter, Instruments, SchemaVersion, Store, StoreError, TenantId, TenantScope};
use stepwell::{Engine, EnvironmentSecrets, FileSecrets, Options, Secrets};
use stepwell_postgres::{OpenError as OpenPostgresError, PostgresStore};
use stepwell_server::actions::{self, HttpOptions};
use stepwell_server::api::{ApiOptions, IssuerOptions, KeySource, Quota, Server, TenantOf};
use stepwell_server::outlets::{Mailer, MailerBuilder, Security};
use stepwell_server::telemetry::{Sampler, Telemetry, TraceOptions};
use stepwell_sqlite::{OpenError, SqliteStore};

use crate::config::{self, Database, Lifetime, MailSecurity, Oidc, Settings};
use crate::exit::{Code, Failure};
use crate::facts;

/// The reason to open a store. It decides what to advise if a server has the file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To serve requests until the process is stopped.
    Serve,
    /// To send one request, which a server could answer too.
    Request,
    /// To change the file itself.
    Maintain,
}

/// An open store with its concrete type.
pub(crate) enum Opened {
    Sqlite(Arc<SqliteStore>),
    Postgres(Arc<PostgresStore>),
}

impl Opened {
    /// Opens the store of `database.url`. Creates the SQLite file and its directory if they do not exist.
    pub(crate) async fn open(settings: &Settings, purpose: Purpose) -> Result<Self, Failure> {
        let url = settings.database.url.as_str();
        if let Some(path) = sqlite_path(url) {
            return Self::open_sqlite(&path, settings, purpose);
        }
        let options = postgres_options(settings)?;
        let store = PostgresStore::open_with(url, options).await;
        let store = store.map_err(|error| refused_database(&settings.database, &error))?;
        Ok(Opened::Postgres(Arc::new(store)))
    }

    fn open_sqlite(path: &Path, settings: &Settings, purpose: Purpose) -> Result<Self, Failure> {
        let options = stepwell_sqlite::Options {
            batch: settings.database.batch,
            queue: settings.database.queue,
            limits: settings.limits.0.clone(),
            ..stepwell_sqlite::Options::default()
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)
                .map_err(|error| Failure::unexpected(format!("{}: {error}", folder.display())))?;
        }
        let store = SqliteStore::open_with(path, options).map_err(|error| in_use(&error, purpose))?;
        Ok(Opened::Sqlite(Arc::new(store)))
    }

    /// Writes the server's URL next to an SQLite file, for commands that find the file in use.
    pub(crate) fn publish_address(&self, url: &str) {
        if let Opened::Sqlite(store) = self
            && let Err(error) = store.publish_address(url)
        {
            tracing::warn!(%error, "the server's address could not be written to the lock file");
        }
    }

    /// Counts the store's writes, and registers gauges that are read with each metrics request.
    fn set_meter(&self, telemetry: &Telemetry) {
        let (meter, with) = (BatchMeter::new(telemetry.recorder()), Instruments(telemetry.recorder()));
        let gauge = |name, about, labels: &[_]| with.gauge(name, about, labels);
        match self {
            Opened::Sqlite(store) => {
                store.set_meter(meter);
                let about = "Size of the database file and of its write-ahead log, in bytes.";
                let bytes = |part| gauge("stepwell_store_bytes", about, &[("part", part)]);
                let (file, log) = (bytes("database"), bytes("log"));
                let waiting = gauge("stepwell_store_waiting", "Writes queued for the database writer.", &[]);
                let store = Arc::downgrade(store);
                telemetry.on_scrape(move || {
                    let Some(store) = store.upgrade() else { return };
                    waiting.set(store.waiting() as f64);
                    let (in_file, in_log) = store.bytes();
                    file.set(in_file as f64);
                    log.set(in_log as f64);
                });
            }
            Opened::Postgres(store) => {
                store.set_meter(meter);
                let about = "Open database connections, by state.";
                let connections = |state| gauge("stepwell_store_connections", about, &[("state", state)]);
                let (busy, idle) = (connections("busy"), connections("idle"));
                let most =
                    gauge("stepwell_store_connections_max", "Maximum number of database connections.", &[]);
                let waiting =
                    gauge("stepwell_store_waiting", "Tasks waiting for a database connection.", &[]);
                let store = Arc::downgrade(store);
                telemetry.on_scrape(move || {
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

/// Returns the failure for an SQLite file that cannot be opened. If a process has it open, the failure names that
/// process, its address and what to do.
pub(crate) fn in_use(error: &OpenError, purpose: Purpose) -> Failure {
    let OpenError::InUse { path, holder, address } = error else { return Failure::unexpected(error) };
    let at = address.iter().map(|url| format!(", the server at {url}")).collect::<String>();
    let url = address.as_deref().unwrap_or("URL");
    let advice = match purpose {
        Purpose::Serve => "Stop that process first, or use another file".to_owned(),
        Purpose::Maintain => "Stop that process first, then run this command again".to_owned(),
        Purpose::Request => format!(
            "Send the request to the server: replace `--database-url …` by `--server {url} --api-key-file FILE`. \
             If there is no API key yet, stop the server and run this command again, or start it with \
             `--create-api-key FILE`"
        ),
    };
    Failure::new(Code::Conflict, format!("{path} is in use by {holder}{at}. {advice}"))
}

/// Returns the file of a URL `sqlite:PATH` or `sqlite://PATH`; `None` for other URLs.
pub(crate) fn sqlite_path(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    (!path.is_empty()).then(|| PathBuf::from(path))
}

/// Returns the options to open a PostgreSQL database. Without `database.migrate_url` nothing migrates it.
fn postgres_options(settings: &Settings) -> Result<stepwell_postgres::Options, Failure> {
    let database = &settings.database;
    let url = database.url.as_str();
    if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
        let why = format!("`{url}` is not a database URL: write `sqlite:PATH` or `postgres://…`");
        return Err(Failure::new(Code::Invalid, why));
    }
    Ok(stepwell_postgres::Options {
        schema: database.schema.clone(),
        migrate_as: database.migrate_url.clone(),
        connections: database.connections,
        session: database.session,
        notify: database.notify,
        response_timeout: database.response_timeout.0,
        batch: database.batch,
        queue: database.queue,
        limits: settings.limits.0.clone(),
        ..stepwell_postgres::Options::default()
    })
}

/// Creates or migrates the tables of a PostgreSQL database as their owner, grants the engine's role its rights, and
/// returns the schema version. The owner is the role of `database.migrate_url`, and the engine's role that of
/// `database.url`. With `grant_to`, that is the engine's role. Then `database.url` may be the owner's.
pub(crate) async fn migrate_postgres(
    settings: &Settings,
    grant_to: Option<&str>,
) -> Result<SchemaVersion, Failure> {
    let (database, options) = (&settings.database, postgres_options(settings)?);
    let refused = |error: OpenPostgresError| refused_database(database, &error);
    let owner = match (&database.migrate_url, grant_to) {
        (Some(owner), _) => owner,
        (None, Some(_)) => &database.url,
        // The tables are up to date, or this fails and names the missing setting.
        (None, None) => {
            let store = PostgresStore::open_with(&database.url, options).await.map_err(refused)?;
            return Ok(store.migrate().await?);
        }
    };
    let role = match grant_to {
        Some(role) => role.to_owned(),
        None => stepwell_postgres::role_of(&database.url).unwrap_or_default(),
    };
    PostgresStore::migrate_as(owner, &role, &options).await.map_err(refused)
}

/// Returns the failure for a PostgreSQL database that cannot be opened or migrated. It names the settings to change.
fn refused_database(database: &Database, error: &OpenPostgresError) -> Failure {
    let roles = "set `database.url` to a role that owns nothing, and `database.migrate_url` to the role that owns the \
                 tables (`stepwell db migrate --grant-to ROLE` migrates as the role of `database.url`)";
    let (code, advice) = match error {
        OpenPostgresError::Unreachable(_) => (Code::Unreachable, None),
        OpenPostgresError::SeesAll { .. } => (Code::Invalid, Some(roles)),
        OpenPostgresError::Store(StoreError::Schema(_)) if database.migrate_url.is_none() => {
            let missing = "`database.migrate_url` is not set: set it to the URL of the role that owns the tables, or \
                           run `stepwell db migrate --grant-to ROLE` as the role that owns the tables";
            (Code::Invalid, Some(missing))
        }
        OpenPostgresError::Store(StoreError::Schema(_))
        | OpenPostgresError::Config(_)
        | OpenPostgresError::TooOld { .. } => (Code::Invalid, None),
        OpenPostgresError::Store(_) => (Code::Unreachable, None),
    };
    let advice = advice.map(|advice| format!(". {advice}")).unwrap_or_default();
    Failure::new(code, format!("cannot open the database: {error}{advice}"))
}

/// Returns the engine options of the settings.
pub(crate) fn options(settings: &Settings) -> Options {
    let (engine, data, audit, flows) = (&settings.engine, &settings.data, &settings.audit, &settings.flows);
    // A time to live without end is longer than any clock.
    let ttl = |ttl: Lifetime| ttl.ms().unwrap_or(u64::MAX);
    let per_workflow = engine.max_runs_per_workflow.iter();
    let own = engine.workflow_retention.iter();
    let tombstones = data.tombstones.iter();
    Options {
        max_runs: engine.max_runs,
        max_runs_per_workflow: per_workflow.map(|(name, most)| (name.as_str().into(), *most)).collect(),
        lease_ms: engine.lease.ms(),
        poll_ms: engine.poll.ms(),
        action_timeout_ms: engine.action_timeout.ms().unwrap_or(0),
        max_crashes: engine.max_crashes,
        signal_ttl_ms: ttl(engine.signal_ttl),
        event_ttl_ms: ttl(engine.event_ttl),
        maintenance_interval_ms: engine.maintenance_interval.ms(),
        limits: settings.limits.0.clone(),
        retention_ms: engine.retention.ms(),
        workflow_retention_ms: own.map(|(name, kept)| (name.as_str().into(), kept.ms())).collect(),
        audit_retention_ms: audit.retention.ms(),
        tombstone_retention_ms: tombstones
            .filter_map(|(name, kept)| Some((name.clone(), kept.ms()?)))
            .collect(),
        handle_retention_ms: flows.handle_retention.ms(),
        idempotency_key_ttl_ms: ttl(engine.idempotency_key_ttl),
        ..Options::default()
    }
}

/// Creates metrics and traces, including those of the store. Spans are sent by a task of the current runtime.
pub(crate) fn telemetry(settings: &Settings, opened: &Opened) -> Result<Arc<Telemetry>, Failure> {
    let wrong = |why: String| Failure::new(Code::Invalid, format!("telemetry: {why}"));
    let telemetry = match traces(&settings.telemetry).map_err(wrong)? {
        Some(options) => Telemetry::traced(options).map_err(|error| wrong(error.to_string()))?,
        None => Telemetry::new(),
    };
    opened.set_meter(&telemetry);
    Ok(Arc::new(telemetry))
}

/// Returns the trace options, or `None` if traces are disabled or have no endpoint.
fn traces(from: &config::Telemetry) -> Result<Option<TraceOptions>, String> {
    let url = match (&from.traces_endpoint, &from.endpoint) {
        _ if from.disabled => return Ok(None),
        (Some(url), _) => url.clone(),
        (None, Some(base)) => format!("{}/v1/traces", base.trim_end_matches('/')),
        (None, None) => return Ok(None),
    };
    // Collectors accept both at the same address and distinguish them by content type, so JSON works for either.
    if !matches!(from.protocol.as_str(), "http/json" | "http/protobuf") {
        let protocol = &from.protocol;
        return Err(format!(
            "`telemetry.protocol` is `{protocol}`: use `http/json` and the collector's HTTP port"
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

/// Parses `name=value,…`. Values may be percent-encoded.
fn pairs(setting: &str, text: Option<&str>) -> Result<Vec<(String, String)>, String> {
    let parts = text.unwrap_or_default().split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("`{setting}` must have the form `name=value,…`"))?;
            let value = percent_encoding::percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
            Ok((name.trim().to_owned(), value))
        })
        .collect()
}

/// Starts an engine with the actions that the settings enable.
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
    let wrong = |why: String| Failure::new(Code::Invalid, why);
    let Some(builder) = mailer_builder(settings)? else { return Ok(None) };
    builder.build().map(Some).map_err(|error| wrong(format!("mail: {error}")))
}

/// Returns the SMTP client of the settings, or `None` if there is none.
pub(crate) fn mailer_builder(settings: &Settings) -> Result<Option<MailerBuilder>, Failure> {
    let mail = &settings.mail;
    let wrong = |why: String| Failure::new(Code::Invalid, why);
    let Some(host) = &mail.host else { return Ok(None) };
    let from = mail.from.as_ref().ok_or_else(|| {
        wrong("`mail.host` is set, but not the sender address `mail.from`: set it".to_owned())
    })?;
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
            return Err(wrong("set both `mail.user` and `mail.password`, or neither".to_owned()));
        }
    }
    Ok(Some(builder))
}

/// Looks up secrets in files first, then in the environment.
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

/// Creates the API server of an engine, without flows.
pub(crate) fn server(settings: &Settings, opened: &Opened, engine: &Engine) -> Result<Server, Failure> {
    let from = &settings.server;
    let options = ApiOptions {
        body_bytes: from.body_bytes,
        body_timeout: from.body_timeout.0,
        answer_timeout: from.answer_timeout.0,
        max_wait: from.max_wait.0,
        requests_per_second: from.requests_per_second.0,
        burst: from.burst,
        anonymous_requests_per_second: from.anonymous_requests_per_second.0,
        auth_failures_per_minute: from.auth_failures_per_minute.0,
        proxies: from.trusted_proxies.clone(),
        quota: Quota {
            api_keys: settings.quota.api_keys.0,
            workflows: settings.quota.workflows.0,
            schedules: settings.quota.schedules.0,
            runs: settings.quota.runs.0,
        },
        metrics_are_public: settings.metrics.public,
    };
    let issuers = settings.auth.oidc.iter().map(issuer).collect::<Result<_, _>>()?;
    let server = Server::new(engine.clone(), options).with_issuers(issuers);
    let server = server.map_err(|error| Failure::new(Code::Invalid, format!("auth.oidc: {error}")))?;
    Ok(server.with_store_info(facts::of(opened, &settings.database.url)))
}

/// Converts an issuer of the settings to its options.
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
    let Oidc { algorithms, leeway, permissions_claim, roles_claim, actor_claim, refresh, max_stale, .. } =
        from.clone();
    options.roles_claim = roles_claim;
    options.algorithms = algorithms.unwrap_or(options.algorithms);
    options.permissions_claim = permissions_claim.unwrap_or(options.permissions_claim);
    options.actor_claim = actor_claim.unwrap_or(options.actor_claim);
    options.leeway = leeway.map_or(options.leeway, |span| span.0);
    options.refresh = refresh.map_or(options.refresh, |span| span.0);
    options.max_stale = max_stale.map_or(options.max_stale, |span| span.0);
    Ok(options)
}
