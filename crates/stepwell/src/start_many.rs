//! Starts many runs with one call.

use futures_util::{StreamExt, stream};

use crate::actor::Permission;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::start::{Start, Started};

/// Number of starts that are committed at the same time. The store puts them into few transactions.
const AT_A_TIME: usize = 64;

impl Engine {
    /// Starts many runs and returns one result per start, in the same order. Each start is its own commit: one that is
    /// refused does not affect the others. Repeated with the same idempotency keys, it starts only what is missing.
    pub async fn start_many(
        &self,
        starts: Vec<Start>,
    ) -> Result<Vec<Result<Started, EngineError>>, EngineError> {
        self.permit(Permission::Manage)?;
        self.limits().batch_starts("the list of starts", starts.len())?;
        let all: Vec<_> = starts.into_iter().map(|start| Box::pin(self.start_once(start))).collect();
        Ok(stream::iter(all).buffered(AT_A_TIME).collect().await)
    }
}
