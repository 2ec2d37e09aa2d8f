//! Leases of tasks: lease a task to a worker, extend the lease, release the task.

use std::sync::Arc;

use serde_json::Value;
use stepwell_core::{Failure, Timestamp};
use stepwell_store::{StoreError, TenantScope, WaitFilter, WaitQuery};
use tokio::sync::oneshot;

use super::{Asker, Poll, Task, TaskId, TaskState, call_of, evaluated};
use crate::apply_outcome::failed;
use crate::commit_cycle::{CommitFailure, MAX_ATTEMPTS};
use crate::engine::{Inner, permit_work};
use crate::error::EngineError;
use crate::ledger::{Attempts, Ledger, QueuedTask, TaskLease};
use crate::loaded_run::{LoadedRun, PendingCommit};
use crate::planner::attempt_of;
use crate::secrets::{self, Revealed};

/// Page size for reading queued tasks.
const LOOKED_AT: u32 = 50;

/// Leases queued tasks to a worker. This runs in a task of its own: if the caller goes away, the leased tasks are
/// released.
pub(super) async fn leased_tasks(
    inner: &Arc<Inner>,
    scope: TenantScope,
    poll: &Arc<Poll>,
) -> Result<Vec<Task>, EngineError> {
    let (tell, told) = oneshot::channel();
    let (giving, poll) = (inner.clone(), poll.clone());
    inner.host.spawn.spawn(Box::pin(async move {
        let Err(Ok(tasks)) = tell.send(giving.lease_tasks(scope, &poll).await) else { return };
        for task in tasks {
            if let Err(error) = giving.release_task(Asker { scope, actor: None }, task.id, task.fence).await {
                tracing::warn!(task = %task.id, %error, "a leased task could not be released");
            }
        }
    }));
    told.await.unwrap_or(Err(EngineError::Stopped))
}

/// A task with the secrets in its input: their names and their values.
struct Prepared {
    task: Task,
    secrets: Vec<String>,
    revealed: Revealed,
}

impl Inner {
    async fn lease_tasks(
        self: &Arc<Self>,
        scope: TenantScope,
        poll: &Poll,
    ) -> Result<Vec<Task>, EngineError> {
        let mut tasks = Vec::new();
        for action in &poll.actions {
            let mut cursor = None;
            while tasks.len() < poll.max {
                let of = WaitFilter::Topic(TaskState::Waiting.topic(action));
                let page = self.store.waits(scope, WaitQuery { of, limit: LOOKED_AT, cursor }).await?;
                for row in page.items {
                    let id = TaskId { run: row.run, activation: row.wait.activation };
                    let Some(_taking) = self.queue.take(scope.tenant(), id) else { continue };
                    match self.claim_task(scope, id, poll).await {
                        Ok(task) => tasks.extend(task),
                        // Tasks that are already leased must be returned.
                        Err(EngineError::Store(error @ StoreError::Bad(_))) => {
                            tracing::warn!(task = %id, %error, "a task could not be leased");
                        }
                        Err(EngineError::Store(error)) if tasks.is_empty() => return Err(error.into()),
                        Err(EngineError::Store(_)) => return Ok(tasks),
                        Err(error) => tracing::warn!(task = %id, %error, "a task could not be leased"),
                    }
                    if tasks.len() >= poll.max {
                        return Ok(tasks);
                    }
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        Ok(tasks)
    }

    /// Leases one task. `None`: another worker has it, or the run no longer needs it.
    async fn claim_task(
        self: &Arc<Self>,
        scope: TenantScope,
        id: TaskId,
        poll: &Poll,
    ) -> Result<Option<Task>, EngineError> {
        for _ in 0..MAX_ATTEMPTS {
            let loaded_run = match self.load(scope, id.run).await {
                Err(EngineError::NoRun(_)) => return Ok(None),
                loaded => loaded?,
            };
            let Some((attempts, queued)) = waiting(&loaded_run, id) else { return Ok(None) };
            if loaded_run.is_stopped() || !poll.actions.contains(&queued.action) {
                return Ok(None);
            }
            let prepared = self.prepared(scope, &loaded_run, attempts, poll).await;
            let (next, task) = match prepared {
                Ok(Prepared { task, secrets, revealed }) => {
                    let lease = TaskLease {
                        fence: task.fence,
                        worker: poll.worker.clone(),
                        since: self.host.now(),
                        until: task.lease_until,
                        deadline: task.deadline,
                        by: poll.by.clone(),
                        note: None,
                        secrets,
                    };
                    // Before the commit: the worker gets the task only after it.
                    self.leased_secrets.keep((scope.tenant(), id, task.fence), revealed, lease.ends());
                    (PendingCommit::note(leased(&loaded_run, id, Some(&lease))), Some(task))
                }
                Err(None) => return Ok(None),
                // The action would fail in every worker, so fail it here.
                Err(Some(failure)) => {
                    let now = self.host.now();
                    let call = call_of(&loaded_run, attempts, now);
                    let Some(next) = failed(&loaded_run, &call, attempts.message, &failure, now) else {
                        return Ok(None);
                    };
                    (next, None)
                }
            };
            let fence = task.as_ref().map(|task| task.fence);
            let failure = match self.commit_and_drive(scope, &loaded_run, next).await {
                Ok(()) => return Ok(task),
                Err(failure) => failure,
            };
            fence.into_iter().for_each(|fence| self.leased_secrets.forget((scope.tenant(), id, fence)));
            if !matches!(failure, CommitFailure::Moved) {
                return Err(failure.into());
            }
        }
        Err(EngineError::Contended { run: id.run, attempts: MAX_ATTEMPTS })
    }

    /// Builds the task for the worker. `Err(Some)` is a failure of the action. `Err(None)`: the run no longer needs it.
    async fn prepared(
        &self,
        scope: TenantScope,
        loaded_run: &LoadedRun,
        attempts: &Attempts,
        poll: &Poll,
    ) -> Result<Prepared, Option<Failure>> {
        let now = self.host.now();
        let call = evaluated(loaded_run, attempts, now)?;
        let activation = loaded_run.snapshot.activation(call.activation).ok_or(None)?;
        let attempt = attempt_of(loaded_run, &call);
        let (names, mut input) = (secrets::named(&call.input), call.input);
        // A deleted action has no schema any more, so the input is not checked.
        let known = self.catalogues.cached(scope.tenant());
        let source = self.registry.secrets.as_ref();
        let takes = known.action(&call.action).map(|remote| remote.secret_fields()).unwrap_or_default();
        let revealed = secrets::reveal(source, scope, &call.action, takes, &mut input).await.map_err(Some)?;
        if let Some(remote) = known.action(&call.action) {
            remote.takes(&mut input).map_err(|mut failure| {
                revealed.hide_failure(&mut failure);
                Some(failure)
            })?;
        }
        // The timeout starts when a worker gets the task, as that of a local action starts when it runs.
        // Otherwise a time without workers as long as the default timeout would fail every run.
        let timeout_ms = call.timeout_ms.unwrap_or(self.options.action_timeout_ms);
        let deadline = (timeout_ms > 0).then(|| now.plus_ms(timeout_ms));
        let id = TaskId { run: loaded_run.run(), activation: call.activation };
        let task = Task {
            id,
            fence: loaded_run.head.revision + 1,
            action: call.action,
            input,
            run: id.run,
            workflow: loaded_run.definition().name().clone(),
            place: activation.place.clone(),
            transition: call.transition,
            attempt,
            idempotency_key: format!("{}-{}", id.run, id.activation),
            lease_until: until(now, poll.lease_ms, deadline),
            deadline,
        };
        Ok(Prepared { task, secrets: names, revealed })
    }

    /// Extends a lease. The worker's note is stored without the secrets of the task.
    pub(super) async fn renew_lease(
        self: &Arc<Self>,
        by: Asker<'_>,
        id: TaskId,
        fence: u64,
        lease_ms: u64,
        note: Option<Value>,
    ) -> Result<Timestamp, EngineError> {
        let prolonged = |lease: &TaskLease, revealed: &Revealed, now: Timestamp| {
            let until = until(now, lease_ms, lease.deadline);
            let said = note.clone().map(|mut note| {
                revealed.hide(&mut note);
                note
            });
            Some(TaskLease { until, note: said.or_else(|| lease.note.clone()), ..lease.clone() })
        };
        let lease = self.changed_lease(by, id, fence, prolonged).await?;
        Ok(lease.map_or_else(|| self.host.now(), |lease| lease.until))
    }

    /// Releases a leased task.
    pub(super) async fn release_task(
        self: &Arc<Self>,
        by: Asker<'_>,
        id: TaskId,
        fence: u64,
    ) -> Result<(), EngineError> {
        self.changed_lease(by, id, fence, |_, _, _| None).await.map(drop)
    }

    /// Commits a change to the lease of a task. `None` from `change` releases it.
    async fn changed_lease(
        self: &Arc<Self>,
        by: Asker<'_>,
        id: TaskId,
        fence: u64,
        change: impl Fn(&TaskLease, &Revealed, Timestamp) -> Option<TaskLease>,
    ) -> Result<Option<TaskLease>, EngineError> {
        let scope = by.scope;
        for _ in 0..MAX_ATTEMPTS {
            let loaded_run = self.load_task(by, id, fence).await?;
            let (_, lease) = checked_lease(&loaded_run, id, fence, self.host.now())?;
            let revealed = self.secrets_of_lease(scope, id, lease).await?;
            let lease = change(lease, &revealed, self.host.now());
            let next = PendingCommit::note(leased(&loaded_run, id, lease.as_ref()));
            match self.commit_and_drive(scope, &loaded_run, next).await {
                Ok(()) => {
                    let key = (scope.tenant(), id, fence);
                    match &lease {
                        Some(lease) => self.leased_secrets.renew(key, lease.ends()),
                        None => self.leased_secrets.forget(key),
                    }
                    return Ok(lease);
                }
                Err(CommitFailure::Moved) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(EngineError::Contended { run: id.run, attempts: MAX_ATTEMPTS })
    }

    /// Returns the secrets that were in the task's input, so that they can be redacted: the current values, and those
    /// that this process gave to the worker.
    pub(super) async fn secrets_of_lease(
        &self,
        scope: TenantScope,
        id: TaskId,
        lease: &TaskLease,
    ) -> Result<Revealed, EngineError> {
        let known = secrets::known(self.registry.secrets.as_ref(), scope, &lease.secrets).await;
        let known = known.map_err(|why| EngineError::Store(StoreError::Unavailable(why)))?;
        Ok(match self.leased_secrets.of((scope.tenant(), id, lease.fence)) {
            Some(given) => known.with(&given),
            None => known,
        })
    }

    /// Loads the run of a task and checks that the caller may work on its action.
    pub(super) async fn load_task(
        &self,
        by: Asker<'_>,
        task: TaskId,
        fence: u64,
    ) -> Result<LoadedRun, EngineError> {
        let loaded_run = self.load(by.scope, task.run).await;
        let loaded_run = loaded_run.map_err(|error| match error {
            EngineError::NoRun(_) => {
                EngineError::TaskGone { task, fence, why: "the run does not exist".to_owned() }
            }
            other => other,
        })?;
        let queued = loaded_run.ledger.of(task.activation).and_then(|attempts| attempts.queued.as_ref());
        queued.map_or(Ok(()), |queued| permit_work(by.actor, &queued.action))?;
        Ok(loaded_run)
    }
}

/// Returns the end of a lease, which is at most the deadline.
fn until(now: Timestamp, lease_ms: u64, deadline: Option<Timestamp>) -> Timestamp {
    let until = now.plus_ms(lease_ms);
    deadline.map_or(until, |deadline| deadline.min(until))
}

/// Returns a task that is not leased.
fn waiting(loaded_run: &LoadedRun, id: TaskId) -> Option<(&Attempts, &QueuedTask)> {
    let attempts = loaded_run.ledger.of(id.activation)?;
    let queued = attempts.queued.as_deref().filter(|queued| queued.lease.is_none())?;
    Some((attempts, queued))
}

/// Returns a task that is leased under this fence, or the reason why the lease is no longer valid.
pub(super) fn checked_lease(
    loaded_run: &LoadedRun,
    task: TaskId,
    fence: u64,
    now: Timestamp,
) -> Result<(&Attempts, &TaskLease), EngineError> {
    let gone = |why: &str| EngineError::TaskGone { task, fence, why: why.to_owned() };
    if loaded_run.snapshot.is_terminal() {
        return Err(gone("the run has ended"));
    }
    let attempts = loaded_run.ledger.of(task.activation).filter(|attempts| attempts.queued.is_some());
    let attempts = attempts.ok_or_else(|| gone("the run has continued without it"))?;
    let lease = attempts.lease().ok_or_else(|| gone("it was released and waits for a worker"))?;
    if lease.fence != fence {
        return Err(gone("another worker has it"));
    }
    if lease.deadline.is_some_and(|deadline| deadline <= now) {
        return Err(gone("its deadline has passed"));
    }
    Ok((attempts, lease))
}

/// Returns the ledger with this lease on a task. `None` releases the task.
fn leased(loaded_run: &LoadedRun, id: TaskId, lease: Option<&TaskLease>) -> Ledger {
    let mut ledger = loaded_run.ledger.clone();
    for attempts in ledger.attempts.iter_mut().filter(|attempts| attempts.activation == id.activation) {
        attempts.queued.iter_mut().for_each(|queued| queued.lease = lease.cloned());
    }
    ledger
}
