//! Streams the checkpoints of a run as server-sent events, from a version on until the run ends.

use std::time::Duration;

use futures_util::stream::unfold;
use serde_json::json;
use stepwell::core::RunId;
use stepwell::store::{Hint, Hints, HistoryQuery, Page, Status};
use stepwell::{Engine, EngineError};

use super::RunPath;
use super::view::Checkpoint;
use crate::api::call::Call;
use crate::api::reply::Reply;
use crate::api::shapes::UnreadableRow;
use crate::api::sse;
use crate::routes::problem::Problem;

/// Interval between reads of the store when no hint arrives.
const POLL: Duration = Duration::from_millis(500);
/// Maximum number of checkpoints per read.
const ROWS: u32 = 100;

pub(super) async fn follow(call: Call<RunPath>) -> Result<Reply, Problem> {
    let (engine, run) = (call.engine(), call.path.run);
    // Answers 404 for an unknown run before the stream starts.
    engine.run(run).view().await?;
    let next = sse::last_id(&call.headers)?.map_or(0, |last| last.saturating_add(1));
    let hints = engine.store().hints();
    let follower = Follower { engine, run, next, status: None, hints, is_over: false };
    let stream = unfold(follower, |mut follower| async move {
        let news = follower.next().await?;
        Some((news, follower))
    });
    Ok(sse::stream(&call.server, stream))
}

struct Follower {
    engine: Engine,
    run: RunId,
    /// The next version to send.
    next: u64,
    /// The status that was sent last.
    status: Option<Status>,
    hints: Hints,
    is_over: bool,
}

impl Follower {
    /// Returns the next events, or `None` when the stream is over.
    async fn next(&mut self) -> Option<Result<String, EngineError>> {
        while !self.is_over {
            match self.news().await {
                Ok(text) if text.is_empty() => {
                    let wait_for_change = wait_for_change(&mut self.hints, &self.engine, self.run);
                    let _ = tokio::time::timeout(POLL, wait_for_change).await;
                }
                news => return Some(news),
            }
        }
        None
    }

    /// Returns the events since the last call; empty if there are none.
    async fn news(&mut self) -> Result<String, EngineError> {
        // Read the status before the checkpoints. A run that has ended by then gets no further checkpoints.
        let view = match self.engine.run(self.run).view().await {
            Ok(view) => view,
            Err(EngineError::NoRun(_)) => {
                self.is_over = true;
                return Ok(sse::event(None, "gone", &json!({})));
            }
            Err(error) => return Err(error),
        };
        let query = HistoryQuery { run: self.run, from: self.next, with_state: false, limit: ROWS };
        let Page { items, next, mut bad } = self.engine.store().history(self.engine.scope(), query).await?;
        let mut text = String::new();
        for row in &items {
            match Checkpoint::of(self.run, row) {
                Ok(checkpoint) => {
                    text.push_str(&sse::event(Some(row.version), "checkpoint", &checkpoint));
                }
                Err(row) => bad.push(row),
            }
            self.next = row.version.saturating_add(1);
        }
        for row in bad {
            text.push_str(&sse::event(None, "unreadable", &UnreadableRow::from(row)));
        }
        // The page contains every checkpoint up to its end, also those that cannot be read.
        let end = next.map_or(Some(view.snapshot.version().saturating_add(1)), |next| next.parse().ok());
        self.next = self.next.max(end.unwrap_or(self.next));
        let is_whole = self.next > view.snapshot.version();
        if is_whole && self.status != Some(view.status) {
            self.status = Some(view.status);
            let error = view.ledger.stopped.as_ref().map(|stopped| &stopped.error);
            let data =
                json!({"status": view.status.as_str(), "version": view.snapshot.version(), "error": error});
            text.push_str(&sse::event(None, "status", &data));
        }
        self.is_over = is_whole && view.status.is_final();
        Ok(text)
    }
}

/// Waits for a hint that the run may have changed.
async fn wait_for_change(hints: &mut Hints, engine: &Engine, run: RunId) {
    let run = engine.scope().run(run);
    loop {
        match hints.next().await {
            Some(Hint::Run(which)) if which == run => return,
            Some(Hint::Missed) => return,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}
