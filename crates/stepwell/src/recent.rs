//! Runs as this process has left them, so that a signal to one need not read it first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepwell_store::{RunKey, TenantScope};

use crate::standing::Standing;

/// How many are kept, and up to which size of their state.
const KEPT: usize = 1_024;
const MAX_STATE: usize = 16 * 1_024;

/// Runs that nobody works on, as this process has left them. They may have moved since: whoever decides on one commits
/// with its revision and with the messages it knows, or reads it again.
#[derive(Default)]
pub(crate) struct Recent(Mutex<Left>);

#[derive(Default)]
struct Left {
    runs: HashMap<RunKey, (u64, Standing)>,
    /// Oldest first; a number that is not its run's any more says nothing.
    order: VecDeque<(u64, RunKey)>,
    next: u64,
}

impl Recent {
    /// Remembers a run, if it rests.
    pub(crate) fn put(&self, scope: TenantScope, standing: Standing) {
        let head = &standing.head;
        if head.owner.is_some() || standing.snapshot.is_terminal() || head.state.len() > MAX_STATE {
            return;
        }
        let mut left = self.lock();
        let (number, key) = (left.next, scope.run(head.run));
        left.next += 1;
        left.order.push_back((number, key));
        left.runs.insert(key, (number, standing));
        while left.order.len() > KEPT {
            let Some((number, key)) = left.order.pop_front() else { break };
            if left.runs.get(&key).is_some_and(|(newest, _)| *newest == number) {
                left.runs.remove(&key);
            }
        }
    }

    /// A run as it was left, if that is remembered; it is forgotten by that.
    pub(crate) fn take(&self, run: RunKey) -> Option<Standing> {
        self.lock().runs.remove(&run).map(|(_, standing)| standing)
    }

    fn lock(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
