//! Follows a run: its checkpoints as server-sent events, from a version on until it has ended.

use std::time::Duration;

use futures_util::stream::unfold;
use serde_json::json;
use stepwell::core::RunId;
use stepwell::store::{Hint, Hints, HistoryQuery, Status};
use stepwell::{Engine, EngineError};

use super::OfRun;
use super::view::Checkpoint;
use crate::api::call::Call;
use crate::api::reply::Reply;
use crate::api::sse;
use crate::routes::problem::Problem;

/// How often the store is asked when nothing says that there is news.
const POLL: Duration = Duration::from_millis(500);
/// Checkpoints that are read at a time.
const ROWS: u32 = 100;

pub(super) async fn follow(call: Call<OfRun>) -> Result<Reply, Problem> {
    let (engine, run) = (call.engine(), call.path.run);
    // Whoever asks for a run that is not there is told so, and gets no stream.
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
    /// The next version to show.
    next: u64,
    /// The status that was shown last.
    status: Option<Status>,
    hints: Hints,
    is_over: bool,
}

impl Follower {
    /// The next events; nothing more when it is over.
    async fn next(&mut self) -> Option<Result<String, EngineError>> {
        while !self.is_over {
            match self.news().await {
                Ok(text) if text.is_empty() => {
                    let told = told(&mut self.hints, &self.engine, self.run);
                    let _ = tokio::time::timeout(POLL, told).await;
                }
                news => return Some(news),
            }
        }
        None
    }

    /// What has happened since the last look.
    async fn news(&mut self) -> Result<String, EngineError> {
        // The status is read before the checkpoints: a run that has ended then has no more of them.
        let view = match self.engine.run(self.run).view().await {
            Ok(view) => view,
            Err(EngineError::NoRun(_)) => {
                self.is_over = true;
                return Ok(sse::event(None, "gone", &json!({})));
            }
            Err(error) => return Err(error),
        };
        let query = HistoryQuery { run: self.run, from: self.next, with_state: false, limit: ROWS };
        let rows = self.engine.store().history(self.engine.scope(), query).await?.items;
        let mut text = String::new();
        for row in &rows {
            let checkpoint = Checkpoint::of(row).map_err(|problem| EngineError::Invalid(problem.detail))?;
            text.push_str(&sse::event(Some(row.version), "checkpoint", &checkpoint));
            self.next = row.version.saturating_add(1);
        }
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

/// Something may have happened to the run.
async fn told(hints: &mut Hints, engine: &Engine, run: RunId) {
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
