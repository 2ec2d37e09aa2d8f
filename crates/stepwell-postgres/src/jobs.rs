//! The queue of commits, grouped by tenant and lane, and the order in which groups are served.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepwell_store::{CommitError, CommitRef, Committed, TenantId};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};

use crate::apply::{Lane, Prepared};

/// A commit and the channel to its caller.
pub(crate) struct CommitJob {
    pub(crate) prepared: Prepared,
    pub(crate) reference: CommitRef,
    pub(crate) reply: oneshot::Sender<Answer>,
    /// Its permit to be queued, released with the job.
    pub(crate) _place: OwnedSemaphorePermit,
}

/// The answer and the commit itself. The caller drops the commit, which saves the committer that work.
pub(crate) type Answer = (Result<Committed, CommitError>, Prepared);

impl CommitJob {
    pub(crate) fn answer(self, result: Result<Committed, CommitError>) {
        // A caller that no longer waits gives up the answer, not the commit.
        let _ = self.reply.send((result, self.prepared));
    }
}

/// A tenant and a lane. Commits of one group can share a transaction.
pub(crate) type Group = (TenantId, Lane);

/// Returns the maximum number of concurrent transactions of one group. With more, the batches would be too small, and
/// planned commits would wait for each other's locks.
fn most_at_once(lane: Lane) -> usize {
    match lane {
        Lane::Plain => 2,
        Lane::Planned => 1,
    }
}

/// The queue of all commits that are not running yet.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    work: Notify,
    /// Tenants may share a transaction, because all are on one node.
    shares: bool,
}

/// Maximum number of concurrent transactions with plain commits if tenants share them. With more, each would be
/// smaller.
const SHARED_AT_ONCE: usize = 3;
/// Maximum number of tenants in one transaction. Each needs one statement.
const MOST_TENANTS: usize = crate::apply::MOST_AT_ONCE;

#[derive(Default)]
struct Waiting {
    groups: HashMap<Group, Line>,
    /// Groups that can be served, in the order of waiting. No tenant is served twice before another is served once.
    ready: VecDeque<Group>,
    plain_running: usize,
    is_closed: bool,
}

/// The queued commits of one group.
#[derive(Default)]
struct Line {
    jobs: VecDeque<CommitJob>,
    running: usize,
    is_ready: bool,
    /// Moving average of the batch size, in eighths of a commit.
    usual_eighths: usize,
}

impl Waiting {
    /// Returns true if a batch of this group may start now.
    fn is_free(&self, group: Group, shares: bool) -> bool {
        group.1 == Lane::Planned || !shares || self.plain_running < SHARED_AT_ONCE
    }

    fn has_ready(&self, shares: bool) -> bool {
        self.ready.iter().any(|group| self.is_free(*group, shares))
    }

    /// Takes the next batch. If tenants share transactions, takes plain batches of several tenants at once.
    fn take(&mut self, most: usize, shares: bool) -> Vec<(Group, Vec<CommitJob>)> {
        let Some(at) = self.ready.iter().position(|group| self.is_free(*group, shares)) else {
            return Vec::new();
        };
        let mut batches = Vec::new();
        let mut remaining = most;
        let mut next = self.ready.remove(at);
        while let Some(group) = next {
            let jobs = self.groups.get_mut(&group).map(|line| line.take(remaining)).unwrap_or_default();
            remaining = remaining.saturating_sub(jobs.len());
            self.mark_ready(group);
            batches.push((group, jobs));
            let goes_on = shares && group.1 == Lane::Plain && remaining > 0 && batches.len() < MOST_TENANTS;
            let taken = |other: &Group| batches.iter().any(|(group, _)| group == other);
            let other = self.ready.iter().position(|other| other.1 == Lane::Plain && !taken(other));
            next = other.filter(|_| goes_on).and_then(|at| self.ready.remove(at));
        }
        if batches.iter().any(|((_, lane), _)| *lane == Lane::Plain) {
            self.plain_running += 1;
        }
        batches
    }

    /// Adds a group to the groups that can be served, if it has commits and is below its limit. Returns whether it did.
    fn mark_ready(&mut self, group: Group) -> bool {
        let Some(line) = self.groups.get_mut(&group) else { return false };
        if line.is_ready || line.jobs.is_empty() || line.running >= most_at_once(group.1) {
            return false;
        }
        // While a batch is running, another one is worth its cost only when three quarters of the usual size are
        // queued. Otherwise the first commits would go alone.
        if line.running > 0 && line.jobs.len() * 4 < line.usual_eighths / 8 * 3 {
            return false;
        }
        line.is_ready = true;
        self.ready.push_back(group);
        true
    }
}

impl Queue {
    pub(crate) fn new(shares: bool) -> Self {
        Queue { shares, ..Queue::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job to the queue. Returns the job if the queue is closed.
    pub(crate) fn push(&self, tenant: TenantId, job: CommitJob) -> Option<CommitJob> {
        let group = (tenant, job.prepared.lane());
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return Some(job);
        }
        waiting.groups.entry(group).or_default().jobs.push_back(job);
        if waiting.mark_ready(group) {
            self.work.notify_one();
        }
        None
    }

    /// Waits for the next batches: of one group, or of several that share a transaction. Returns `None` when the queue
    /// is closed and empty.
    pub(crate) async fn next(&self, most: usize) -> Option<Vec<(Group, Vec<CommitJob>)>> {
        loop {
            {
                let mut waiting = self.waiting();
                let batches = waiting.take(most, self.shares);
                if !batches.is_empty() {
                    if waiting.has_ready(self.shares) {
                        self.work.notify_one();
                    }
                    return Some(batches);
                }
                if waiting.is_closed && waiting.groups.is_empty() {
                    self.work.notify_one();
                    return None;
                }
            }
            self.work.notified().await;
        }
    }

    /// Reports that the batches of these groups, which were taken together, are finished.
    pub(crate) fn done(&self, groups: &[Group]) {
        let mut waiting = self.waiting();
        if groups.iter().any(|(_, lane)| *lane == Lane::Plain) {
            waiting.plain_running -= 1;
        }
        for group in groups {
            let is_over = waiting.groups.get_mut(group).is_some_and(|line| {
                line.running -= 1;
                line.running == 0 && line.jobs.is_empty()
            });
            if is_over {
                waiting.groups.remove(group);
            }
            waiting.mark_ready(*group);
        }
        if waiting.has_ready(self.shares) || waiting.is_closed {
            self.work.notify_one();
        }
    }

    /// Closes the queue for new jobs. The queued jobs are still run.
    pub(crate) fn close(&self) {
        self.waiting().is_closed = true;
        self.work.notify_one();
    }
}

impl Line {
    /// Takes a batch with each run at most once. The other commits stay queued.
    fn take(&mut self, most: usize) -> Vec<CommitJob> {
        self.is_ready = false;
        self.running += 1;
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
