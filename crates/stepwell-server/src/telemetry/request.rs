//! The current request as a task local, so that work and log lines on its behalf can refer to its trace.

use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use crate::api::Trace;

tokio::task_local! {
    static CURRENT_REQUEST: Arc<CurrentRequest>;
}

/// A request in flight.
pub(crate) struct CurrentRequest {
    pub(crate) trace: Trace,
    /// The request's span is sampled.
    pub(crate) is_traced: bool,
    /// Spans of runs that the request has started or changed.
    links: Mutex<Vec<(Uuid, u64)>>,
}

/// Maximum number of links of a request's span.
const MOST_LINKS: usize = 32;

impl CurrentRequest {
    pub(crate) fn new(trace: Trace, is_traced: bool) -> Arc<Self> {
        Arc::new(CurrentRequest { trace, is_traced, links: Mutex::default() })
    }

    /// Runs `answer` with this request as the current one.
    pub(crate) async fn answer<T>(self: &Arc<Self>, answer: impl Future<Output = T>) -> T {
        CURRENT_REQUEST.scope(self.clone(), answer).await
    }

    /// Links the current request to a span of a run. Returns the request's own span for the link back if it is
    /// sampled.
    pub(super) fn link(trace: Uuid, span: u64) -> Option<(Uuid, u64)> {
        let link = |asking: &Arc<CurrentRequest>| {
            let own = (asking.trace.uuid()?, asking.trace.span_number()?);
            let mut links = asking.links.lock().unwrap_or_else(PoisonError::into_inner);
            if links.len() < MOST_LINKS {
                links.push((trace, span));
            }
            asking.is_traced.then_some(own)
        };
        CURRENT_REQUEST.try_with(link).ok().flatten()
    }

    pub(super) fn links(&self) -> Vec<(Uuid, u64)> {
        std::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the trace id of the current request, for the log; empty outside of a request.
pub(crate) fn trace_id() -> String {
    CURRENT_REQUEST.try_with(|asking| asking.trace.id().to_owned()).unwrap_or_default()
}
