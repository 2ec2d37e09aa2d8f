//! The request that is being answered: what it is known by, for whatever is done and logged on its behalf.

use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use crate::api::Trace;

tokio::task_local! {
    static ASKING: Arc<Asking>;
}

/// A request that is being answered.
pub(crate) struct Asking {
    pub(crate) trace: Trace,
    /// Its span is written down.
    pub(crate) is_traced: bool,
    /// Spans of runs that it has begun or moved.
    links: Mutex<Vec<(Uuid, u64)>>,
}

/// Spans that a request's own is linked to at most.
const MOST_LINKS: usize = 32;

impl Asking {
    pub(crate) fn new(trace: Trace, is_traced: bool) -> Arc<Self> {
        Arc::new(Asking { trace, is_traced, links: Mutex::default() })
    }

    /// Answers it: whatever happens in there is on its behalf.
    pub(crate) async fn answer<T>(self: &Arc<Self>, answer: impl Future<Output = T>) -> T {
        ASKING.scope(self.clone(), answer).await
    }

    /// It has to do with this span, which is linked with its own if both are written.
    pub(super) fn link(trace: Uuid, span: u64) -> Option<(Uuid, u64)> {
        let link = |asking: &Arc<Asking>| {
            let own = (asking.trace.uuid()?, asking.trace.span_number()?);
            let mut links = asking.links.lock().unwrap_or_else(PoisonError::into_inner);
            if links.len() < MOST_LINKS {
                links.push((trace, span));
            }
            asking.is_traced.then_some(own)
        };
        ASKING.try_with(link).ok().flatten()
    }

    pub(super) fn links(&self) -> Vec<(Uuid, u64)> {
        std::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The trace of the request that is being answered, for the log; empty if there is none.
pub(crate) fn trace_id() -> String {
    ASKING.try_with(|asking| asking.trace.id().to_owned()).unwrap_or_default()
}
