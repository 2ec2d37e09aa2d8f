//! `stepwell server start`: starts the server and stops it on SIGTERM or Ctrl-C.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepwell::flow::KeyRing;
use stepwell::store::{StoreError, TenantScope};
use stepwell::{Engine, EngineError, Permission};
use stepwell_server::api::Server;
use stepwell_server::serve::{self, ServeOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{Config, Flag, Settings, Sources, without_password};
use crate::exit::{Code, Failure};
use crate::flows::{self, Delivery};
use crate::keys;
use crate::log;
use crate::output::{self, print_message};
use crate::own_key;
use crate::start::{self, Opened, Purpose};

/// Time that runs get at shutdown to reach a point where they can be released.
const GRACE: Duration = Duration::from_secs(10);
/// Time limit at shutdown for sending the last spans to the collector.
const LAST_SPANS: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Start the server; SIGTERM or Ctrl-C stops it.
    Start {
        #[command(flatten)]
        options: Options,
        /// Create an API key with every permission and write it to this file, which only its owner can read. A file
        /// with a valid key is kept.
        #[arg(long, value_name = "FILE")]
        create_api_key: Option<PathBuf>,
    },
}

/// Options that override settings of the server.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Configuration file (default: `stepwell.toml`, if it exists).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Database: `sqlite:PATH` or `postgres://…`.
    #[arg(long, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// Address to listen on, such as `127.0.0.1:7077`; port 0 picks a free port.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Maximum number of runs this process executes at once; 0 only serves requests.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_runs: Option<String>,
}

impl Options {
    pub(crate) fn flags(&self) -> Vec<Flag> {
        vec![
            ("database.url", "--database-url", self.database_url.clone()),
            ("server.listen", "--listen", self.listen.clone()),
            ("engine.max_runs", "--max-runs", self.max_runs.clone()),
        ]
    }

    pub(crate) fn read(&self) -> Result<Config, Failure> {
        Config::read(&Sources::of(self.config.as_deref(), self.flags()))
    }
}

pub(crate) fn run(verb: &Verb) -> Result<(), Failure> {
    let Verb::Start { options, create_api_key } = verb;
    let settings = options.read()?.settings;
    log::init(&settings.log)?;
    runtime()?.block_on(async {
        let opened = Opened::open(&settings, Purpose::Serve).await?;
        let telemetry = start::telemetry(&settings, &opened)?;
        let engine_options = start::options(&settings);
        let engine = start::engine(&settings, opened.store(), engine_options, Some(&telemetry)).await?;
        let server = start::server(&settings, &opened, &engine)?.with_telemetry(telemetry);
        if let Some(file) = create_api_key {
            own_key::create(&server, file).await?;
        }
        let (server, ring) = flows::add_to(server, &settings, &engine, Delivery::Here)?;
        follow_keys(&settings, ring);
        let server = Arc::new(server);
        let listener = listen(&settings, &server).await?;
        let url = url_of(&listener)?;
        opened.publish_address(&local_url(&listener)?);
        let terminated = terminated()?;
        output::line(&url)?;
        print_message(&format!(
            "stepwell {} listens on {url}; API documentation: {url}/docs",
            env!("CARGO_PKG_VERSION")
        ));
        if !has_credentials(&server).await? {
            print_message(&first_key_advice(&settings, options));
        }
        until_stopped(&settings, listener, server, engine, terminated).await
    })
}

/// Reads the key file again whenever it changes, until the process ends.
pub(crate) fn follow_keys(settings: &Settings, ring: Option<KeyRing>) {
    if let (Some(file), Some(ring)) = (&settings.flows.key_file, ring) {
        tokio::spawn(keys::follow(PathBuf::from(file), ring));
    }
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::unexpected)
}

/// Returns the address of the listener as a URL.
pub(crate) fn url_of(listener: &TcpListener) -> Result<String, Failure> {
    Ok(format!("http://{}", listener.local_addr().map_err(Failure::unexpected)?))
}

/// Returns the URL of the listener for programs on this machine.
pub(crate) fn local_url(listener: &TcpListener) -> Result<String, Failure> {
    let mut at = listener.local_addr().map_err(Failure::unexpected)?;
    match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => at.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => at.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Ok(format!("http://{at}"))
}

/// Returns the commands that make the first API key.
fn first_key_advice(settings: &Settings, options: &Options) -> String {
    let config =
        options.config.iter().map(|file| format!(" --config {}", quoted(&file.display().to_string())));
    let listen = options.listen.iter().map(|at| format!(" --listen {}", quoted(at)));
    let runs = options.max_runs.iter().map(|most| format!(" --max-runs {}", quoted(most)));
    let given =
        options.database_url.iter().map(|url| format!(" --database-url {}", quoted(&without_password(url))));
    let again: String = config.chain(given).chain(listen).chain(runs).collect();
    let permissions: String =
        Permission::ALL.iter().map(|permission| format!(" --permission {permission}")).collect();
    let database = quoted(&without_password(&settings.database.url));
    let schema = settings.database.schema.iter();
    let schema: String =
        schema.map(|schema| format!("STEPWELL_DATABASE__SCHEMA={} ", quoted(schema))).collect();
    format!(
        "There is no API key yet, so the API refuses every request (401). Stop the server, then start it with a new key:\n\
         \n  stepwell server start{again} --create-api-key admin.key\n\n\
         or create a key and start it as before:\n\
         \n  {schema}stepwell apikey create admin{permissions} --database-url {database}\n"
    )
}

/// Quotes a word for a shell, if it needs that.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Starts listening. An address that is not loopback is refused until a credential exists.
pub(crate) async fn listen(settings: &Settings, server: &Server) -> Result<TcpListener, Failure> {
    let address = settings.server.listen.as_str();
    let wrong = |why: String| Failure::new(Code::Invalid, format!("`server.listen` is `{address}`: {why}"));
    let mut found = tokio::net::lookup_host(address).await.map_err(|error| wrong(error.to_string()))?;
    let at: SocketAddr = found.next().ok_or_else(|| wrong("the name has no address".to_owned()))?;
    if !at.ip().is_loopback() && !has_credentials(server).await? {
        let why = "this address is reachable from other machines, but there is no credential yet. Create an API key first \
                   (`--create-api-key FILE` makes one at the start), or listen on 127.0.0.1";
        return Err(wrong(why.to_owned()));
    }
    serve::listen(at).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::new(
            Code::Conflict,
            format!("{at} is in use: stop the process that listens there, or choose another address with `--listen`"),
        ),
        _ => wrong(error.to_string()),
    })
}

/// Returns true if a credential exists, or if that cannot be read now: the database node of the server's own tenant may
/// be down. Every request needs a credential in any case.
async fn has_credentials(server: &Server) -> Result<bool, Failure> {
    match server.has_credentials().await {
        Err(EngineError::Store(StoreError::Unavailable(why))) => {
            tracing::warn!(why, "the API keys of the server's own tenant could not be read");
            Ok(true)
        }
        found => Ok(found?),
    }
}

/// Catches SIGTERM from now on. A program that has read the server's address may send it at once.
pub(crate) fn terminated() -> Result<Signal, Failure> {
    signal(SignalKind::terminate()).map_err(Failure::unexpected)
}

/// Serves requests until SIGTERM or Ctrl-C. Then finishes the requests in flight and releases every run.
pub(crate) async fn until_stopped(
    settings: &Settings,
    listener: TcpListener,
    server: Arc<Server>,
    engine: Engine,
    mut terminated: Signal,
) -> Result<(), Failure> {
    let from = &settings.server;
    let options = ServeOptions {
        max_connections: from.max_connections,
        head_timeout: from.head_timeout.0,
        write_timeout: from.write_timeout.0,
        shutdown_timeout: from.shutdown_timeout.0,
        connection_metrics: server.telemetry().connections(),
        ..ServeOptions::default()
    };
    let telemetry = server.telemetry().clone();
    let stopping = server.clone();
    let stop = async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        print_message("stopping: finishing requests in flight");
        // Requests that wait for a run are answered with the run's current state.
        stopping.stop();
    };
    let left = serve::serve(listener, server.router(), options, stop).await.map_err(Failure::unexpected)?;
    if left > 0 {
        print_message(&format!(
            "{left} connections did not finish within `server.shutdown_timeout` and were closed"
        ));
    }
    engine.stop(GRACE).await;
    telemetry.flush(LAST_SPANS).await;
    Ok(())
}

/// Returns the scope of the server's own tenant.
pub(crate) fn home() -> TenantScope {
    TenantScope::single()
}
