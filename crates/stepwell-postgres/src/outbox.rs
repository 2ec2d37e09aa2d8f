//! What other processes are told: that a run or a cell has changed. It only makes somebody look sooner.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use stepwell_core::RunId;
use stepwell_store::{CellKey, Hint, HintSender, RunKey, Space, TenantId};
use tokio::sync::Notify;

/// Hints that go in one notification, and bytes it may have.
const MOST_HINTS: usize = 100;
const MOST_BYTES: usize = 7_900;

/// What is said in a notification.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Note {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    runs: Vec<(TenantId, RunId)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cells: Vec<(TenantId, String, String, String)>,
    #[serde(default)]
    missed: bool,
}

/// Hints that others are to hear of.
#[derive(Clone)]
pub(crate) struct Outbox(Option<Arc<Letters>>);

#[derive(Default)]
struct Letters {
    waiting: Mutex<Note>,
    ready: Notify,
    /// Another process is there to hear them.
    has_readers: AtomicBool,
}

impl Outbox {
    pub(crate) fn new(is_on: bool) -> Self {
        Outbox(is_on.then(Arc::default))
    }

    pub(crate) fn tell(&self, hint: &Hint) {
        let Some(letters) = self.0.as_ref().filter(|letters| letters.has_readers.load(Ordering::Relaxed))
        else {
            return;
        };
        let mut note = letters.waiting();
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
        letters.ready.notify_one();
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until there is something to send.
    pub(crate) async fn filled(&self) {
        match &self.0 {
            Some(letters) => letters.ready.notified().await,
            None => std::future::pending().await,
        }
    }

    /// What there is to send, as one notification.
    pub(crate) fn take(&self) -> String {
        let mut note =
            self.0.as_ref().map(|letters| std::mem::take(&mut *letters.waiting())).unwrap_or_default();
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
        if let Some(letters) = &self.0 {
            letters.has_readers.store(others, Ordering::Relaxed);
        }
    }
}

impl Letters {
    fn waiting(&self) -> MutexGuard<'_, Note> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes on what another process has said.
pub(crate) fn heard(hints: &HintSender, text: &str) {
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
