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
    /// Tenants may share a transaction: they are on one node.
    shares: bool,
}

/// Transactions with plain commits at a time where tenants share them: with more of them each would carry less.
const SHARED_AT_ONCE: usize = 3;
/// Tenants in one transaction: each has a statement.
const MOST_TENANTS: usize = crate::apply::MOST_AT_ONCE;

#[derive(Default)]
struct Waiting {
    groups: HashMap<Group, Line>,
    /// Groups whose turn it is, the longest waiting first: no tenant comes twice before another has come once.
    turns: VecDeque<Group>,
    plain_under_way: usize,
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
    /// Whether this group may be taken now.
    fn is_free(&self, group: Group, shares: bool) -> bool {
        group.1 == Lane::Planned || !shares || self.plain_under_way < SHARED_AT_ONCE
    }

    fn has_turns(&self, shares: bool) -> bool {
        self.turns.iter().any(|group| self.is_free(*group, shares))
    }

    /// The batches whose turn it is; plain ones of several tenants at once where they share a transaction.
    fn take(&mut self, most: usize, shares: bool) -> Vec<(Group, Vec<CommitJob>)> {
        let Some(at) = self.turns.iter().position(|group| self.is_free(*group, shares)) else {
            return Vec::new();
        };
        let mut batches = Vec::new();
        let mut room = most;
        let mut next = self.turns.remove(at);
        while let Some(group) = next {
            let jobs = self.groups.get_mut(&group).map(|line| line.take(room)).unwrap_or_default();
            room = room.saturating_sub(jobs.len());
            self.turn(group);
            batches.push((group, jobs));
            let goes_on = shares && group.1 == Lane::Plain && room > 0 && batches.len() < MOST_TENANTS;
            let taken = |other: &Group| batches.iter().any(|(group, _)| group == other);
            let other = self.turns.iter().position(|other| other.1 == Lane::Plain && !taken(other));
            next = other.filter(|_| goes_on).and_then(|at| self.turns.remove(at));
        }
        if batches.iter().any(|((_, lane), _)| *lane == Lane::Plain) {
            self.plain_under_way += 1;
        }
        batches
    }

    /// Gives a group its turn, if it has something to do and may.
    fn turn(&mut self, group: Group) -> bool {
        let Some(line) = self.groups.get_mut(&group) else { return false };
        if line.has_turn || line.jobs.is_empty() || line.under_way >= most_at_once(group.1) {
            return false;
        }
        // While a batch is under way another one is worth its cost only when most of one has gathered; what comes
        // first would go alone otherwise.
        if line.under_way > 0 && line.jobs.len() * 4 < line.usual_eighths / 8 * 3 {
            return false;
        }
        line.has_turn = true;
        self.turns.push_back(group);
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

    /// The next batches, of one group or of several that share a transaction; `None` when the queue is closed and empty.
    pub(crate) async fn next(&self, most: usize) -> Option<Vec<(Group, Vec<CommitJob>)>> {
        loop {
            {
                let mut waiting = self.waiting();
                let batches = waiting.take(most, self.shares);
                if !batches.is_empty() {
                    if waiting.has_turns(self.shares) {
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

    /// The batches of these groups, which were taken together, are through.
    pub(crate) fn done(&self, groups: &[Group]) {
        let mut waiting = self.waiting();
        if groups.iter().any(|(_, lane)| *lane == Lane::Plain) {
            waiting.plain_under_way -= 1;
        }
        for group in groups {
            let is_over = waiting.groups.get_mut(group).is_some_and(|line| {
                line.under_way -= 1;
                line.under_way == 0 && line.jobs.is_empty()
            });
            if is_over {
                waiting.groups.remove(group);
            }
            waiting.turn(*group);
        }
        if waiting.has_turns(self.shares) || waiting.is_closed {
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
