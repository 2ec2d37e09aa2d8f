//! A task is given to a worker, which is heard of while it works, or gives it back.

use std::sync::Arc;

use serde_json::Value;
use stepwell_core::{Failure, Timestamp};
use stepwell_store::{StoreError, TenantScope, WaitQuery, WaitsOf};
use tokio::sync::oneshot;

use super::{Asker, Poll, Task, TaskId, TaskState, call_of, evaluated};
use crate::engine::{Inner, permit_work};
use crate::error::EngineError;
use crate::landing::failed;
use crate::ledger::{Lease, Ledger, Posted, Tries};
use crate::look::attempt_of;
use crate::secrets::{self, Revealed};
use crate::standing::{Move, Standing};
use crate::turn::{MAX_TRIES, Turnless};

/// Rows that are looked at in one go.
const LOOKED_AT: u32 = 50;

/// What there is for a worker. It is done beside the caller: whoever asked may go away, and then it is given back.
pub(super) async fn given(
    inner: &Arc<Inner>,
    scope: TenantScope,
    poll: &Arc<Poll>,
) -> Result<Vec<Task>, EngineError> {
    let (tell, told) = oneshot::channel();
    let (giving, poll) = (inner.clone(), poll.clone());
    inner.host.spawn.spawn(Box::pin(async move {
        let Err(Ok(tasks)) = tell.send(giving.give(scope, &poll).await) else { return };
        for task in tasks {
            if let Err(error) = giving.give_back(Asker { scope, actor: None }, task.id, task.fence).await {
                tracing::warn!(task = %task.id, %error, "a task could not be given back");
            }
        }
    }));
    told.await.unwrap_or(Err(EngineError::Stopped))
}

/// What a worker is given, or why it cannot be.
struct Prepared {
    task: Task,
    secrets: Vec<String>,
}

impl Inner {
    async fn give(self: &Arc<Self>, scope: TenantScope, poll: &Poll) -> Result<Vec<Task>, EngineError> {
        let mut tasks = Vec::new();
        for action in &poll.actions {
            let mut cursor = None;
            while tasks.len() < poll.max {
                let of = WaitsOf::Topic(TaskState::Waiting.topic(action));
                let page = self.store.waits(scope, WaitQuery { of, limit: LOOKED_AT, cursor }).await?;
                for row in page.items {
                    let id = TaskId { run: row.run, activation: row.wait.activation };
                    let Some(_taking) = self.desk.take(scope.tenant(), id) else { continue };
                    match self.claim_task(scope, id, poll).await {
                        Ok(task) => tasks.extend(task),
                        // What was given away already is not to be lost.
                        Err(EngineError::Store(error @ StoreError::Bad(_))) => {
                            tracing::warn!(task = %id, %error, "a task cannot be given away");
                        }
                        Err(EngineError::Store(error)) if tasks.is_empty() => return Err(error.into()),
                        Err(EngineError::Store(_)) => return Ok(tasks),
                        Err(error) => tracing::warn!(task = %id, %error, "a task cannot be given away"),
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

    /// Gives one task away; `None` = somebody else has it, or it is not to be done any more.
    async fn claim_task(
        self: &Arc<Self>,
        scope: TenantScope,
        id: TaskId,
        poll: &Poll,
    ) -> Result<Option<Task>, EngineError> {
        for _ in 0..MAX_TRIES {
            let standing = match self.load(scope, id.run).await {
                Err(EngineError::NoRun(_)) => return Ok(None),
                loaded => loaded?,
            };
            let Some((tries, posted)) = waiting(&standing, id) else { return Ok(None) };
            if standing.stands_still() || !poll.actions.contains(&posted.action) {
                return Ok(None);
            }
            let prepared = self.prepared(scope, &standing, tries, poll).await;
            let (next, task) = match prepared {
                Ok(Prepared { task, secrets }) => {
                    let lease = Lease {
                        fence: task.fence,
                        worker: poll.worker.clone(),
                        since: self.host.now(),
                        until: task.lease_until,
                        deadline: task.deadline,
                        note: None,
                        secrets,
                    };
                    (Move::note(leased(&standing, id, Some(&lease))), Some(task))
                }
                Err(None) => return Ok(None),
                // It would fail wherever it ran.
                Err(Some(failure)) => {
                    let now = self.host.now();
                    let call = call_of(&standing, tries, now);
                    let Some(next) = failed(&standing, &call, tries.message, &failure, now) else {
                        return Ok(None);
                    };
                    (next, None)
                }
            };
            match self.anyone(scope, &standing, next).await {
                Ok(()) => return Ok(task),
                Err(Turnless::Moved) => {}
                Err(turnless) => return Err(turnless.into()),
            }
        }
        Err(EngineError::Contended { run: id.run, tries: MAX_TRIES })
    }

    /// The task as its worker is given it; an error is the failure that it comes to at once, if it does.
    async fn prepared(
        &self,
        scope: TenantScope,
        standing: &Standing,
        tries: &Tries,
        poll: &Poll,
    ) -> Result<Prepared, Option<Failure>> {
        let now = self.host.now();
        let call = evaluated(standing, tries, now)?;
        let activation = standing.snapshot.activation(call.activation).ok_or(None)?;
        let attempt = attempt_of(standing, &call);
        let (names, mut input) = (secrets::named(&call.input), call.input);
        // An action that was taken away says no longer what it takes.
        let known = self.catalogues.held(scope.tenant());
        let source = self.registry.secrets.as_ref();
        let takes = known.action(&call.action).map(|remote| remote.secret_fields()).unwrap_or_default();
        let given = secrets::reveal(source, scope, &call.action, takes, &mut input).await.map_err(Some)?;
        if let Some(remote) = known.action(&call.action) {
            remote.takes(&mut input).map_err(|mut failure| {
                given.hide_failure(&mut failure);
                Some(failure)
            })?;
        }
        let deadline = (call.timeout_ms > 0).then(|| now.plus_ms(call.timeout_ms));
        let id = TaskId { run: standing.run(), activation: call.activation };
        let task = Task {
            id,
            fence: standing.head.revision + 1,
            action: call.action,
            input,
            run: id.run,
            workflow: standing.definition().name().clone(),
            place: activation.place.clone(),
            transition: call.transition,
            attempt,
            idempotency_key: format!("{}-{}", id.run, id.activation),
            lease_until: until(now, poll.lease_ms, deadline),
            deadline,
        };
        Ok(Prepared { task, secrets: names })
    }

    /// A worker is heard of. What it says is kept without the secrets that it was given.
    pub(super) async fn heard_of(
        self: &Arc<Self>,
        by: Asker<'_>,
        id: TaskId,
        fence: u64,
        lease_ms: u64,
        note: Option<Value>,
    ) -> Result<Timestamp, EngineError> {
        let prolonged = |lease: &Lease, given: &Revealed, now: Timestamp| {
            let until = until(now, lease_ms, lease.deadline);
            let said = note.clone().map(|mut note| {
                given.hide(&mut note);
                note
            });
            Some(Lease { until, note: said.or_else(|| lease.note.clone()), ..lease.clone() })
        };
        let lease = self.changed_lease(by, id, fence, prolonged).await?;
        Ok(lease.map_or_else(|| self.host.now(), |lease| lease.until))
    }

    /// A worker gives its task back.
    pub(super) async fn give_back(
        self: &Arc<Self>,
        by: Asker<'_>,
        id: TaskId,
        fence: u64,
    ) -> Result<(), EngineError> {
        self.changed_lease(by, id, fence, |_, _, _| None).await.map(drop)
    }

    /// Changes what is on record of a worker that has a task.
    async fn changed_lease(
        self: &Arc<Self>,
        by: Asker<'_>,
        id: TaskId,
        fence: u64,
        change: impl Fn(&Lease, &Revealed, Timestamp) -> Option<Lease>,
    ) -> Result<Option<Lease>, EngineError> {
        let scope = by.scope;
        for _ in 0..MAX_TRIES {
            let standing = self.load_task(by, id, fence).await?;
            let (_, lease) = held(&standing, id, fence, self.host.now())?;
            let given = self.given_with(scope, lease).await?;
            let lease = change(lease, &given, self.host.now());
            let next = Move::note(leased(&standing, id, lease.as_ref()));
            match self.anyone(scope, &standing, next).await {
                Ok(()) => return Ok(lease),
                Err(Turnless::Moved) => {}
                Err(turnless) => return Err(turnless.into()),
            }
        }
        Err(EngineError::Contended { run: id.run, tries: MAX_TRIES })
    }

    /// The secrets that a worker was given with its task.
    pub(super) async fn given_with(
        &self,
        scope: TenantScope,
        lease: &Lease,
    ) -> Result<Revealed, EngineError> {
        let known = secrets::known(self.registry.secrets.as_ref(), scope, &lease.secrets).await;
        known.map_err(|why| EngineError::Store(StoreError::Unavailable(why)))
    }

    /// The run of a task that somebody says is theirs, and whose action is one of theirs.
    pub(super) async fn load_task(
        &self,
        by: Asker<'_>,
        task: TaskId,
        fence: u64,
    ) -> Result<Standing, EngineError> {
        let standing = self.load(by.scope, task.run).await;
        let standing = standing.map_err(|error| match error {
            EngineError::NoRun(_) => {
                EngineError::TaskGone { task, fence, why: "there is no such run".to_owned() }
            }
            other => other,
        })?;
        let posted = standing.ledger.of(task.activation).and_then(|tries| tries.posted.as_ref());
        posted.map_or(Ok(()), |posted| permit_work(by.actor, &posted.action))?;
        Ok(standing)
    }
}

/// Until when a worker need not be heard of.
fn until(now: Timestamp, lease_ms: u64, deadline: Option<Timestamp>) -> Timestamp {
    let until = now.plus_ms(lease_ms);
    deadline.map_or(until, |deadline| deadline.min(until))
}

/// A task that waits for a worker.
fn waiting(standing: &Standing, id: TaskId) -> Option<(&Tries, &Posted)> {
    let tries = standing.ledger.of(id.activation)?;
    let posted = tries.posted.as_deref().filter(|posted| posted.lease.is_none())?;
    Some((tries, posted))
}

/// A task that is the worker's who names this fence.
pub(super) fn held(
    standing: &Standing,
    task: TaskId,
    fence: u64,
    now: Timestamp,
) -> Result<(&Tries, &Lease), EngineError> {
    let gone = |why: &str| EngineError::TaskGone { task, fence, why: why.to_owned() };
    if standing.snapshot.is_terminal() {
        return Err(gone("its run has ended"));
    }
    let tries = standing.ledger.of(task.activation).filter(|tries| tries.posted.is_some());
    let tries = tries.ok_or_else(|| gone("its run has gone on without it"))?;
    let lease = tries.lease().ok_or_else(|| gone("it waits for a worker"))?;
    if lease.fence != fence {
        return Err(gone("somebody else has it"));
    }
    if lease.deadline.is_some_and(|deadline| deadline <= now) {
        return Err(gone("it has taken too long"));
    }
    Ok((tries, lease))
}

/// The ledger with a task that is somebody's, or nobody's.
fn leased(standing: &Standing, id: TaskId, lease: Option<&Lease>) -> Ledger {
    let mut ledger = standing.ledger.clone();
    for tries in ledger.tries.iter_mut().filter(|tries| tries.activation == id.activation) {
        tries.posted.iter_mut().for_each(|posted| posted.lease = lease.cloned());
    }
    ledger
}
