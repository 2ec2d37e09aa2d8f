//! Follows a run: its checkpoints as server-sent events, from a version on until it has ended.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use futures_util::stream;
use serde_json::json;
use stepwell::core::RunId;
use stepwell::store::{Hint, Hints, HistoryQuery, Status};
use stepwell::{Engine, EngineError};

use super::OfRun;
use super::view::Checkpoint;
use crate::api::Server;
use crate::api::call::Call;
use crate::api::reply::Reply;
use crate::routes::problem::Problem;

/// How often the store is asked when nothing says that there is news.
const POLL: Duration = Duration::from_millis(500);
/// How long a stream is silent at most: whoever is in between closes connections that are.
const SILENCE: Duration = Duration::from_secs(15);
/// Checkpoints that are read at a time.
const ROWS: u32 = 100;

pub(super) async fn follow(call: Call<OfRun>) -> Result<Reply, Problem> {
    let (engine, run) = (call.engine(), call.path.run);
    // Whoever asks for a run that is not there is told so, and gets no stream.
    engine.run(run).view().await?;
    let next = last_id(&call.headers)?.map_or(0, |last| last.saturating_add(1));
    let hints = engine.store().hints();
    let follower =
        Follower { server: call.server.clone(), engine, run, next, status: None, hints, is_over: false };
    let stream = stream::unfold(follower, |mut follower| async move {
        if follower.is_over {
            return None;
        }
        let server = follower.server.clone();
        let chunk = tokio::select! {
            biased;
            chunk = follower.chunk() => chunk,
            () = server.stopping() => return None,
        };
        Some((chunk, follower))
    });
    Ok(Reply::stream("text/event-stream", Body::from_stream(stream)))
}

/// The id of the last event that whoever asks has seen.
fn last_id(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(id) = headers.get("last-event-id") else { return Ok(None) };
    let id = id.to_str().ok().and_then(|id| id.trim().parse().ok());
    id.map(Some)
        .ok_or_else(|| Problem::bad("malformedId", "`Last-Event-ID` is the id of an event: a number."))
}

struct Follower {
    server: Arc<Server>,
    engine: Engine,
    run: RunId,
    /// The next version to show.
    next: u64,
    /// The status that was shown last.
    status: Option<Status>,
    hints: Hints,
    is_over: bool,
}

impl Follower {
    /// The next events, or a sign of life.
    async fn chunk(&mut self) -> Result<Bytes, EngineError> {
        let silent_since = tokio::time::Instant::now();
        loop {
            let text = self.news().await.inspect_err(|_| self.is_over = true)?;
            if !text.is_empty() {
                return Ok(text.into());
            }
            if silent_since.elapsed() >= SILENCE {
                return Ok(Bytes::from_static(b": still here\n\n"));
            }
            let _ = tokio::time::timeout(POLL, told(&mut self.hints, &self.engine, self.run)).await;
        }
    }

    /// What has happened since the last look.
    async fn news(&mut self) -> Result<String, EngineError> {
        // The status is read before the checkpoints: a run that has ended then has no more of them.
        let view = match self.engine.run(self.run).view().await {
            Ok(view) => view,
            Err(EngineError::NoRun(_)) => {
                self.is_over = true;
                return Ok("event: gone\ndata: {}\n\n".to_owned());
            }
            Err(error) => return Err(error),
        };
        let query = HistoryQuery { run: self.run, from: self.next, with_state: false, limit: ROWS };
        let rows = self.engine.store().history(self.engine.scope(), query).await?.items;
        let mut text = String::new();
        for row in &rows {
            let checkpoint = Checkpoint::of(row).map_err(|problem| EngineError::Invalid(problem.detail))?;
            let data = json!(checkpoint);
            text.push_str(&format!("id: {}\nevent: checkpoint\ndata: {data}\n\n", row.version));
            self.next = row.version.saturating_add(1);
        }
        let is_whole = self.next > view.snapshot.version();
        if is_whole && self.status != Some(view.status) {
            self.status = Some(view.status);
            let error = view.ledger.stopped.as_ref().map(|stopped| &stopped.error);
            let data =
                json!({"status": view.status.as_str(), "version": view.snapshot.version(), "error": error});
            text.push_str(&format!("event: status\ndata: {data}\n\n"));
        }
        self.is_over = is_whole && view.status.is_final();
        Ok(text)
    }
}

/// Something may have happened to the run.
async fn told(hints: &mut Hints, engine: &Engine, run: RunId) {
    let tenant = engine.scope().tenant();
    loop {
        match hints.next().await {
            Some(Hint::Run(of, which)) if of == tenant && which == run => return,
            Some(Hint::Missed) => return,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}
