//! Server-sent events: format, position of a resumed stream, and keep-alive comments.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use serde_json::{Value, json};
use stepwell::DataError;
use stepwell::data::Watched;

use super::Server;
use super::call::{TAG_DIGITS, is_number};
use super::reply::Reply;
use crate::routes::problem::Problem;

/// Content type of server-sent events.
pub(crate) const EVENTS: &str = "text/event-stream";
/// Maximum silence of a stream. Proxies close idle connections, so a comment is sent after this time.
const SILENCE: Duration = Duration::from_secs(15);

/// Reads `Last-Event-ID`, the id of the last event the client received.
pub(crate) fn last_id(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(id) = headers.get("last-event-id") else { return Ok(None) };
    let id = id.to_str().ok().map(str::trim).filter(|id| id.len() <= TAG_DIGITS && is_number(id));
    let id = id.and_then(|id| id.parse().ok());
    id.map(Some)
        .ok_or_else(|| Problem::bad("malformedId", "`Last-Event-ID` must be the id of an event, a number."))
}

/// Formats an event as text.
pub(crate) fn event(id: Option<u64>, name: &str, data: &impl Serialize) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: {name}\ndata: {}\n\n", json!(data))
}

/// Streams events. An error or the shutdown of the server ends the stream.
pub(crate) fn stream<E: Into<BoxError> + Send + 'static>(
    server: &Arc<Server>,
    events: impl Stream<Item = Result<String, E>> + Send + 'static,
) -> Reply {
    let (server, open) = (server.clone(), server.telemetry.requests().stream());
    let body = unfold(Some(Box::pin(events)), move |events| {
        // The stream counts as open until the client drops it.
        let (server, _) = (server.clone(), &open);
        async move {
            let mut events = events?;
            let next = tokio::select! {
                biased;
                next = tokio::time::timeout(SILENCE, events.next()) => next,
                () = server.stopping() => return None,
            };
            match next {
                Err(_) => Some((Ok(Bytes::from_static(b": still here\n\n")), Some(events))),
                Ok(Some(Ok(text))) => Some((Ok(Bytes::from(text)), Some(events))),
                Ok(Some(Err(error))) => Some((Err(error), None)),
                Ok(None) => None,
            }
        }
    });
    Reply::stream(EVENTS, Body::from_stream(body))
}

/// Data of a `change` event of a cell.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    /// True if the cell has a value, which may be `null`.
    found: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
    /// The value of the previous event on this stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<Value>,
    revision: u64,
}

/// Streams the current value of a cell and every change. Skips the first value if its revision is `last`.
pub(crate) fn changes(
    server: &Arc<Server>,
    watched: impl Stream<Item = Result<Watched, DataError>> + Send + 'static,
    mut last: Option<u64>,
) -> Reply {
    let shown = move |watched: Watched| {
        let Watched { value, previous, version } = watched;
        // An expired value disappears without a new revision, so that is sent even if the revision is known.
        let is_known = last.take() == Some(version) && value.is_some();
        let seen = Seen { found: value.is_some(), value, previous, revision: version };
        (!is_known).then(|| event(Some(version), "change", &seen))
    };
    let mut shown = shown;
    stream(server, watched.filter_map(move |watched| ready(watched.map(&mut shown).transpose())))
}
