//! How many runs a process works on at a time: over all, and for each workflow that says so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stepwell_core::Name;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// How many runs a process works on at a time. Whoever finds no room leaves the run in the store, where it waits for
/// its turn: work is kept there, not in memory.
pub(crate) struct Room {
    all: Arc<Semaphore>,
    by_workflow: BTreeMap<Name, Arc<Semaphore>>,
    /// Somebody found no room and wants to hear when there is some.
    starved: Arc<AtomicBool>,
    freed: Arc<Notify>,
}

/// The right to work on one run.
pub(crate) struct Pass {
    all: Option<OwnedSemaphorePermit>,
    workflow: Option<OwnedSemaphorePermit>,
    /// Somebody works on a run with it; giving back one that was never used is no news.
    is_used: bool,
    starved: Arc<AtomicBool>,
    freed: Arc<Notify>,
}

impl Room {
    pub(crate) fn new(all: usize, by_workflow: &BTreeMap<Name, usize>) -> Self {
        let by_workflow = by_workflow.iter();
        Room {
            all: Arc::new(Semaphore::new(all)),
            by_workflow: by_workflow
                .map(|(name, max)| (name.clone(), Arc::new(Semaphore::new(*max))))
                .collect(),
            starved: Arc::default(),
            freed: Arc::default(),
        }
    }

    /// Room for a run of this workflow, if there is some.
    pub(crate) fn enter(&self, workflow: &Name) -> Option<Pass> {
        self.enter_as(Some(workflow)).map(Pass::used)
    }

    /// The same, not in use yet; `None` = a workflow without a limit of its own.
    pub(crate) fn enter_as(&self, workflow: Option<&Name>) -> Option<Pass> {
        let all = self.all.clone().try_acquire_owned().ok()?;
        let own = match workflow.and_then(|workflow| self.by_workflow.get(workflow)) {
            Some(own) => Some(own.clone().try_acquire_owned().ok()?),
            None => None,
        };
        let (starved, freed) = (self.starved.clone(), self.freed.clone());
        Some(Pass { all: Some(all), workflow: own, is_used: false, starved, freed })
    }

    /// The workflow has a limit of its own.
    pub(crate) fn limits(&self, workflow: &Name) -> bool {
        self.by_workflow.contains_key(workflow)
    }

    /// How many more runs there is room for.
    pub(crate) fn free(&self) -> usize {
        self.all.available_permits()
    }

    /// Asks to be told when there is room again.
    pub(crate) fn starve(&self) {
        self.starved.store(true, Ordering::Release);
    }

    pub(crate) fn freed(&self) -> Arc<Notify> {
        self.freed.clone()
    }
}

impl Pass {
    /// Somebody works on a run with it.
    pub(crate) fn used(mut self) -> Self {
        self.is_used = true;
        self
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // First the room, then the word that there is some.
        self.all = None;
        self.workflow = None;
        if self.is_used && self.starved.swap(false, Ordering::AcqRel) {
            self.freed.notify_one();
        }
    }
}
