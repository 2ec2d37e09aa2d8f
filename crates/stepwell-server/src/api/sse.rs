//! Server-sent events: their form, where a stream goes on, and a sign of life while there is nothing to say.

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

/// What events are sent as.
pub(crate) const EVENTS: &str = "text/event-stream";
/// How long a stream is silent at most: whoever is in between closes connections that are.
const SILENCE: Duration = Duration::from_secs(15);

/// The id of the last event that whoever asks has seen.
pub(crate) fn last_id(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(id) = headers.get("last-event-id") else { return Ok(None) };
    let id = id.to_str().ok().map(str::trim).filter(|id| id.len() <= TAG_DIGITS && is_number(id));
    let id = id.and_then(|id| id.parse().ok());
    id.map(Some)
        .ok_or_else(|| Problem::bad("malformedId", "`Last-Event-ID` is the id of an event: a number."))
}

/// An event as it is sent.
pub(crate) fn event(id: Option<u64>, name: &str, data: &impl Serialize) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: {name}\ndata: {}\n\n", json!(data))
}

/// Events as they come. One that cannot be had ends the stream, and so does the end of the server.
pub(crate) fn stream<E: Into<BoxError> + Send + 'static>(
    server: &Arc<Server>,
    events: impl Stream<Item = Result<String, E>> + Send + 'static,
) -> Reply {
    let (server, open) = (server.clone(), server.telemetry.requests().stream());
    let body = unfold(Some(Box::pin(events)), move |events| {
        // It counts as open as long as somebody may read on.
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

/// What a watcher of a cell sees.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    /// It has a value; `null` is one.
    found: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
    /// The value that was seen before on the same stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<Value>,
    revision: u64,
}

/// The value of a cell as it is now, and whenever it has changed; what was seen before is not shown again.
pub(crate) fn changes(
    server: &Arc<Server>,
    watched: impl Stream<Item = Result<Watched, DataError>> + Send + 'static,
    mut last: Option<u64>,
) -> Reply {
    let shown = move |watched: Watched| {
        let Watched { value, previous, version } = watched;
        // A value that has expired since is gone without another revision.
        let is_known = last.take() == Some(version) && value.is_some();
        let seen = Seen { found: value.is_some(), value, previous, revision: version };
        (!is_known).then(|| event(Some(version), "change", &seen))
    };
    let mut shown = shown;
    stream(server, watched.filter_map(move |watched| ready(watched.map(&mut shown).transpose())))
}
