//! `stepwell server start`: the server, from its start until it is told to stop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepwell::Engine;
use stepwell::store::TenantScope;
use stepwell_server::api::Server;
use stepwell_server::serve::{self, ServeOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{Config, Flag, Settings, Sources};
use crate::exit::{Code, Failure};
use crate::log;
use crate::output::{self, talk};
use crate::start::{self, Opened};

/// How long runs may take to come to a place where they can be let go of.
const GRACE: Duration = Duration::from_secs(10);
/// How long the collector may take to take the last spans.
const LAST_SPANS: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Starts the server and answers until it is told to stop (SIGTERM, Ctrl-C).
    Start(Options),
}

/// What the command line says of the server.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// The configuration; `stepwell.toml` is read if it is there.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where everything is kept: `sqlite:PATH` or `postgres://…`.
    #[arg(long, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// The address to listen at; port 0 = any free one.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Runs that this process works on at a time; 0 = it only answers requests.
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
    let Verb::Start(options) = verb;
    let settings = options.read()?.settings;
    log::init(&settings.log)?;
    runtime()?.block_on(async {
        let opened = Opened::open(&settings).await?;
        let telemetry = start::telemetry(&settings, &opened)?;
        let options = start::options(&settings);
        let engine = start::engine(&settings, opened.store(), options, Some(&telemetry)).await?;
        let server = Arc::new(start::server(&settings, &opened, &engine)?.with_telemetry(telemetry));
        let listener = listen(&settings, &server).await?;
        let url = url_of(&listener)?;
        output::line(&url)?;
        talk(&format!(
            "stepwell {} answers at {url}; its API is shown at {url}/docs",
            env!("CARGO_PKG_VERSION")
        ));
        until_stopped(&settings, listener, server, engine).await
    })
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::unexpected)
}

/// The address that is listened at, as a URL.
pub(crate) fn url_of(listener: &TcpListener) -> Result<String, Failure> {
    Ok(format!("http://{}", listener.local_addr().map_err(Failure::unexpected)?))
}

/// Begins to listen. Elsewhere than on this computer only if somebody could prove who they are.
pub(crate) async fn listen(settings: &Settings, server: &Server) -> Result<TcpListener, Failure> {
    let address = settings.server.listen.as_str();
    let wrong = |why: String| Failure::new(Code::Invalid, format!("`server.listen` is `{address}`: {why}"));
    let mut found = tokio::net::lookup_host(address).await.map_err(|error| wrong(error.to_string()))?;
    let at: SocketAddr = found.next().ok_or_else(|| wrong("it names no address".to_owned()))?;
    if !at.ip().is_loopback() && !server.has_credentials().await? {
        let why = "others could reach it, and nobody has a credential yet: make an API key first \
                   (`stepwell apikey create --database-url … --name admin --permission workflow:admin`), or listen at 127.0.0.1";
        return Err(wrong(why.to_owned()));
    }
    serve::listen(at).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::new(
            Code::Conflict,
            format!("{at} is in use: stop what listens there, or name another with `--listen`"),
        ),
        _ => wrong(error.to_string()),
    })
}

/// Answers until the process is told to stop; then lets what is under way finish, and lets go of every run.
pub(crate) async fn until_stopped(
    settings: &Settings,
    listener: TcpListener,
    server: Arc<Server>,
    engine: Engine,
) -> Result<(), Failure> {
    let from = &settings.server;
    let options = ServeOptions {
        max_connections: from.max_connections,
        head_timeout: from.head_timeout.0,
        write_timeout: from.write_timeout.0,
        drain: from.drain.0,
        counted_by: server.telemetry().connections(),
        ..ServeOptions::default()
    };
    let telemetry = server.telemetry().clone();
    let mut terminated = signal(SignalKind::terminate()).map_err(Failure::unexpected)?;
    let stopping = server.clone();
    let stop = async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        talk("stopping: what is under way may finish");
        // Whoever waits for something is answered with how it stands.
        stopping.stop();
    };
    let left = serve::serve(listener, server.router(), options, stop).await.map_err(Failure::unexpected)?;
    if left > 0 {
        talk(&format!("{left} connections did not finish in time"));
    }
    engine.stop(GRACE).await;
    telemetry.flush(LAST_SPANS).await;
    Ok(())
}

/// The tenant that the server itself belongs to.
pub(crate) fn home() -> TenantScope {
    TenantScope::single()
}
