//! Who waits for the end of which run in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value;
use stepwell_core::{Failure, RunId};
use stepwell_store::RunKey;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::error::RunError;

/// How a run stands that somebody waited for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum End {
    Completed(Value),
    Failed(Failure),
    Cancelled,
}

impl End {
    pub(crate) fn into_result(self, run: RunId) -> Result<Value, RunError> {
        match self {
            End::Completed(output) => Ok(output),
            End::Failed(error) => Err(RunError::Failed { run, error }),
            End::Cancelled => Err(RunError::Cancelled(run)),
        }
    }
}

/// Where the end of a run is told.
#[derive(Default)]
pub(crate) struct Slot {
    end: Mutex<Option<End>>,
    told: Notify,
}

impl Slot {
    pub(crate) fn end(&self) -> Option<End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn told(&self) -> Notified<'_> {
        self.told.notified()
    }
}

type Waiting = HashMap<RunKey, Weak<Slot>>;

/// The slots of the runs that somebody holds on to.
#[derive(Default)]
pub(crate) struct Slots(Mutex<Waiting>);

impl Slots {
    /// The slot of a run.
    pub(crate) fn slot(&self, run: RunKey) -> Arc<Slot> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody holds on to any more go before the table would have to grow.
        if waiting.len() == waiting.capacity() {
            waiting.retain(|_, slot| slot.strong_count() > 0);
        }
        let entry = waiting.entry(run).or_default();
        entry.upgrade().unwrap_or_else(|| {
            let slot = Arc::new(Slot::default());
            *entry = Arc::downgrade(&slot);
            slot
        })
    }

    /// What was told of a run no longer holds: it goes on.
    pub(crate) fn clear(&self, run: RunKey) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = waiting.get(&run).and_then(Weak::upgrade);
        drop(waiting);
        if let Some(slot) = slot {
            *slot.end.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Tells whoever waits.
    pub(crate) fn tell(&self, run: RunKey, end: End) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = waiting.get(&run).and_then(Weak::upgrade) else { return };
        drop(waiting);
        *slot.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        slot.told.notify_waiters();
    }
}
