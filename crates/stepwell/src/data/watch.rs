//! Watching a cell: a stream of its newest value after changes by any process.

use futures_util::Stream;
use futures_util::stream::unfold;
use serde_json::Value;
use stepwell_store::{CellKey, Hint, Hints};

use crate::data::error::DataError;
use crate::data::kv::one;
use crate::engine::Engine;

/// A value seen by a watcher.
#[derive(Debug, Clone, PartialEq)]
pub struct Watched {
    /// The current value. `None`: there is none.
    pub value: Option<Value>,
    /// The value that the watcher saw before.
    pub previous: Option<Value>,
    /// Revision of the value; 0 if the key was never written. Revisions increase until maintenance removes a key's
    /// tombstone.
    pub version: u64,
}

struct Watch {
    engine: Engine,
    key: CellKey,
    hints: Hints,
    /// The revision and value that were seen last.
    seen: Option<(u64, Option<Value>)>,
    is_over: bool,
}

/// Streams the current value, and a new one after each change. Without hints from the store it polls.
pub(crate) fn watch(engine: Engine, key: CellKey) -> impl Stream<Item = Result<Watched, DataError>> + use<> {
    let hints = engine.store().hints();
    let watch = Watch { engine, key, hints, seen: None, is_over: false };
    unfold(watch, |mut watch| async move {
        if watch.is_over {
            return None;
        }
        let next = watch.next().await;
        watch.is_over = next.is_err();
        Some((next, watch))
    })
}

impl Watch {
    async fn next(&mut self) -> Result<Watched, DataError> {
        loop {
            let now = self.engine.now();
            let query = one(self.key.clone(), now, true);
            let cell = self.engine.store().cells(self.engine.scope(), query).await?.items.pop();
            let version = cell.as_ref().map_or(0, |cell| cell.revision);
            let expires = cell.as_ref().and_then(|cell| cell.expires_at).filter(|at| *at > now);
            let value = cell.and_then(|cell| cell.live(now).cloned());
            let is_news = match &self.seen {
                None => true,
                // An expired value disappears without a new revision. A key whose tombstone was removed starts again at
                // revision 1.
                Some((seen, before)) => {
                    version > *seen
                        || before.is_some() != value.is_some()
                        || (version < *seen && value.is_some())
                }
            };
            if is_news {
                let previous = self.seen.take().and_then(|(_, value)| value);
                self.seen = Some((version, value.clone()));
                return Ok(Watched { value, previous, version });
            }
            let poll = now.plus_ms(self.engine.inner.options.poll_ms);
            let until = expires.map_or(poll, |expires| expires.min(poll));
            let clock = self.engine.inner.host.clock.clone();
            tokio::select! {
                biased;
                () = self.told() => {}
                () = clock.sleep_until(until) => {}
            }
        }
    }

    /// Waits until the store hints that the cell may have changed.
    async fn told(&mut self) {
        let tenant = self.engine.scope().tenant();
        loop {
            match self.hints.next().await {
                Some(Hint::Cell(of, key)) if of == tenant && key == self.key => return,
                Some(Hint::Missed) => return,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}
