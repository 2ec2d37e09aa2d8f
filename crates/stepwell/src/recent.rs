//! A cache of recently released runs, so that a signal to one need not load it first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepwell_store::{RunKey, TenantScope};

use crate::loaded_run::LoadedRun;

/// Maximum number of cached runs, and maximum state size in bytes of one.
const MAX_CACHED_RUNS: usize = 1_024;
const MAX_STATE: usize = 16 * 1_024;

/// Runs without an owner, in the state in which this process released them. The cached state may be outdated. A
/// decision on it must be committed with its revision and its known messages, or the run must be loaded again.
#[derive(Default)]
pub(crate) struct Recent(Mutex<Left>);

#[derive(Default)]
struct Left {
    runs: HashMap<RunKey, (u64, LoadedRun)>,
    /// Insertion order, oldest first. An entry whose number differs from the number in `runs` is outdated.
    order: VecDeque<(u64, RunKey)>,
    next: u64,
}

impl Recent {
    /// Caches a run, unless it has an owner, has ended or is larger than `MAX_STATE`.
    pub(crate) fn put(&self, scope: TenantScope, loaded_run: LoadedRun) {
        let head = &loaded_run.head;
        if head.owner.is_some() || loaded_run.snapshot.is_terminal() || head.state.len() > MAX_STATE {
            return;
        }
        let mut left = self.lock();
        let (number, key) = (left.next, scope.run(head.run));
        left.next += 1;
        left.order.push_back((number, key));
        left.runs.insert(key, (number, loaded_run));
        while left.order.len() > MAX_CACHED_RUNS {
            let Some((number, key)) = left.order.pop_front() else { break };
            if left.runs.get(&key).is_some_and(|(newest, _)| *newest == number) {
                left.runs.remove(&key);
            }
        }
    }

    /// Removes a run from the cache and returns it.
    pub(crate) fn take(&self, run: RunKey) -> Option<LoadedRun> {
        self.lock().runs.remove(&run).map(|(_, loaded_run)| loaded_run)
    }

    fn lock(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
