//! Drives a run that this process owns: commits what can be decided, runs due actions, and releases the run when
//! nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::{AbortHandle, Abortable, FutureExt};
use serde_json::Value;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{ActionCall, Cause, Failure, Name, RunId, Timestamp};
use stepwell_store::{Page, ProcessId, RunFilter, RunQuery, RunSummary, Status, StoreError, TenantScope};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::apply_outcome::interrupted;
use crate::commit_cycle::{CommitFailure, CommittedBy, CycleResult};
use crate::concurrency::Permit;
use crate::cx::{Cx, Staged, StateLocation};
use crate::engine::Inner;
use crate::host::BoxFuture;
use crate::inbox::MessageBody;
use crate::ledger::{PendingCancellation, Stopped};
use crate::loaded_run::{InFlightAction, InFlightActions, LoadedRun, PendingCommit};
use crate::observe::{self, TIMEOUT};
use crate::planner::{Idle, NextStep, PlannedAction};
use crate::registry::said;
use crate::secrets;

/// Number of children that one commit notifies of a cancellation.
const CANCEL_BATCH_SIZE: u32 = 200;
/// Maximum age, in milliseconds, at which a plan is still used.
const FRESH_MS: u64 = 5;

/// Drives a run that this process owns in a new task, until it is idle.
pub(crate) fn spawn_driver(inner: Arc<Inner>, scope: TenantScope, loaded_run: LoadedRun, permit: Permit) {
    let spawn = inner.host.spawn.clone();
    spawn.spawn(Box::pin(RunDriver::new(inner, scope, loaded_run, Some(permit)).run(None)));
}

/// Drives a run like [`spawn_driver`], but in the caller's task.
pub(crate) async fn inline(
    inner: &Arc<Inner>,
    scope: TenantScope,
    loaded_run: LoadedRun,
    next: Option<NextStep>,
) {
    Box::pin(RunDriver::new(inner.clone(), scope, loaded_run, None).run(next)).await;
}

/// Drives one run in this process.
pub(crate) struct RunDriver {
    pub(crate) inner: Arc<Inner>,
    pub(crate) scope: TenantScope,
    pub(crate) me: ProcessId,
    fence: u64,
    pub(crate) loaded_run: LoadedRun,
    /// Results of spawned actions. Created with the first one: most actions complete on their first poll.
    outcomes: Option<(UnboundedSender<ActionOutcome>, UnboundedReceiver<ActionOutcome>)>,
    in_flight: BTreeMap<ActivationId, RunningAction>,
    notification: Arc<Notify>,
    /// The last pause before a retry against the store, in milliseconds. Doubles while the store is unavailable.
    pause_ms: u64,
    /// Time at which the next step was planned.
    planned_at: Timestamp,
    /// Calls that are made at most once, have begun here, and whose outcome is not committed.
    pub(crate) begun: BTreeSet<(ActivationId, Name)>,
    /// Number of consecutive updates per action that lost to a concurrent write.
    pub(crate) lost_updates: BTreeMap<ActivationId, u32>,
    _permit: Option<Permit>,
}

/// A spawned action that has not finished.
struct RunningAction {
    known: InFlightAction,
    abort: AbortHandle,
}

/// A finished action with its result.
pub(crate) struct ActionOutcome {
    pub(crate) call: ActionCall,
    pub(crate) message: Option<u64>,
    pub(crate) result: Result<(Value, Staged), Failure>,
    pub(crate) cx: Cx,
    pub(crate) duration_us: u64,
    /// Ids of the children that it starts. They stay the same when the result is decided again.
    pub(crate) children: Vec<RunId>,
}

/// The driver's next move.
pub(crate) enum DriverStep {
    /// Plan the next step again.
    Plan,
    /// Continue with this step.
    Continue(NextStep),
    /// Stop driving: another process owns the run, or there is nothing to do.
    End,
}

impl RunDriver {
    pub(crate) fn new(
        inner: Arc<Inner>,
        scope: TenantScope,
        loaded_run: LoadedRun,
        permit: Option<Permit>,
    ) -> Self {
        let notification = Arc::new(Notify::new());
        let me = loaded_run.head.owner.unwrap_or_else(|| inner.process());
        let planned_at = inner.host.now();
        inner.register_driver(scope.run(loaded_run.run()), me, loaded_run.head.fence, notification.clone());
        RunDriver {
            me,
            fence: loaded_run.head.fence,
            inner,
            scope,
            loaded_run,
            outcomes: None,
            in_flight: BTreeMap::new(),
            notification,
            pause_ms: 0,
            planned_at,
            begun: BTreeSet::new(),
            lost_updates: BTreeMap::new(),
            _permit: permit,
        }
    }

    pub(crate) async fn run(mut self, mut next: Option<NextStep>) {
        loop {
            let head = &self.loaded_run.head;
            let mine =
                head.owner == Some(self.me) && head.fence == self.fence && self.inner.uses_name(self.me);
            if !mine {
                break;
            }
            if self.inner.is_abandoned() {
                // The grace period is over: abort running actions, so that the run can be released.
                self.abort_actions();
                self.record_interruptions();
            }
            self.inner.record_activity();
            let now = self.inner.host.now();
            let todo = match next.take() {
                // A plan from before a slow commit contains old times, so plan again.
                Some(next) if now.ms_since(self.planned_at) < FRESH_MS => next,
                _ => self.inner.plan(&self.loaded_run, &self.in_flight(), now).await,
            };
            let flow = match todo {
                NextStep::RunAction(_) if self.inner.is_stopping() => self.drain().await,
                // The lease has expired, so another process may own our runs: start no action.
                NextStep::RunAction(_) if now >= self.inner.lease_until() => {
                    self.pause().await;
                    DriverStep::Plan
                }
                NextStep::RunAction(act) => self.launch(*act).await,
                NextStep::Commit(next) => self.commit(*next).await,
                NextStep::FetchEarlierEvents(wait) => self.fetch_earlier_events(wait).await,
                NextStep::Admit => self.admit().await,
                NextStep::CancelChildren => self.cancel_descendants().await,
                NextStep::Sleep(idle) => self.idle(idle).await,
            };
            match flow {
                DriverStep::Plan => {}
                DriverStep::Continue(follows) => next = Some(follows),
                DriverStep::End => break,
            }
        }
        let wake = self.loaded_run.head.wake.filter(|_| self.loaded_run.head.owner.is_none());
        let (inner, scope, loaded_run) = (self.inner.clone(), self.scope, self.loaded_run.clone());
        let notification = self.notification.clone();
        drop(self);
        // A notification that arrived after the release is for the next owner: check the run again now.
        let notification = notification.notified().now_or_never().map(|()| inner.host.now());
        inner.wake_at(notification.or(wake));
        inner.recent.put(scope, loaded_run);
    }

    pub(crate) fn in_flight(&self) -> InFlightActions {
        self.in_flight.iter().map(|(activation, action)| (*activation, action.known)).collect()
    }

    /// Starts an action. The attempt needs no record of its start: ownership under the current fence already implies
    /// it.
    async fn launch(&mut self, act: PlannedAction) -> DriverStep {
        let PlannedAction { call, message, attempt } = act;
        let activation = call.activation;
        if self.is_at_most_once(&call) && !self.begun.insert((activation, call.transition.clone())) {
            return self.interrupt(&call, message).await;
        }
        let known = InFlightAction { message, is_automatic: call.cause == Cause::Auto };
        let location = if self.inner.is_stateless { StateLocation::Nowhere } else { StateLocation::Durable };
        let mut action = Box::pin(spawn_action(
            &self.inner,
            self.scope,
            &self.loaded_run,
            call,
            message,
            attempt,
            location,
        ));
        // Many actions complete on their first poll. For those no task is spawned.
        if let Poll::Ready(outcome) = polled(&mut action).await {
            return self.apply_outcome(outcome).await;
        }
        // Spawned, so that it is polled while this task awaits the store. An unpolled action could hold a place in the
        // connection pool's queue and deadlock the process.
        let (outcome, _) = self.outcomes.get_or_insert_with(mpsc::unbounded_channel);
        let (outcome, (abort, registration)) = (outcome.clone(), AbortHandle::new_pair());
        self.in_flight.insert(activation, RunningAction { known, abort });
        self.inner.host.spawn.spawn(Box::pin(async move {
            if let Ok(back) = Abortable::new(action, registration).await {
                // The receiver is gone if the run has moved on.
                let _ = outcome.send(back);
            }
        }));
        DriverStep::Plan
    }

    pub(crate) fn is_at_most_once(&self, call: &ActionCall) -> bool {
        self.loaded_run.definition().is_at_most_once(&call.transition)
    }

    /// Fails a call that has begun here and whose outcome was lost.
    async fn interrupt(&mut self, call: &ActionCall, message: Option<u64>) -> DriverStep {
        let now = self.inner.host.now();
        let next = interrupted(&self.loaded_run, call, message, "the outcome was not stored", now);
        let Some(next) = next else { return DriverStep::Plan };
        let by = CommittedBy::Owner;
        match self.inner.commit_cycle(self.scope, &self.loaded_run, next, &self.in_flight(), by).await {
            Ok(cycle) => {
                self.begun.remove(&(call.activation, call.transition.clone()));
                self.adopt(cycle)
            }
            Err(failure) => self.commit_failed(failure).await,
        }
    }

    /// Counts aborted calls that are made at most once like crashes, so that the next commit of the run records them.
    fn record_interruptions(&mut self) {
        for (activation, _) in std::mem::take(&mut self.begun) {
            self.loaded_run.ledger.crashes.entry(activation).or_insert(1);
        }
    }

    /// Fetches the earlier events for a wait and commits the result.
    async fn fetch_earlier_events(&mut self, wait: ActivationId) -> DriverStep {
        match self.inner.fetch_earlier_events(self.scope, &self.loaded_run, wait).await {
            Ok(next) => self.commit(next).await,
            Err(error) => {
                tracing::warn!(run = %self.loaded_run.run(), %error, "the earlier events of a wait could not be fetched");
                self.pause().await;
                if self.inner.is_stopping() { DriverStep::End } else { self.reload().await }
            }
        }
    }

    /// Lets a gate admit runs.
    async fn admit(&mut self) -> DriverStep {
        match self.inner.admit(self.scope, &self.loaded_run).await {
            Ok(next) => self.commit(next).await,
            Err(error) => {
                tracing::warn!(run = %self.loaded_run.run(), %error, "the queue of a limit could not be read");
                self.pause().await;
                if self.inner.is_stopping() { DriverStep::End } else { self.reload().await }
            }
        }
    }

    /// Waits for actions in flight, or releases the run if there are none.
    async fn idle(&mut self, idle: Idle) -> DriverStep {
        if self.in_flight.is_empty() {
            // The run was claimed, but there is nothing to do.
            return self.commit(PendingCommit::note(self.loaded_run.ledger.clone())).await;
        }
        let clock = self.inner.host.clock.clone();
        let due = async move {
            match idle.wake {
                Some(wake) => clock.sleep_until(wake).await,
                None => std::future::pending().await,
            }
        };
        let outcomes = &mut self.outcomes;
        let outcome = async {
            match outcomes {
                Some((_, outcomes)) => outcomes.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            outcome = outcome => match outcome {
                Some(outcome) if self.in_flight.contains_key(&outcome.call.activation) => self.apply_outcome(outcome).await,
                _ => DriverStep::Plan,
            },
            () = self.notification.notified() => self.reload().await,
            () = due => DriverStep::Plan,
        }
    }

    /// Waits for the actions in flight while the engine stops. No new action starts.
    async fn drain(&mut self) -> DriverStep {
        self.idle(Idle { status: self.loaded_run.head.status, wake: None }).await
    }

    /// Commits a change and continues with the step that follows it.
    pub(crate) async fn commit(&mut self, next: PendingCommit) -> DriverStep {
        let by = CommittedBy::Owner;
        let result = self.inner.commit_cycle(self.scope, &self.loaded_run, next, &self.in_flight(), by).await;
        match result {
            Ok(cycle) => self.adopt(cycle),
            Err(failure) => self.commit_failed(failure).await,
        }
    }

    /// Adopts the result of a commit cycle, and aborts the actions of activations that no longer exist.
    pub(crate) fn adopt(&mut self, cycle: CycleResult) -> DriverStep {
        self.pause_ms = 0;
        self.lost_updates.clear();
        self.loaded_run = cycle.loaded_run;
        self.planned_at = cycle.at;
        self.drop_stale();
        DriverStep::Continue(cycle.next)
    }

    fn drop_stale(&mut self) {
        let snapshot = &self.loaded_run.snapshot;
        self.in_flight.retain(|activation, action| {
            let there = snapshot.activation(*activation).is_some();
            if !there {
                action.abort.abort();
            }
            there
        });
    }

    fn abort_actions(&mut self) {
        self.in_flight.values().for_each(|action| action.abort.abort());
        self.in_flight.clear();
        self.outcomes = None;
    }

    /// Removes a finished action from those in flight.
    pub(crate) fn arrived(&mut self, activation: ActivationId) {
        self.in_flight.remove(&activation);
    }

    /// Handles a failed commit cycle.
    pub(crate) async fn commit_failed(&mut self, failure: CommitFailure) -> DriverStep {
        if let Some(failure) = failure.failure() {
            return self.stop(failure).await;
        }
        match failure {
            CommitFailure::Fenced => DriverStep::End,
            CommitFailure::Moved | CommitFailure::Refused(_) | CommitFailure::Undecidable(_) => {
                self.reload().await
            }
            CommitFailure::Store(StoreError::Unavailable(_) | StoreError::Full(_)) => {
                self.pause().await;
                self.reload().await
            }
            CommitFailure::Store(error) => {
                tracing::error!(run = %self.loaded_run.run(), %error, "the store has failed");
                DriverStep::End
            }
            CommitFailure::Engine(error) => {
                tracing::warn!(run = %self.loaded_run.run(), %error, "the outcome of a commit is unknown");
                self.pause().await;
                self.reload().await
            }
        }
    }

    /// Pauses before a retry against the store. Each consecutive pause is twice as long, from 50 ms to 5 s.
    async fn pause(&mut self) {
        self.pause_ms = (self.pause_ms * 2).clamp(50, 5_000);
        let until = self.inner.host.now().plus_ms(self.pause_ms);
        self.inner.host.clock.sleep_until(until).await;
    }

    /// Stops the run with an error, because a decision on it can never be written.
    async fn stop(&mut self, error: Failure) -> DriverStep {
        let mut ledger = self.loaded_run.ledger.clone();
        tracing::error!(run = %self.loaded_run.run(), %error, "a decision on a run cannot be written; the run stops");
        ledger.stopped = Some(Stopped { at: self.inner.host.now(), error, activation: None });
        let (note, in_flight) = (PendingCommit::note(ledger), self.in_flight());
        match self
            .inner
            .commit_cycle(self.scope, &self.loaded_run, note, &in_flight, CommittedBy::Owner)
            .await
        {
            Ok(cycle) => self.adopt(cycle),
            Err(CommitFailure::Moved) => self.reload().await,
            Err(_) => DriverStep::End,
        }
    }

    /// Reads the run again, because another caller may have changed it.
    pub(crate) async fn reload(&mut self) -> DriverStep {
        let run = self.loaded_run.run();
        let loaded = match self.inner.store.load(self.scope, run).await {
            Ok(Some(loaded)) => loaded,
            Ok(None) => return DriverStep::End,
            Err(StoreError::Unavailable(_)) => {
                self.pause().await;
                return Box::pin(self.reload()).await;
            }
            Err(error) => {
                tracing::error!(%run, %error, "a run cannot be read");
                return DriverStep::End;
            }
        };
        if loaded.head.owner != Some(self.me) || loaded.head.fence != self.fence {
            return DriverStep::End;
        }
        match self.inner.build_loaded_run(self.scope, loaded).await {
            Ok(loaded_run) => {
                if loaded_run.definition().hash() != self.loaded_run.definition().hash() {
                    // The actions in flight belong to another workflow version.
                    self.abort_actions();
                }
                self.loaded_run = loaded_run;
            }
            Err(error) => {
                tracing::error!(%run, %error, "a run cannot be read");
                return DriverStep::End;
            }
        }
        self.drop_stale();
        DriverStep::Plan
    }

    /// Notifies the descendants of a cancelled run in batches, and records in the ledger where to continue. A
    /// completed child gets no message, but its own children may still be running.
    async fn cancel_descendants(&mut self) -> DriverStep {
        let mut ledger = self.loaded_run.ledger.clone();
        // The run itself has already ended. With batches, no commit grows with the number of children.
        let Some(PendingCancellation { parent, from }) = ledger.cancelling.pop() else {
            return DriverStep::Plan;
        };
        let page = match self.children_of(parent, CANCEL_BATCH_SIZE, from).await {
            Ok(page) => page,
            Err(error) => return self.commit_failed(CommitFailure::Store(error)).await,
        };
        if page.next.is_some() {
            ledger.cancelling.push(PendingCancellation { parent, from: page.next });
        }
        let (ended, going): (Vec<_>, Vec<_>) = page.items.iter().partition(|child| child.status.is_final());
        for child in ended.iter().filter(|child| child.status == Status::Completed) {
            match self.children_of(child.run, 1, None).await {
                Ok(below) if below.items.is_empty() => {}
                Ok(_) => ledger.cancelling.push(PendingCancellation { parent: child.run, from: None }),
                Err(error) => return self.commit_failed(CommitFailure::Store(error)).await,
            }
        }
        let mut note = PendingCommit::note(ledger);
        note.extras.send = going.iter().map(|child| MessageBody::Cancel.to(child.run)).collect();
        self.commit(note).await
    }

    async fn children_of(
        &mut self,
        parent: RunId,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<RunSummary>, StoreError> {
        let query = RunQuery {
            filter: RunFilter { parent: Some(parent), ..RunFilter::default() },
            limit,
            cursor,
            ..RunQuery::default()
        };
        self.inner.store.runs(self.scope, query).await
    }
}

impl Drop for RunDriver {
    fn drop(&mut self) {
        self.abort_actions();
        self.inner.unregister_driver(self.scope.run(self.loaded_run.run()), &self.notification);
    }
}

/// Runs an action. A panic and a timeout count as failures.
pub(crate) fn spawn_action(
    inner: &Arc<Inner>,
    scope: TenantScope,
    loaded_run: &LoadedRun,
    call: ActionCall,
    message: Option<u64>,
    attempt: u32,
    location: StateLocation,
) -> impl Future<Output = ActionOutcome> + Send + use<> {
    let host = inner.host.clone();
    let cx = Cx::new(inner, scope, loaded_run, call.clone(), attempt, location);
    let action = inner.registry.actions.get(&call.action).cloned();
    let secrets = inner.registry.secrets.clone();
    let secret_fields = inner.registry.secret_fields(&call.action).to_vec();
    let lists = inner.registry.lists.get(&call.action).cloned().unwrap_or_default();
    let permission = inner.registry.described.get(&call.action).and_then(|info| info.permission);
    let timeout_ms = call.timeout_ms.unwrap_or(inner.options.action_timeout_ms);
    async move {
        let began = host.now();
        let observed = observe::ObservedAction::begin(&cx, began);
        let guard = CloseOnDrop(cx.clone());
        let work = {
            let (cx, mut input, name) = (cx.clone(), call.input.clone(), call.action.clone());
            async move {
                let Some(action) = action else {
                    let why = format!(
                        "no action `{name}` is registered here, and only durable runs can use remote workers"
                    );
                    return Err(Failure::new("unknownAction", why));
                };
                if let Some(permission) = permission {
                    cx.permit(permission).map_err(Failure::from)?;
                }
                crate::call_check::as_lists(&mut input, &lists);
                let revealed =
                    secrets::reveal(secrets.as_ref(), scope, &name, &secret_fields, &mut input).await?;
                let work = AssertUnwindSafe(async { action(cx, input).await }).catch_unwind();
                let mut result = match work.await {
                    Ok(result) => result.map_err(Failure::from),
                    Err(panic) => Err(panicked(&*panic)),
                };
                match &mut result {
                    Ok(output) => revealed.hide(output),
                    Err(failure) => revealed.hide_failure(failure),
                }
                result
            }
        };
        let work = AssertUnwindSafe(work).catch_unwind();
        let done = match timeout_ms {
            0 => Some(work.await),
            ms => within(work, || host.clock.sleep_until(began.plus_ms(ms))).await,
        };
        let staged = cx.close();
        drop(guard);
        let result = match done {
            Some(Ok(Ok(output))) => Ok((output, staged.unwrap_or_default())),
            Some(Ok(Err(failure))) => Err(failure),
            Some(Err(panic)) => Err(panicked(&*panic)),
            None => Err(timeout_failure(timeout_ms)),
        };
        let started = result.as_ref().map_or(0, |(_, staged)| staged.children.len());
        let children = (0..started).map(|_| RunId::new(host.ids.next())).collect();
        let duration_us = elapsed(began, host.now());
        observed.end(&result, duration_us);
        ActionOutcome { call, message, result, cx, duration_us, children }
    }
}

/// Returns the failure of an action that exceeded its timeout.
pub(crate) fn timeout_failure(timeout_ms: u64) -> Failure {
    Failure::new(TIMEOUT, format!("the action took longer than {timeout_ms} ms"))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    Failure::new("panic", format!("the action panicked: {}", said(panic)))
}

/// Closes the action's context also when the action is dropped before it completes.
struct CloseOnDrop(Cx);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Returns the output of `work`, or `None` if the limit is reached first. The timer is created only if `work` is not
/// ready on its first poll.
async fn within<T>(work: impl Future<Output = T>, limit: impl FnOnce() -> BoxFuture<()>) -> Option<T> {
    let mut work = pin!(work);
    if let Poll::Ready(done) = polled(&mut work).await {
        return Some(done);
    }
    tokio::select! {
        biased;
        done = work => Some(done),
        () = limit() => None,
    }
}

/// Polls a future once.
async fn polled<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

pub(crate) fn elapsed(began: Timestamp, now: Timestamp) -> u64 {
    now.micros().saturating_sub(began.micros()).max(0) as u64
}
