//! Wake-ups: something may have changed. Never a promise; whoever misses one finds out by looking.

use tokio::sync::broadcast;

use crate::cell::CellKey;
use crate::scope::{RunKey, TenantId};

/// Something may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// A run may have something to do.
    Run(RunKey),
    /// A cell may have a new value.
    Cell(TenantId, CellKey),
    /// Who lives and who does not may have changed: a heartbeat tells.
    Processes,
    /// More happened than could be told: look at everything.
    Missed,
}

/// Where a store puts its hints.
#[derive(Debug, Clone)]
pub struct HintSender(broadcast::Sender<Hint>);

/// Where a process reads them.
#[derive(Debug)]
pub struct Hints(broadcast::Receiver<Hint>);

/// Hints a slow reader may be behind before it is told that it missed some.
const BUFFER: usize = 1_024;

impl Default for HintSender {
    fn default() -> Self {
        HintSender(broadcast::Sender::new(BUFFER))
    }
}

impl HintSender {
    /// Tells whoever listens.
    pub fn send(&self, hint: Hint) {
        // Nobody listening is fine: a hint is not a promise.
        let _ = self.0.send(hint);
    }

    /// Whether anybody listens.
    pub fn has_listeners(&self) -> bool {
        self.0.receiver_count() > 0
    }

    /// A new reader, from now on.
    pub fn listen(&self) -> Hints {
        Hints(self.0.subscribe())
    }
}

impl Hints {
    /// The next hint; `None` when the store is closed.
    pub async fn next(&mut self) -> Option<Hint> {
        match self.0.recv().await {
            Ok(hint) => Some(hint),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Hint::Missed),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
