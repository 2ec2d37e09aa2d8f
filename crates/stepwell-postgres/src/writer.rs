//! The committers: tasks that put the queued commits of one tenant into one transaction, and answer them after it.
//!
//! Start reading with [`Committer::batch`]. A refused commit has written nothing, so it does not affect the others in
//! its batch. If PostgreSQL itself reports an error, each commit is retried in its own transaction, so that only the
//! failing one fails. If the connection is lost, the outcome is unknown, and the callers are told so: they look it up.
//!
//! Plain commits of several tenants may share a transaction (see [`Committer::apply_shared`]). If anything in it fails, each
//! tenant's commits are retried in their own transaction.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use stepwell_store::{BatchMeter, CommitError, HintSender, StoreError, TenantId};

use crate::apply::{Applied, Applier, BatchError, Lane, Prepared, missing_tenant};
use crate::connection::Backend;
use crate::error::Failure;
use crate::jobs::{CommitJob, Group, Queue};
use crate::outbox::Outbox;
use crate::plain::refusal;

/// Attempts for a batch that conflicts with other transactions.
const MAX_ATTEMPTS: u32 = 20;

/// The state that the store and its committers share.
pub(crate) struct Shared {
    pub(crate) applier: Applier,
    pub(crate) queue: Queue,
    pub(crate) hints: HintSender,
    pub(crate) outbox: Outbox,
    /// Server processes that may still run a commit whose connection was lost.
    pub(crate) lost_backends: Mutex<Vec<Backend>>,
    pub(crate) batch: usize,
    /// The meter that counts batches; empty until one is registered.
    pub(crate) meter: OnceLock<BatchMeter>,
}

/// Starts the committer tasks, at least one.
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
                batches = self.apply_shared(batches).await;
            }
            for ((tenant, lane), jobs) in batches {
                self.batch(tenant, lane, jobs).await;
            }
            // Let the answered callers queue their next commits first. Otherwise two batches would alternate, each with
            // half of the callers.
            tokio::task::yield_now().await;
            self.shared.queue.done(&groups);
        }
    }

    /// Applies plain commits of several tenants in one transaction. Returns those that need their own transaction.
    async fn apply_shared(&self, mut batches: Vec<(Group, Vec<CommitJob>)>) -> Vec<(Group, Vec<CommitJob>)> {
        // Every transaction locks rows of several tenants in this order, which prevents deadlocks.
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
            Err(batch_error @ BatchError::Lost { .. }) => {
                let jobs = batches.into_iter().flat_map(|(_, jobs)| jobs);
                jobs.for_each(|job| self.failed(job, &batch_error));
                Vec::new()
            }
            // One tenant's failure must not affect the others: retry each tenant alone.
            Err(_) => batches,
        }
    }

    fn answer(&self, jobs: Vec<CommitJob>, applied: Vec<Applied>) {
        for (job, applied) in jobs.into_iter().zip(applied) {
            match applied {
                Ok((committed, hints)) => {
                    job.answer(Ok(committed));
                    for hint in hints {
                        self.shared.outbox.notify(&hint);
                        self.shared.hints.send(hint);
                    }
                }
                Err(error) => job.answer(Err(error)),
            }
        }
    }

    /// Applies all jobs in one transaction. If one of them cannot be applied, retries each in its own transaction.
    async fn batch(&self, tenant: TenantId, lane: Lane, jobs: Vec<CommitJob>) {
        let Err((batch_error, mut jobs)) = self.apply_together(tenant, lane, jobs).await else { return };
        if jobs.len() > 1 && !matches!(batch_error, BatchError::Lost { .. }) {
            for job in jobs {
                if let Err((batch_error, mut job)) = self.apply_together(tenant, lane, vec![job]).await {
                    job.drain(..).for_each(|job| self.failed(job, &batch_error));
                }
            }
            return;
        }
        jobs.drain(..).for_each(|job| self.failed(job, &batch_error));
    }

    /// Applies all jobs in one transaction. Returns the jobs if the transaction fails.
    async fn apply_together(
        &self,
        tenant: TenantId,
        lane: Lane,
        jobs: Vec<CommitJob>,
    ) -> Result<(), (BatchError, Vec<CommitJob>)> {
        let batch: Vec<&Prepared> = jobs.iter().map(|job| &job.prepared).collect();
        let mut attempts = 0;
        let mut began;
        let applied = loop {
            attempts += 1;
            began = self.shared.meter.get().map(|_| Instant::now());
            match self.shared.applier.apply(lane, tenant, &batch).await {
                Err(BatchError::Failed(Failure::Again(_))) if attempts < MAX_ATTEMPTS => {
                    // Vary the pause, so that the same batches do not collide again.
                    let pause = u64::from(attempts) * (1 + jobs.len() as u64 % 7);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
                other => break other,
            }
        };
        match applied {
            Err(batch_error) => Err((batch_error, jobs)),
            Ok(applied) => {
                self.shared.count(jobs.len(), began);
                self.answer(jobs, applied);
                Ok(())
            }
        }
    }

    fn failed(&self, job: CommitJob, batch_error: &BatchError) {
        let error = match batch_error {
            BatchError::Failed(Failure::Store(error) | Failure::Again(error)) => error.clone().into(),
            BatchError::Failed(Failure::Unknown(why)) => StoreError::Unavailable(why.clone()).into(),
            BatchError::MissingRun => CommitError::Refused(refusal(&job.prepared, None)),
            BatchError::MissingTenant => missing_tenant().into(),
            BatchError::Lost { why, backend } => {
                self.shared.add_lost_backend(backend);
                CommitError::Unknown { reference: job.reference.clone(), why: why.clone() }
            }
        };
        job.answer(Err(error));
    }
}

impl Shared {
    /// Counts a finished transaction with this many commits. Some of them may have been refused.
    fn count(&self, commits: usize, began: Option<Instant>) {
        if let (Some(meter), Some(began)) = (self.meter.get(), began) {
            meter.batch(commits, began.elapsed());
        }
    }

    fn add_lost_backend(&self, backend: &Backend) {
        let mut lost_backends = self.lost_backends.lock().unwrap_or_else(PoisonError::into_inner);
        if !lost_backends.contains(backend) {
            lost_backends.push(backend.clone());
        }
    }
}
