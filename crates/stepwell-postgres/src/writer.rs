//! The committers: whatever waits of one tenant goes into one transaction, and everybody is answered after it.
//!
//! Follow [`Committer::batch`]. A commit that is refused has written nothing, so the others in its batch are not touched.
//! If something in a batch fails in PostgreSQL itself, its members are tried one by one, so that only the one that
//! fails is left out. If the connection is lost, nobody knows, and nobody is told that it worked or that it did not:
//! they look it up. Plain commits of several tenants may share a transaction (see [`Committer::several`]); if anything in it
//! fails, each tenant's go on their own.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use stepwell_store::{BatchMeter, CommitError, HintSender, StoreError, TenantId};

use crate::apply::{Applied, Applier, Lane, Prepared, Trouble};
use crate::connection::Backend;
use crate::error::Failure;
use crate::jobs::{CommitJob, Group, Queue};
use crate::outbox::Outbox;
use crate::plain::refusal;

/// How often a batch is tried again that somebody else was in the way of.
const TRIES: u32 = 20;

/// What the committers share.
pub(crate) struct Shared {
    pub(crate) applier: Applier,
    pub(crate) queue: Queue,
    pub(crate) hints: HintSender,
    pub(crate) outbox: Outbox,
    /// Server processes that may still be at a commit whose connection was lost.
    pub(crate) ghosts: Mutex<Vec<Backend>>,
    pub(crate) batch: usize,
    /// What counts the batches, once somebody asks for it.
    pub(crate) meter: OnceLock<BatchMeter>,
}

/// Starts the committers' tasks.
pub(crate) fn start(shared: &Arc<Shared>, committers: usize) {
    for _ in 0..committers.max(1) {
        let committer = Committer { shared: shared.clone() };
        tokio::spawn(committer.run());
    }
}

struct Committer {
    shared: Arc<Shared>,
}

impl Committer {
    async fn run(self) {
        while let Some(mut batches) = self.shared.queue.next(self.shared.batch).await {
            let groups: Vec<Group> = batches.iter().map(|(group, _)| *group).collect();
            if batches.len() > 1 {
                batches = self.several(batches).await;
            }
            for ((tenant, lane), jobs) in batches {
                self.batch(tenant, lane, jobs).await;
            }
            // Whoever was answered may ask for more before the next batch goes: two that follow each other would
            // otherwise share the callers between them, each with half of its size.
            tokio::task::yield_now().await;
            self.shared.queue.done(&groups);
        }
    }

    /// Plain commits of several tenants in one transaction; gives back those that have to go on their own.
    async fn several(&self, mut batches: Vec<(Group, Vec<CommitJob>)>) -> Vec<(Group, Vec<CommitJob>)> {
        // Whoever locks rows of several tenants locks them in this order.
        batches.sort_unstable_by_key(|((tenant, _), _)| *tenant);
        let groups: Vec<_> = batches
            .iter()
            .map(|((tenant, _), jobs)| (*tenant, jobs.iter().map(|job| &job.prepared).collect()))
            .collect();
        let began = self.shared.meter.get().map(|_| Instant::now());
        let applied = self.shared.applier.shared(&groups).await;
        drop(groups);
        match applied {
            Ok(applied) => {
                let mut left = Vec::new();
                let written = batches.iter().zip(&applied).filter(|(_, applied)| applied.is_some());
                self.shared.count(written.map(|((_, jobs), _)| jobs.len()).sum(), began);
                for ((group, jobs), applied) in batches.into_iter().zip(applied) {
                    match applied {
                        Some(applied) => self.answer(jobs, applied),
                        None => left.push((group, jobs)),
                    }
                }
                left
            }
            Err(trouble @ Trouble::Lost { .. }) => {
                let jobs = batches.into_iter().flat_map(|(_, jobs)| jobs);
                jobs.for_each(|job| self.failed(job, &trouble));
                Vec::new()
            }
            // What is wrong with one of them is not the others' affair.
            Err(_) => batches,
        }
    }

    fn answer(&self, jobs: Vec<CommitJob>, applied: Vec<Applied>) {
        for (job, applied) in jobs.into_iter().zip(applied) {
            match applied {
                Ok((committed, hints)) => {
                    job.answer(Ok(committed));
                    for hint in hints {
                        self.shared.outbox.tell(&hint);
                        self.shared.hints.send(hint);
                    }
                }
                Err(error) => job.answer(Err(error)),
            }
        }
    }

    /// All jobs in one transaction, or if one of them cannot be applied, each in its own.
    async fn batch(&self, tenant: TenantId, lane: Lane, jobs: Vec<CommitJob>) {
        let Err((trouble, mut jobs)) = self.together(tenant, lane, jobs).await else { return };
        if jobs.len() > 1 && !matches!(trouble, Trouble::Lost { .. }) {
            for job in jobs {
                if let Err((trouble, mut job)) = self.together(tenant, lane, vec![job]).await {
                    job.drain(..).for_each(|job| self.failed(job, &trouble));
                }
            }
            return;
        }
        jobs.drain(..).for_each(|job| self.failed(job, &trouble));
    }

    /// All jobs in one transaction; gives them back if it cannot be.
    async fn together(
        &self,
        tenant: TenantId,
        lane: Lane,
        jobs: Vec<CommitJob>,
    ) -> Result<(), (Trouble, Vec<CommitJob>)> {
        let batch: Vec<&Prepared> = jobs.iter().map(|job| &job.prepared).collect();
        let mut tries = 0;
        let mut began;
        let applied = loop {
            tries += 1;
            began = self.shared.meter.get().map(|_| Instant::now());
            match self.shared.applier.apply(lane, tenant, &batch).await {
                Err(Trouble::Failed(Failure::Again(_))) if tries < TRIES => {
                    // Not all at the same time again.
                    let pause = u64::from(tries) * (1 + jobs.len() as u64 % 7);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
                other => break other,
            }
        };
        match applied {
            Err(trouble) => Err((trouble, jobs)),
            Ok(applied) => {
                self.shared.count(jobs.len(), began);
                self.answer(jobs, applied);
                Ok(())
            }
        }
    }

    fn failed(&self, job: CommitJob, trouble: &Trouble) {
        let error = match trouble {
            Trouble::Failed(Failure::Store(error) | Failure::Again(error)) => error.clone().into(),
            Trouble::Failed(Failure::Unknown(why)) => StoreError::Unavailable(why.clone()).into(),
            Trouble::Torn => CommitError::Refused(refusal(&job.prepared, None)),
            Trouble::Lost { why, backend } => {
                self.shared.haunted(backend);
                CommitError::Unknown { reference: job.reference.clone(), why: why.clone() }
            }
        };
        job.answer(Err(error));
    }
}

impl Shared {
    /// So many commits share a transaction that has ended; some may have been refused.
    fn count(&self, commits: usize, began: Option<Instant>) {
        if let (Some(meter), Some(began)) = (self.meter.get(), began) {
            meter.batch(commits, began.elapsed());
        }
    }

    fn haunted(&self, backend: &Backend) {
        let mut ghosts = self.ghosts.lock().unwrap_or_else(PoisonError::into_inner);
        if !ghosts.contains(backend) {
            ghosts.push(backend.clone());
        }
    }
}
