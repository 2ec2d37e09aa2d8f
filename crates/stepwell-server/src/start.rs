//! Puts the server together from its settings: the store, the engine with its actions, flows, and the API.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepwell::flow::{Durable, Handle, Key, KeyRing, Sealed};
use stepwell::store::{Store, TenantScope};
use stepwell::{Engine, EnvironmentSecrets, FileSecrets, Options, Secrets};
use stepwell_postgres::PostgresStore;
use stepwell_server::actions::{self, HttpOptions};
use stepwell_server::api::{ApiOptions, Server};
use stepwell_server::outlets::{Mailer, Security};
use stepwell_sqlite::{OpenError, SqliteStore};

use crate::config::{MailSecurity, Settings};
use crate::exit::{Code, Failure};
use crate::facts;

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

/// An engine with every action that the settings allow.
pub(crate) async fn engine(
    settings: &Settings,
    store: Arc<dyn Store>,
    options: Options,
) -> Result<Engine, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::new(Code::Invalid, error.to_string());
    let mut builder = Engine::builder(store).options(options);
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
    builder = builder.secrets(FoldersThenEnvironment {
        folder: settings.secrets.folder.as_deref().map(FileSecrets::new),
        environment: EnvironmentSecrets::with_prefix(settings.secrets.prefix.as_str()),
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
        max_wait: from.max_wait.0,
        requests_per_second: from.requests_per_second,
        burst: from.burst,
        ..ApiOptions::default()
    };
    let server =
        Server::new(engine.clone(), options).with_store_facts(facts::of(opened, &settings.database.url));
    let Some(file) = &settings.flows.key_file else { return Ok(server) };
    let ring = ring(Path::new(file))?;
    let flows = stepwell::flow::Flows::builder(engine, ring)
        .strategy("sealed", Sealed::new())
        .strategy("handle", Handle::new())
        .strategy("durable", Durable::new())
        .begin_with("durable")
        .build()
        .map_err(|error| Failure::new(Code::Invalid, error.to_string()))?;
    Ok(server.with_flows(flows))
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
