//! Listens: takes connections in, holds each to its time and their number to a limit, and lets them finish when it is to stop.

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

/// How connections are held to their time. Every field has a default.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Connections at a time; whoever comes beyond that is told to come again later.
    pub max_connections: usize,
    /// How long the head of a request may take to arrive, and how long a connection may be idle.
    pub head_timeout: Duration,
    /// How long whoever asked may take to read some of the answer.
    pub write_timeout: Duration,
    /// Bytes that the head of a request has at most.
    pub head_bytes: usize,
    /// How long what is under way may take to finish when the server is to stop.
    pub drain: Duration,
    /// What counts connections.
    pub counted_by: Connections,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            max_connections: 10_000,
            head_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            head_bytes: 32 * 1024,
            drain: Duration::from_secs(20),
            counted_by: Connections::default(),
        }
    }
}

/// The address that a request's connection comes from. Whoever listens by other means than [`serve`] puts it into the request's
/// extensions; without it nothing is held to a pace by where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// How long is paused when no connection can be taken in, because the process has no file descriptors left.
const BREATH: Duration = Duration::from_millis(50);
/// What whoever comes beyond the limit is told.
const FULL: &str =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Connections that may wait to be taken in; the system may allow fewer. Where they do not fit, whoever connects is not told, and tries
/// again for seconds.
const QUEUE: u32 = 4_096;

/// Begins to listen at an address.
pub fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(QUEUE)
}

/// Answers whoever connects, until `stop` comes; then no more connections are taken in, and those there are finish what is under
/// way, within `drain`. Says how many did not.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: ServeOptions,
    stop: impl Future<Output = ()>,
) -> io::Result<usize> {
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(options.max_connections));
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
                    tracing::warn!(%error, "a connection could not be taken in");
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
            },
        };
        let Ok(place) = room.clone().try_acquire_owned() else {
            options.counted_by.turn_away();
            tokio::spawn(turn_away(stream));
            continue;
        };
        let open = options.counted_by.open();
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
            // That a client went away, or took too long, is no news.
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
        () = tokio::time::sleep(options.drain) => Ok(options.max_connections - room.available_permits()),
    }
}

async fn turn_away(mut stream: TcpStream) {
    let told = async {
        stream.write_all(FULL.as_bytes()).await?;
        stream.shutdown().await
    };
    // Whoever does not even read this is left alone.
    let _ = tokio::time::timeout(Duration::from_secs(1), told).await;
}
