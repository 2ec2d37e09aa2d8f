//! Notifies callers in this process that wait for the end of a run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value;
use stepwell_core::{Failure, RunId};
use stepwell_store::RunKey;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::error::RunError;

/// The end of a run, or the error that stopped it.
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

/// Delivers the end of a run to the callers that wait for it.
#[derive(Default)]
pub(crate) struct Slot {
    end: Mutex<Option<End>>,
    notification: Notify,
}

impl Slot {
    pub(crate) fn end(&self) -> Option<End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn notification(&self) -> Notified<'_> {
        self.notification.notified()
    }
}

type Waiting = HashMap<RunKey, Weak<Slot>>;

/// The slots of runs that have a waiting caller.
#[derive(Default)]
pub(crate) struct Slots(Mutex<Waiting>);

impl Slots {
    /// Returns the slot of a run, and creates it if necessary.
    pub(crate) fn slot(&self, run: RunKey) -> Arc<Slot> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Remove unused slots before the table has to grow.
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

    /// Removes the recorded end of a run, because the run continues.
    pub(crate) fn clear(&self, run: RunKey) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = waiting.get(&run).and_then(Weak::upgrade);
        drop(waiting);
        if let Some(slot) = slot {
            *slot.end.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Records the end of a run and wakes the waiting callers.
    pub(crate) fn tell(&self, run: RunKey, end: End) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = waiting.get(&run).and_then(Weak::upgrade) else { return };
        drop(waiting);
        *slot.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        slot.notification.notify_waiters();
    }
}
