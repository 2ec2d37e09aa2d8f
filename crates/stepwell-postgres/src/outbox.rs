//! Notifications to other processes that a run or a cell has changed. They only make the others look sooner.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use stepwell_core::RunId;
use stepwell_store::{CellKey, Hint, HintSender, RunKey, Space, TenantId};
use tokio::sync::Notify;

/// Maximum number of hints and of bytes in one notification.
const MOST_HINTS: usize = 100;
const MOST_BYTES: usize = 7_900;

/// The payload of a notification.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Note {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    runs: Vec<(TenantId, RunId)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cells: Vec<(TenantId, String, String, String)>,
    #[serde(default)]
    missed: bool,
}

/// Hints to send to other processes; `None` if notifications are off.
#[derive(Clone)]
pub(crate) struct Outbox(Option<Arc<NotificationQueue>>);

#[derive(Default)]
struct NotificationQueue {
    waiting: Mutex<Note>,
    ready: Notify,
    /// Another process is alive to receive them.
    has_readers: AtomicBool,
}

impl Outbox {
    pub(crate) fn new(is_on: bool) -> Self {
        Outbox(is_on.then(Arc::default))
    }

    pub(crate) fn notify(&self, hint: &Hint) {
        let Some(queue) = self.0.as_ref().filter(|queue| queue.has_readers.load(Ordering::Relaxed)) else {
            return;
        };
        let mut note = queue.waiting();
        if note.runs.len() + note.cells.len() >= MOST_HINTS {
            note.missed = true;
        } else {
            match hint {
                Hint::Run(RunKey { tenant, run }) => note.runs.push((*tenant, *run)),
                Hint::Cell(tenant, CellKey { space, owner, key }) => {
                    note.cells.push((*tenant, space.as_str().to_owned(), owner.clone(), key.clone()));
                }
                Hint::Missed | Hint::Processes => return,
            }
        }
        drop(note);
        queue.ready.notify_one();
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until there is something to send.
    pub(crate) async fn until_ready(&self) {
        match &self.0 {
            Some(queue) => queue.ready.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Takes all waiting hints as one notification. If they are too long, it only says that hints were missed.
    pub(crate) fn take(&self) -> String {
        let mut note = self.0.as_ref().map(|queue| std::mem::take(&mut *queue.waiting())).unwrap_or_default();
        note.runs.sort_unstable();
        note.runs.dedup();
        let text = serde_json::to_string(&note).expect("ids and names are plain data");
        if text.len() <= MOST_BYTES {
            return text;
        }
        let missed = Note { missed: true, ..Note::default() };
        serde_json::to_string(&missed).expect("ids and names are plain data")
    }

    pub(crate) fn has_readers(&self, others: bool) {
        if let Some(queue) = &self.0 {
            queue.has_readers.store(others, Ordering::Relaxed);
        }
    }
}

impl NotificationQueue {
    fn waiting(&self) -> MutexGuard<'_, Note> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes on the hints of another process's notification.
pub(crate) fn forward_hints(hints: &HintSender, text: &str) {
    let Ok(note) = serde_json::from_str::<Note>(text) else {
        hints.send(Hint::Missed);
        return;
    };
    if note.missed {
        hints.send(Hint::Missed);
    }
    note.runs.into_iter().for_each(|(tenant, run)| hints.send(Hint::Run(RunKey { tenant, run })));
    for (tenant, space, owner, key) in note.cells {
        let space =
            [Space::Kv, Space::Execution, Space::Workflow].into_iter().find(|known| known.as_str() == space);
        match space {
            Some(space) => hints.send(Hint::Cell(tenant, CellKey { space, owner, key })),
            None => hints.send(Hint::Missed),
        }
    }
}
