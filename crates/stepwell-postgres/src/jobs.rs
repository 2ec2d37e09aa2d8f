//! Commits that wait: by tenant and lane, and whose turn it is.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepwell_store::{CommitError, CommitRef, Committed, TenantId};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};

use crate::apply::{Lane, Prepared};

/// A commit and who waits for it.
pub(crate) struct CommitJob {
    pub(crate) prepared: Prepared,
    pub(crate) reference: CommitRef,
    pub(crate) reply: oneshot::Sender<Answer>,
    /// Its place among those that may wait.
    pub(crate) _place: OwnedSemaphorePermit,
}

/// The answer, and the commit back: whoever made it takes it down again, which is work a committer need not do.
pub(crate) type Answer = (Result<Committed, CommitError>, Prepared);

impl CommitJob {
    pub(crate) fn answer(self, result: Result<Committed, CommitError>) {
        // A caller that no longer waits has given up its answer, not its commit.
        let _ = self.reply.send((result, self.prepared));
    }
}

/// Whose commits go together.
pub(crate) type Group = (TenantId, Lane);

/// Transactions of one tenant at a time. With one more what waits would be spread too thin; and commits that are
/// planned wait for each other's locks.
fn most_at_once(lane: Lane) -> usize {
    match lane {
        Lane::Plain => 2,
        Lane::Planned => 1,
    }
}

/// Everything that waits.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    work: Notify,
}

#[derive(Default)]
struct Waiting {
    groups: HashMap<Group, Line>,
    /// Groups whose turn it is, the longest waiting first: no tenant comes twice before another has come once.
    turns: VecDeque<Group>,
    is_closed: bool,
}

/// The commits of one group.
#[derive(Default)]
struct Line {
    jobs: VecDeque<CommitJob>,
    under_way: usize,
    has_turn: bool,
    /// How many have gone together lately, in eighths of a commit.
    usual_eighths: usize,
}

impl Waiting {
    /// Gives a group its turn, if it has something to do and may.
    fn turn(&mut self, group: Group) -> bool {
        let Some(line) = self.groups.get_mut(&group) else { return false };
        if line.has_turn || line.jobs.is_empty() || line.under_way >= most_at_once(group.1) {
            return false;
        }
        // While a batch is under way another one is worth its cost only when half of one has gathered; what comes
        // first would go alone otherwise.
        if line.under_way > 0 && line.jobs.len() * 2 < line.usual_eighths / 8 {
            return false;
        }
        line.has_turn = true;
        self.turns.push_back(group);
        true
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the job back if nothing is taken any more.
    pub(crate) fn push(&self, tenant: TenantId, job: CommitJob) -> Option<CommitJob> {
        let group = (tenant, job.prepared.lane());
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return Some(job);
        }
        waiting.groups.entry(group).or_default().jobs.push_back(job);
        if waiting.turn(group) {
            self.work.notify_one();
        }
        None
    }

    /// The next batch; `None` when the queue is closed and empty.
    pub(crate) async fn next(&self, most: usize) -> Option<(Group, Vec<CommitJob>)> {
        loop {
            {
                let mut waiting = self.waiting();
                if let Some(group) = waiting.turns.pop_front() {
                    let batch =
                        waiting.groups.get_mut(&group).map(|line| line.take(most)).unwrap_or_default();
                    if waiting.turn(group) || !waiting.turns.is_empty() {
                        self.work.notify_one();
                    }
                    return Some((group, batch));
                }
                if waiting.is_closed && waiting.groups.is_empty() {
                    self.work.notify_one();
                    return None;
                }
            }
            self.work.notified().await;
        }
    }

    /// A batch of this group is through.
    pub(crate) fn done(&self, group: Group) {
        let mut waiting = self.waiting();
        let is_over = waiting.groups.get_mut(&group).is_some_and(|line| {
            line.under_way -= 1;
            line.under_way == 0 && line.jobs.is_empty()
        });
        if is_over {
            waiting.groups.remove(&group);
        }
        if waiting.turn(group) || waiting.is_closed {
            self.work.notify_one();
        }
    }

    /// Nothing is taken any more; what waits is still done.
    pub(crate) fn close(&self) {
        self.waiting().is_closed = true;
        self.work.notify_one();
    }
}

impl Line {
    /// As many as may go together, each run once: the rest waits for the next turn.
    fn take(&mut self, most: usize) -> Vec<CommitJob> {
        self.has_turn = false;
        self.under_way += 1;
        let mut batch = Vec::with_capacity(most.min(self.jobs.len()));
        let mut left = VecDeque::new();
        let mut runs = HashSet::new();
        while batch.len() < most
            && let Some(job) = self.jobs.pop_front()
        {
            match job.prepared.run() {
                Some(run) if !runs.insert(run) => left.push_back(job),
                _ => batch.push(job),
            }
        }
        self.usual_eighths = self.usual_eighths - self.usual_eighths / 8 + batch.len();
        left.append(&mut self.jobs);
        self.jobs = left;
        batch
    }
}
