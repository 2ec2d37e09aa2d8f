//! Concurrency limits: the number of runs that a process drives at a time, in total and per workflow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stepwell_core::Name;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The concurrency limits of a process. A run without a permit stays in the store, not in memory, until a permit is
/// free.
pub(crate) struct ConcurrencyLimit {
    all: Arc<Semaphore>,
    by_workflow: BTreeMap<Name, Arc<Semaphore>>,
    /// A caller got no permit and wants to be notified when one is free.
    starved: Arc<AtomicBool>,
    freed: Arc<Notify>,
}

/// A permit to drive one run.
pub(crate) struct Permit {
    all: Option<OwnedSemaphorePermit>,
    workflow: Option<OwnedSemaphorePermit>,
    /// The permit is in use. Returning an unused one does not notify.
    is_used: bool,
    starved: Arc<AtomicBool>,
    freed: Arc<Notify>,
}

impl ConcurrencyLimit {
    pub(crate) fn new(all: usize, by_workflow: &BTreeMap<Name, usize>) -> Self {
        let by_workflow = by_workflow.iter();
        ConcurrencyLimit {
            all: Arc::new(Semaphore::new(all)),
            by_workflow: by_workflow
                .map(|(name, max)| (name.clone(), Arc::new(Semaphore::new(*max))))
                .collect(),
            starved: Arc::default(),
            freed: Arc::default(),
        }
    }

    /// Acquires a permit for a run of this workflow, if one is free, and marks it as used.
    pub(crate) fn try_acquire(&self, workflow: &Name) -> Option<Permit> {
        self.try_acquire_as(Some(workflow)).map(Permit::used)
    }

    /// Acquires a permit that is not in use yet. `None` stands for workflows without a separate limit.
    pub(crate) fn try_acquire_as(&self, workflow: Option<&Name>) -> Option<Permit> {
        let all = self.all.clone().try_acquire_owned().ok()?;
        let own = match workflow.and_then(|workflow| self.by_workflow.get(workflow)) {
            Some(own) => Some(own.clone().try_acquire_owned().ok()?),
            None => None,
        };
        let (starved, freed) = (self.starved.clone(), self.freed.clone());
        Some(Permit { all: Some(all), workflow: own, is_used: false, starved, freed })
    }

    /// Returns true if the workflow has a separate limit.
    pub(crate) fn limits(&self, workflow: &Name) -> bool {
        self.by_workflow.contains_key(workflow)
    }

    /// Returns the number of free permits.
    pub(crate) fn free(&self) -> usize {
        self.all.available_permits()
    }

    /// Requests a notification when a permit becomes free.
    pub(crate) fn starve(&self) {
        self.starved.store(true, Ordering::Release);
    }

    pub(crate) fn freed(&self) -> Arc<Notify> {
        self.freed.clone()
    }
}

impl Permit {
    /// Marks the permit as in use.
    pub(crate) fn used(mut self) -> Self {
        self.is_used = true;
        self
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Release the permits before the notification, so that the notified task finds them.
        self.all = None;
        self.workflow = None;
        if self.is_used && self.starved.swap(false, Ordering::AcqRel) {
            self.freed.notify_one();
        }
    }
}
