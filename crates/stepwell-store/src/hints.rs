//! Hints: notifications that something may have changed. They can be lost, so every reader also polls.

use tokio::sync::broadcast;

use crate::cell::CellKey;
use crate::scope::{RunKey, TenantId};

/// A notification that something may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// A run may have work to do.
    Run(RunKey),
    /// A cell may have a new value.
    Cell(TenantId, CellKey),
    /// The set of alive processes may have changed. Send a heartbeat to find out.
    Processes,
    /// Hints were lost. Check everything.
    Missed,
}

/// The sending side of a store's hints.
#[derive(Debug, Clone)]
pub struct HintSender(broadcast::Sender<Hint>);

/// A subscription to a store's hints.
#[derive(Debug)]
pub struct Hints(broadcast::Receiver<Hint>);

/// Number of hints that are buffered for a slow reader. A reader that falls further behind gets [`Hint::Missed`].
const BUFFER: usize = 1_024;

impl Default for HintSender {
    fn default() -> Self {
        HintSender(broadcast::Sender::new(BUFFER))
    }
}

impl HintSender {
    /// Sends a hint to all subscribers.
    pub fn send(&self, hint: Hint) {
        // Without subscribers the send fails; nothing is lost, because hints are only notifications.
        let _ = self.0.send(hint);
    }

    /// Returns true if there is a subscriber.
    pub fn has_subscribers(&self) -> bool {
        self.0.receiver_count() > 0
    }

    /// Subscribes to the hints that are sent from now on.
    pub fn subscribe(&self) -> Hints {
        Hints(self.0.subscribe())
    }
}

impl Hints {
    /// Waits for the next hint; `None` = the store is closed.
    pub async fn next(&mut self) -> Option<Hint> {
        match self.0.recv().await {
            Ok(hint) => Some(hint),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Hint::Missed),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
