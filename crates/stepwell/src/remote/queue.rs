//! The in-process side of the task queue: polls that wait for tasks, and tasks that are being leased right now.
//! Concurrent polls skip the latter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use stepwell_core::Name;
use stepwell_store::TenantId;
use tokio::sync::Notify;

use super::TaskId;

type Waiting = BTreeMap<(TenantId, Name), VecDeque<Weak<Notify>>>;

/// The waiting polls of this process and the tasks being leased.
#[derive(Debug, Default)]
pub(crate) struct TaskQueue {
    /// Waiting polls by action. A poll that was notified moves to the end, so that polls take turns.
    waiting: Mutex<Waiting>,
    taken: Mutex<BTreeSet<(TenantId, TaskId)>>,
}

impl TaskQueue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a poll that waits for tasks of these actions. It misses no task that is queued from now on.
    pub(super) fn wait(&self, tenant: TenantId, actions: &[Name]) -> QueueWaiter<'_> {
        let notification = Arc::new(Notify::new());
        let mut waiting = self.lock();
        for action in actions {
            waiting.entry((tenant, action.clone())).or_default().push_back(Arc::downgrade(&notification));
        }
        drop(waiting);
        QueueWaiter { queue: self, tenant, actions: actions.to_vec(), notification }
    }

    /// Notifies one waiting poll per action that a task was queued.
    pub(crate) fn offer(&self, tenant: TenantId, actions: &[Name]) {
        if actions.is_empty() {
            return;
        }
        let mut waiting = self.lock();
        for action in actions {
            let Some(queue) = waiting.get_mut(&(tenant, action.clone())) else { continue };
            while let Some(first) = queue.pop_front() {
                if let Some(notification) = first.upgrade() {
                    notification.notify_one();
                    queue.push_back(first);
                    break;
                }
            }
        }
    }

    /// Reserves a task for leasing. `None` if another poll of this process has reserved it.
    pub(super) fn take(&self, tenant: TenantId, task: TaskId) -> Option<ClaimGuard<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // The guard is created only if the task was reserved: dropping it ends the reservation.
        taken.insert((tenant, task)).then(|| ClaimGuard { queue: self, key: (tenant, task) })
    }
}

/// A poll that waits for tasks.
pub(super) struct QueueWaiter<'a> {
    queue: &'a TaskQueue,
    tenant: TenantId,
    actions: Vec<Name>,
    notification: Arc<Notify>,
}

impl QueueWaiter<'_> {
    /// Waits until a task may be available.
    pub(super) async fn notification(&self) {
        self.notification.notified().await;
    }
}

impl Drop for QueueWaiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        for action in &self.actions {
            let key = (self.tenant, action.clone());
            let Some(queue) = waiting.get_mut(&key) else { continue };
            queue.retain(|other| {
                other.upgrade().is_some_and(|notification| !Arc::ptr_eq(&notification, &self.notification))
            });
            if queue.is_empty() {
                waiting.remove(&key);
            }
        }
        drop(waiting);
        // Pass on a notification that this poll did not use.
        self.queue.offer(self.tenant, &self.actions);
    }
}

/// A reservation of a task for leasing. It ends when it is dropped.
pub(super) struct ClaimGuard<'a> {
    queue: &'a TaskQueue,
    key: (TenantId, TaskId),
}

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        self.queue.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
