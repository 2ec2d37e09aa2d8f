//! Runs the tasks of all simulated processes on one thread, in a random order that follows from the seed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use stepwell::host::BoxFuture;

use super::dice::Dice;

/// The owner of a task. A task ends with its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// No process: clients, and calls on their way to the store.
    Outside,
    /// A simulated process, by its number.
    Process(usize),
}

/// The queue of new and woken tasks.
#[derive(Default)]
pub(crate) struct Board(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    fresh: Vec<(Owner, BoxFuture<()>)>,
    /// Task ids in the order in which they were woken.
    ready: Vec<u64>,
}

impl Board {
    pub(crate) fn spawn(&self, owner: Owner, task: BoxFuture<()>) {
        self.lists().fresh.push((owner, task));
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waker of one task. It queues the task once per wake-up.
struct Bell {
    task: u64,
    rung: AtomicBool,
    board: Arc<Board>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::Relaxed) {
            self.board.lists().ready.push(self.task);
        }
    }
}

struct Task {
    owner: Owner,
    future: BoxFuture<()>,
    bell: Arc<Bell>,
}

/// All tasks of a simulation.
pub(crate) struct Tasks {
    board: Arc<Board>,
    tasks: BTreeMap<u64, Task>,
    count: u64,
}

impl Tasks {
    pub(crate) fn new(board: Arc<Board>) -> Self {
        Tasks { board, tasks: BTreeMap::new(), count: 0 }
    }

    /// Takes over newly spawned tasks. Drops tasks of processes that are not alive.
    pub(crate) fn adopt(&mut self, lives: impl Fn(Owner) -> bool) {
        let fresh = std::mem::take(&mut self.board.lists().fresh);
        for (owner, future) in fresh {
            if !lives(owner) {
                continue;
            }
            self.count += 1;
            let task = self.count;
            let bell = Arc::new(Bell { task, rung: AtomicBool::new(false), board: self.board.clone() });
            bell.wake_by_ref();
            self.tasks.insert(task, Task { owner, future, bell });
        }
    }

    /// Polls one ready task that may run. Returns `None` if there is none.
    pub(crate) fn step(&mut self, dice: &mut Dice, may_run: impl Fn(u64, Owner) -> bool) -> Option<()> {
        let next = {
            let mut lists = self.board.lists();
            lists.ready.retain(|task| self.tasks.contains_key(task));
            let owner_of = |task: u64| self.tasks.get(&task).map(|known| known.owner);
            let able: Vec<usize> = (0..lists.ready.len())
                .filter(|at| owner_of(lists.ready[*at]).is_some_and(|owner| may_run(lists.ready[*at], owner)))
                .collect();
            if able.is_empty() {
                return None;
            }
            let at = able[dice.below(able.len() as u64) as usize];
            lists.ready.remove(at)
        };
        let mut task = self.tasks.remove(&next)?;
        task.bell.rung.store(false, Ordering::Relaxed);
        let waker = Waker::from(task.bell.clone());
        if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.tasks.insert(next, task);
        }
        Some(())
    }

    /// Drops every task of a process immediately, at its current await.
    pub(crate) fn end_of(&mut self, owner: Owner) {
        let theirs: Vec<u64> =
            self.tasks.iter().filter(|(_, task)| task.owner == owner).map(|(id, _)| *id).collect();
        // Oldest first, so that dropping them wakes other tasks always in the same order.
        theirs.iter().for_each(|id| drop(self.tasks.remove(id)));
    }

    /// Returns a random task of this process, if it has one.
    pub(crate) fn any_of(&self, owner: Owner, dice: &mut Dice) -> Option<u64> {
        let theirs: Vec<u64> =
            self.tasks.iter().filter(|(_, task)| task.owner == owner).map(|(id, _)| *id).collect();
        (!theirs.is_empty()).then(|| dice.pick(&theirs))
    }
}
