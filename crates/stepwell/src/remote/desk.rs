//! Where workers of this process wait for tasks, and which tasks are just being given away: nobody else tries those in vain.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use stepwell_core::Name;
use stepwell_store::TenantId;
use tokio::sync::Notify;

use super::TaskId;

type Waiting = BTreeMap<(TenantId, Name), VecDeque<Weak<Notify>>>;

/// Where workers get what they are to do.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    /// Those who wait, by what they do; whoever was told last comes last.
    waiting: Mutex<Waiting>,
    taken: Mutex<BTreeSet<(TenantId, TaskId)>>,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody waits for tasks of these actions. From here on nothing is missed.
    pub(super) fn wait(&self, tenant: TenantId, actions: &[Name]) -> Waiter<'_> {
        let told = Arc::new(Notify::new());
        let mut waiting = self.lock();
        for action in actions {
            waiting.entry((tenant, action.clone())).or_default().push_back(Arc::downgrade(&told));
        }
        drop(waiting);
        Waiter { desk: self, tenant, actions: actions.to_vec(), told }
    }

    /// There is a task of each of these actions: one who waits for it is told.
    pub(crate) fn offer(&self, tenant: TenantId, actions: &[Name]) {
        if actions.is_empty() {
            return;
        }
        let mut waiting = self.lock();
        for action in actions {
            let Some(queue) = waiting.get_mut(&(tenant, action.clone())) else { continue };
            while let Some(first) = queue.pop_front() {
                if let Some(told) = first.upgrade() {
                    told.notify_one();
                    queue.push_back(first);
                    break;
                }
            }
        }
    }

    /// The right to give a task away, if nobody in this process does already.
    pub(super) fn take(&self, tenant: TenantId, task: TaskId) -> Option<Taking<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // Only who has the right gives it up again.
        taken.insert((tenant, task)).then(|| Taking { desk: self, key: (tenant, task) })
    }
}

/// Somebody who waits for tasks.
pub(super) struct Waiter<'a> {
    desk: &'a Desk,
    tenant: TenantId,
    actions: Vec<Name>,
    told: Arc<Notify>,
}

impl Waiter<'_> {
    /// There may be a task.
    pub(super) async fn told(&self) {
        self.told.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.desk.lock();
        for action in &self.actions {
            let key = (self.tenant, action.clone());
            let Some(queue) = waiting.get_mut(&key) else { continue };
            queue.retain(|other| other.upgrade().is_some_and(|told| !Arc::ptr_eq(&told, &self.told)));
            if queue.is_empty() {
                waiting.remove(&key);
            }
        }
        drop(waiting);
        // What it was told and has not looked for is for the next one.
        self.desk.offer(self.tenant, &self.actions);
    }
}

/// The right to give a task away.
pub(super) struct Taking<'a> {
    desk: &'a Desk,
    key: (TenantId, TaskId),
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.desk.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
