//! The HTTP listener: limits the number of connections, enforces their timeouts, and drains them on shutdown.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;
use tower_service::Service;

use crate::telemetry::Connections;

/// Limits and timeouts of connections. Every field has a default.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Maximum number of open connections (default: 10,000). Further ones get 503 with `Retry-After`.
    pub max_connections: usize,
    /// Maximum time for the head of a request to arrive, and maximum idle time of a connection (default: 30 s).
    pub head_timeout: Duration,
    /// Maximum time for which a client may stop reading a response (default: 30 s).
    pub write_timeout: Duration,
    /// Maximum size of a request's head in bytes (default: 32 KiB, at least 8 KiB).
    pub head_bytes: usize,
    /// Maximum time for requests in flight to finish at shutdown (default: 20 s).
    pub shutdown_timeout: Duration,
    /// Metrics of the connections. The default counts nothing.
    pub connection_metrics: Connections,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            max_connections: 10_000,
            head_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            head_bytes: 32 * 1024,
            shutdown_timeout: Duration::from_secs(20),
            connection_metrics: Connections::default(),
        }
    }
}

/// The address of a request's connection, as a request extension.
///
/// [`serve`] inserts it. A program with its own listener must insert it too; otherwise the rate limits per address do
/// not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// Pause after a failed accept, for example when the process has no file descriptors left.
const BREATH: Duration = Duration::from_millis(50);
/// Response to connections beyond the limit.
const FULL: &str =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Length of the listen backlog; the system may allow less. If the backlog is full, the kernel drops connection
/// attempts silently, and clients retry for seconds.
const QUEUE: u32 = 4_096;

/// Starts listening on an address, with `SO_REUSEADDR` set.
pub fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(QUEUE)
}

/// Serves connections until `stop` resolves.
///
/// Then accepts no more connections and gives the open ones `shutdown_timeout` to finish their requests. Returns the number of
/// connections that did not finish.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: ServeOptions,
    stop: impl Future<Output = ()>,
) -> io::Result<usize> {
    let graceful = GracefulShutdown::new();
    let connection_permits = Arc::new(Semaphore::new(options.max_connections));
    // Only HTTP/1.1 without TLS: for access from other machines, a proxy in front provides TLS and HTTP/2.
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(options.head_timeout)
        .max_buf_size(options.head_bytes.max(8_192));
    tokio::pin!(stop);
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => (stream, Peer(peer.ip())),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
            },
        };
        let Ok(place) = connection_permits.clone().try_acquire_owned() else {
            options.connection_metrics.reject_connection();
            tokio::spawn(reject_connection(stream));
            continue;
        };
        let open = options.connection_metrics.open();
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(options.write_timeout));
        let router = router.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut router = router.clone();
            let mut request: Request = request.map(Body::new);
            request.extensions_mut().insert(peer);
            async move { Ok::<_, Infallible>(router.call(request).await.unwrap_or_else(|never| match never {})) }
        });
        let connection = http.serve_connection(TokioIo::new(Box::pin(stream)), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // Clients that disconnect or time out are normal, so this is logged at trace level only.
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a connection ended early");
            }
            drop((place, open));
        });
    }
    drop(listener);
    tokio::select! {
        biased;
        () = graceful.shutdown() => Ok(0),
        () = tokio::time::sleep(options.shutdown_timeout) => Ok(options.max_connections - connection_permits.available_permits()),
    }
}

async fn reject_connection(mut stream: TcpStream) {
    let told = async {
        stream.write_all(FULL.as_bytes()).await?;
        stream.shutdown().await
    };
    // A client that does not read the response within a second is dropped.
    let _ = tokio::time::timeout(Duration::from_secs(1), told).await;
}
