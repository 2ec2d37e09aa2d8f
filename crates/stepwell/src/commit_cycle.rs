//! The commit cycle of a durable run: turns a decision into one commit that already contains the plan for what
//! follows.
//!
//! Before a change is committed, the planner runs on the state after the change. One commit therefore writes the step,
//! the new status, the owner and the next wake-up time. A run that continues costs one commit per step, and no action
//! starts from uncommitted state.

use std::sync::Arc;

use stepwell_core::graph::{AwaitedEvent, open_waits};
use stepwell_core::snapshot::{ChildEnd, RunEnd};
use stepwell_core::{DecideError, Definition, DefinitionHash, Failure, Name, Snapshot, Timestamp};
use stepwell_store::plan::ownership;
use stepwell_store::{
    Commit, CommitError, CommitId, Committed, Head, NextState, Ownership, ProcessId, Refused, RunUpdate,
    Status, StoreError, StoredWait, TenantScope,
};

use crate::admission;
use crate::answering;
use crate::concurrency::Permit;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::inbox::MessageBody;
use crate::lists;
use crate::loaded_run::{CommitExtras, InFlightActions, LoadedRun, PendingCommit};
use crate::observe::Committing;
use crate::planner::{Idle, NextStep, Planner};
use crate::remote;
use crate::run_driver::RunDriver;
use crate::waits;

/// Number of times a decision is repeated because the run has changed, before that becomes an error.
pub(crate) const MAX_ATTEMPTS: u32 = 64;
/// Maximum number of changes in one commit, and the size of encoded states in bytes beyond which no further change
/// joins.
const MAX_CHANGES_PER_COMMIT: usize = 16;
const MAX_STATE_BYTES_PER_COMMIT: usize = 64 * 1_024;

/// The author of a commit.
#[derive(Clone, Copy)]
pub(crate) enum CommittedBy {
    /// The process that owns the run.
    Owner,
    /// Any process. `Some` means that this process has a permit: it takes the run if the run has no owner and more
    /// work to do.
    Anyone(Option<ProcessId>),
}

/// The result of a commit cycle.
pub(crate) struct CycleResult {
    /// The run after the commit.
    pub(crate) loaded_run: LoadedRun,
    /// The next step, planned at time `at`.
    pub(crate) next: NextStep,
    pub(crate) at: Timestamp,
    /// The ownership in `loaded_run` is the one that this commit wrote. False if the run had to be reloaded and has
    /// another owner or fence.
    pub(crate) is_ours: bool,
}

/// The reason why a commit cycle failed, which determines whether to decide again.
pub(crate) enum CommitFailure {
    /// The run has changed since it was read: decide again.
    Moved,
    /// Another process owns the run.
    Fenced,
    /// The store refused an operation in the commit.
    Refused(Refused),
    /// The new state cannot be encoded, for example because it exceeds a limit.
    Undecidable(DecideError),
    /// The store failed or is unavailable.
    Store(StoreError),
    /// The outcome of the commit is unknown, or the run cannot be read afterwards.
    Engine(EngineError),
}

impl CommitFailure {
    /// Returns a permanent failure if the decision can never be written, however often it is repeated.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self {
            CommitFailure::Refused(refused) => {
                Some(Failure::new("refused", format!("the commit was refused: {refused}")).non_retryable())
            }
            CommitFailure::Undecidable(error) => {
                Some(Failure::new("undecidable", error.to_string()).non_retryable())
            }
            CommitFailure::Moved
            | CommitFailure::Fenced
            | CommitFailure::Store(_)
            | CommitFailure::Engine(_) => None,
        }
    }
}

impl From<CommitFailure> for EngineError {
    fn from(failure: CommitFailure) -> Self {
        match failure {
            // The callers handle both before they return an error to the outside.
            CommitFailure::Moved | CommitFailure::Fenced => EngineError::Stopped,
            CommitFailure::Refused(refused) => refused.into(),
            CommitFailure::Undecidable(error) => error.into(),
            CommitFailure::Store(error) => error.into(),
            CommitFailure::Engine(error) => error,
        }
    }
}

impl Inner {
    /// Plans the next step of a run.
    pub(crate) async fn plan(
        &self,
        loaded_run: &LoadedRun,
        in_flight: &InFlightActions,
        now: Timestamp,
    ) -> NextStep {
        let (registry, options) = (&self.registry, &self.options);
        let queues_remote = !self.is_stateless;
        Planner { registry, loaded_run, in_flight, now, options, queues_remote }.next_step().await
    }

    /// Plans the next step of a run in memory. Remote workers cannot find such a run, so no task is queued for them.
    pub(crate) async fn plan_in_memory(&self, loaded_run: &LoadedRun, now: Timestamp) -> NextStep {
        let (registry, options, in_flight) = (&self.registry, &self.options, &InFlightActions::new());
        Planner { registry, loaded_run, in_flight, now, options, queues_remote: false }.next_step().await
    }

    /// Commits a change. `in_flight` are the actions that stay in flight meanwhile.
    pub(crate) async fn commit_cycle(
        &self,
        scope: TenantScope,
        loaded_run: &LoadedRun,
        next: PendingCommit,
        in_flight: &InFlightActions,
        by: CommittedBy,
    ) -> Result<CycleResult, CommitFailure> {
        let mut draft = CommitDraft::new(loaded_run, self.host.now());
        let state = self.checkpoint_of(&next).map_err(CommitFailure::Undecidable)?;
        draft.add(next, state);
        // Results of the operations are in the state only after the commit, so the next step is planned then.
        let is_filled = !draft.extras.bindings.is_empty();
        let next = if is_filled { None } else { Some(self.follow(scope, &mut draft, in_flight, by).await) };
        let CommitDraft { now, mut after, states, takes, definition, extras, in_order, .. } = draft;
        let in_flight = still_in_flight(in_flight, &after);
        let (status, wake, owner) = match &next {
            Some(next) => self.status_after_commit(loaded_run, &after, next, &in_flight, by, now),
            None => unplanned(&loaded_run.head, by, now),
        };
        expect_fence(loaded_run, &mut after, owner, by);
        let (open, close, offered) = changed_waits(loaded_run, &after);
        let shadow_revision = extras.shadow_revision.unwrap_or(u64::MAX).min(self.shadow_revision());
        let mut shadows = self.changed_shadows(scope, loaded_run, &after).await;
        shadows.extend(extras.shadows.iter().cloned());
        let started = extras.create.iter().filter_map(|new| new.wake).min();
        let mut commit = self.commit_of(scope, extras, now);
        let step = RunUpdate {
            head: loaded_run.head.clone(),
            fence: matches!(by, CommittedBy::Owner).then_some(loaded_run.head.fence),
            in_order,
            next: states,
            status,
            error: after.ledger.error_code(status),
            wake,
            owner,
            ledger: after.ledger.write(),
            definition,
            take: takes,
            open,
            close,
            shadows,
        };
        let owned = ownership(commit.step.insert(step));
        let committed = self.apply(scope, commit).await?;
        self.observe_commit(scope, loaded_run, &after, status, now);
        // The commit lacks columns of filled-in results, and those of a migrated run that were never filled.
        let is_moved = loaded_run.definition().hash() != after.definition().hash();
        let is_stale = is_moved || self.shadow_revision() != shadow_revision;
        if is_stale || (is_filled && self.has_shadows(scope.tenant(), &after.workflow)) {
            let created = committed.iter().flat_map(|committed| &committed.created).map(|head| head.run);
            Box::pin(self.catch_up(scope, created.chain([after.run()]).collect())).await;
        }
        self.wake_at(started);
        self.queue.offer(scope.tenant(), &offered);
        let Some(mut committed) = committed else {
            return self.reload_after_lost_answer(scope, &after, &in_flight, owned).await;
        };
        after.head = committed.head.take().unwrap_or(after.head);
        let next = match next {
            Some(next) => next,
            None => {
                after.read_back().map_err(CommitFailure::Engine)?;
                self.plan(&after, &in_flight, now).await
            }
        };
        self.publish_end(scope, &after);
        Ok(CycleResult { loaded_run: after, next, at: now, is_ours: true })
    }

    /// Returns the step after the changes of a draft. Changes that need no action join the same commit. They have no
    /// effect outside between them, so no observer can tell the difference. Each keeps its own version, history entry
    /// and state.
    async fn follow(
        &self,
        scope: TenantScope,
        draft: &mut CommitDraft<'_>,
        in_flight: &InFlightActions,
        by: CommittedBy,
    ) -> NextStep {
        // Only the owner knows which actions are in flight for a run, so plan nothing for the run of another process.
        let (before, now) = (draft.before, draft.now);
        let free = matches!(by, CommittedBy::Owner) || before.head.owner.is_none();
        let free = free && !draft.is_command;
        loop {
            let in_flight = still_in_flight(in_flight, &draft.after);
            let next = self.plan(&draft.after, &in_flight, now).await;
            let more = match next {
                NextStep::Commit(more) if free && draft.has_room() && more.extras.send.is_empty() => more,
                next => return next,
            };
            if !self.serves(scope.tenant(), &draft.after.workflow) {
                return NextStep::Commit(more);
            }
            match self.checkpoint_of(&more) {
                Ok(state) => draft.add(*more, state),
                // It cannot be encoded. Its own commit cycle handles that failure.
                Err(_) => return NextStep::Commit(more),
            }
        }
    }

    /// Applies a commit. `None` means that it was applied but its answer was lost.
    pub(crate) async fn apply(
        &self,
        scope: TenantScope,
        commit: Commit,
    ) -> Result<Option<Committed>, CommitFailure> {
        let definitions: Vec<_> = commit.definitions.iter().map(|definition| definition.hash).collect();
        let handles = commit.handles.iter().filter(|write| write.has_delivery()).map(|write| write.handle);
        let handles: Vec<_> = handles.collect();
        let committing = Committing::begin(self, &commit);
        let answer = self.store.commit(scope, commit).await;
        committing.answered(self, scope, &answer);
        let (reference, why) = match answer {
            Ok(committed) => {
                self.stored(scope, &definitions);
                self.send_queued(scope, handles);
                return Ok(Some(committed));
            }
            Err(CommitError::Refused(Refused::Moved { .. })) => return Err(CommitFailure::Moved),
            // Another answer to the wait was recorded, so the run has moved. The store checks keys before revisions.
            Err(CommitError::Refused(
                Refused::KeyReused { operation, .. } | Refused::Done { operation, .. },
            )) if answering::is_answer(&operation) => return Err(CommitFailure::Moved),
            Err(CommitError::Refused(Refused::Fenced { .. })) => return Err(CommitFailure::Fenced),
            Err(CommitError::Refused(refused)) => return Err(CommitFailure::Refused(refused)),
            Err(CommitError::Store(error)) => return Err(CommitFailure::Store(error)),
            Err(CommitError::Unknown { reference, why }) => (reference, why),
        };
        // An unknown outcome is not a failure: look the commit up instead of guessing.
        match self.resolved(scope, &reference).await {
            Ok(Some(_)) => {
                committing.applied(self, scope);
                self.send_queued(scope, handles);
                Ok(None)
            }
            Ok(None) => Err(CommitFailure::Moved),
            Err(StoreError::Unavailable(_)) => {
                self.in_doubt();
                Err(CommitFailure::Engine(EngineError::Unknown { reference: Box::new(reference), why }))
            }
            Err(error) => {
                self.in_doubt();
                Err(CommitFailure::Store(error))
            }
        }
    }

    /// Reloads the run after a commit that was applied but whose answer was lost.
    async fn reload_after_lost_answer(
        &self,
        scope: TenantScope,
        after: &LoadedRun,
        in_flight: &InFlightActions,
        owned: (Option<ProcessId>, u64),
    ) -> Result<CycleResult, CommitFailure> {
        let loaded = self.store.load(scope, after.run()).await.map_err(|error| {
            self.in_doubt();
            CommitFailure::Store(error)
        })?;
        let loaded = loaded.ok_or(CommitFailure::Engine(EngineError::NoRun(after.run())))?;
        let loaded_run = self.build_loaded_run(scope, loaded).await.map_err(CommitFailure::Engine)?;
        self.publish_end(scope, &loaded_run);
        let at = self.host.now();
        let next = self.plan(&loaded_run, in_flight, at).await;
        let is_ours = (loaded_run.head.owner, loaded_run.head.fence) == owned;
        Ok(CycleResult { loaded_run, next, at, is_ours })
    }

    /// Returns the status, wake-up time and ownership that the commit writes.
    fn status_after_commit(
        &self,
        before: &LoadedRun,
        after: &LoadedRun,
        next: &NextStep,
        in_flight: &InFlightActions,
        by: CommittedBy,
        now: Timestamp,
    ) -> (Status, Option<Timestamp>, Ownership) {
        let head = &before.head;
        let progress = match next {
            NextStep::Sleep(idle) => Err(*idle),
            NextStep::CancelChildren => Ok(Status::Cancelled),
            NextStep::Commit(_)
            | NextStep::RunAction(_)
            | NextStep::FetchEarlierEvents(_)
            | NextStep::Admit => Ok(Status::Running),
        };
        match (by, progress) {
            (CommittedBy::Owner, Ok(status)) if self.is_stopping() && in_flight.is_empty() => {
                (status, Some(now), Ownership::Release)
            }
            // `wake` is indexed: it does not change while a run is being driven.
            (CommittedBy::Owner, Ok(status)) => (status, head.wake, Ownership::Keep),
            (CommittedBy::Owner, Err(idle)) if !in_flight.is_empty() => {
                (idle.status, head.wake, Ownership::Keep)
            }
            (CommittedBy::Owner, Err(idle)) => (idle.status, idle.wake, Ownership::Release),
            (CommittedBy::Anyone(_), _) if after.snapshot.is_terminal() && head.owner.is_some() => {
                let idle = progress.err();
                let status = idle.map_or(Status::Cancelled, |idle| idle.status);
                (status, idle.map_or(Some(now), |idle| idle.wake), Ownership::Release)
            }
            (CommittedBy::Anyone(_), progress) if head.owner.is_some() => {
                let still = |idle: Idle| matches!(idle.status, Status::Failed | Status::Suspended);
                let status = progress.err().filter(|idle| still(*idle)).map_or(Status::Running, |r| r.status);
                (status, head.wake, Ownership::Keep)
            }
            (CommittedBy::Anyone(Some(process)), Ok(status)) => (status, Some(now), Ownership::Take(process)),
            (CommittedBy::Anyone(None), Ok(status)) => (status, Some(now), Ownership::Keep),
            (CommittedBy::Anyone(_), Err(idle)) => (idle.status, idle.wake, Ownership::Keep),
        }
    }

    /// Builds a commit without a step from its extras.
    pub(crate) fn commit_of(&self, scope: TenantScope, extras: CommitExtras, now: Timestamp) -> Commit {
        let CommitExtras {
            create,
            send,
            handles,
            cells,
            links,
            bindings,
            actor,
            documents,
            keys,
            audit,
            definitions,
            shadow_revision: _,
            shadows: _,
        } = extras;
        let mut commit = Commit::new(CommitId(self.host.ids.next()), now);
        commit.create = create;
        commit.send = send;
        commit.handles = handles;
        commit.cells = cells;
        commit.links = links;
        commit.bindings = bindings;
        commit.actor = actor;
        commit.documents = documents;
        commit.keys = keys;
        commit.audit = audit;
        let creates_gates = commit.send.iter().any(|send| send.creates().is_some());
        let gates = self.registry.by_name(admission::gate::WORKFLOW).filter(|_| creates_gates);
        let definitions: Vec<_> = definitions.into_iter().chain(gates).collect();
        let new = definitions.iter().filter(|workflow| !self.is_stored(scope, workflow.stored.hash));
        commit.definitions = new.map(|workflow| workflow.kept()).collect();
        commit
    }

    /// Returns the checkpoint of a change; `None` if the snapshot does not change.
    fn checkpoint_of(&self, next: &PendingCommit) -> Result<Option<NextState>, DecideError> {
        let change = next.change.as_ref();
        change.map(|change| self.checkpoint(&change.snapshot, &change.entry)).transpose()
    }

    pub(crate) fn checkpoint(
        &self,
        snapshot: &Snapshot,
        entry: &stepwell_core::HistoryEntry,
    ) -> Result<NextState, DecideError> {
        let state = snapshot.encode_without_long_lists(&self.options.limits).map_err(DecideError::from)?;
        let mut written = Vec::with_capacity(512);
        serde_json::to_writer(&mut written, entry).expect("a history entry is plain data");
        Ok(NextState { state: state.into(), entry: written.into(), places: snapshot.current_places() })
    }

    /// Drives the run in a new task, if the commit made this process the owner and there is a permit. Otherwise
    /// schedules its wake-up.
    pub(crate) fn drive_or_schedule(
        self: &Arc<Self>,
        scope: TenantScope,
        cycle: CycleResult,
        permit: Option<Permit>,
    ) {
        if let Some((hold, next)) = self.try_adopt(scope, cycle, permit) {
            self.host.spawn.spawn(Box::pin(hold.run(Some(next))));
        }
    }

    /// Like [`drive_or_schedule`](Self::drive_or_schedule), but returns the run driver for the caller to run.
    pub(crate) fn try_adopt(
        self: &Arc<Self>,
        scope: TenantScope,
        cycle: CycleResult,
        permit: Option<Permit>,
    ) -> Option<(RunDriver, NextStep)> {
        let CycleResult { loaded_run, next, is_ours, .. } = cycle;
        let head = &loaded_run.head;
        let mine = is_ours && head.owner.is_some_and(|owner| self.uses_name(owner));
        let mine = mine && !self.is_driven_under(scope.run(head.run), head.fence);
        if let (true, Some(permit)) = (mine, permit) {
            return Some((RunDriver::new(self.clone(), scope, loaded_run, Some(permit)), next));
        }
        self.wake_at(head.wake);
        self.recent.put(scope, loaded_run);
        None
    }
}

/// Returns the status, wake-up time and ownership of a commit whose next step is planned after it. If no process owns
/// the run, it is due at once.
fn unplanned(head: &Head, by: CommittedBy, now: Timestamp) -> (Status, Option<Timestamp>, Ownership) {
    match by {
        CommittedBy::Anyone(process) if head.owner.is_none() => {
            (Status::Running, Some(now), process.map_or(Ownership::Keep, Ownership::Take))
        }
        CommittedBy::Anyone(_) | CommittedBy::Owner => (Status::Running, head.wake, Ownership::Keep),
    }
}

/// A commit under construction: consecutive changes of one run.
struct CommitDraft<'a> {
    before: &'a LoadedRun,
    now: Timestamp,
    /// The run after the changes so far.
    after: LoadedRun,
    states: Vec<NextState>,
    takes: Vec<u64>,
    definition: Option<DefinitionHash>,
    extras: CommitExtras,
    in_order: bool,
    is_command: bool,
    moves: usize,
}

impl<'a> CommitDraft<'a> {
    fn new(before: &'a LoadedRun, now: Timestamp) -> Self {
        CommitDraft {
            before,
            now,
            after: before.clone(),
            states: Vec::new(),
            takes: Vec::new(),
            definition: None,
            extras: CommitExtras::default(),
            in_order: false,
            is_command: false,
            moves: 0,
        }
    }

    /// Returns true if another change may join.
    fn has_room(&self) -> bool {
        let bytes: usize = self.states.iter().map(|next| next.state.len() + next.entry.len()).sum();
        self.moves < MAX_CHANGES_PER_COMMIT && bytes < MAX_STATE_BYTES_PER_COMMIT
    }

    fn add(&mut self, next: PendingCommit, state: Option<NextState>) {
        let PendingCommit { change, ledger, takes, suspend, repin, in_order, is_command, extras } = next;
        let was_over = self.after.snapshot.is_terminal();
        let after = &mut self.after;
        after.ledger = ledger;
        after.inbox.retain(|message| !takes.contains(&message.seq));
        after.suspended = suspend.unwrap_or(after.suspended);
        if let Some(workflow) = repin {
            self.definition = Some(workflow.definition.hash());
            after.workflow = workflow;
        }
        if let Some(change) = change {
            self.extras.documents.extend(lists::kept(
                after.head.run,
                Some(&after.snapshot),
                &change.snapshot,
            ));
            after.snapshot = Arc::new(change.snapshot);
        }
        after.apply_heartbeats();
        self.states.extend(state);
        self.takes.extend(takes);
        self.extras.extend(extras);
        notify_parent(was_over, after, &mut self.extras);
        admission::follow(after, &mut self.extras, self.now);
        self.in_order |= in_order || admission::gate::closes(after);
        self.is_command |= is_command;
        self.moves += 1;
    }
}

/// Returns the in-flight actions whose activation still exists after a change.
fn still_in_flight(in_flight: &InFlightActions, after: &LoadedRun) -> InFlightActions {
    let there = in_flight.iter().filter(|(id, _)| after.snapshot.activation(**id).is_some());
    there.map(|(id, action)| (*id, *action)).collect()
}

/// Adds a message to the parent if the run has ended or failed, in the same commit.
pub(crate) fn notify_parent(was_over: bool, after: &mut LoadedRun, extras: &mut CommitExtras) {
    let Some(parent) = after.parent.as_ref().filter(|parent| parent.activation != 0) else { return };
    let note = after.ledger.child.unwrap_or_default();
    if was_over || note.parent_notified {
        return;
    }
    let end = match (after.snapshot.finished(), &after.ledger.stopped) {
        (Some(RunEnd::Completed { output, .. }), _) => {
            ChildEnd::Completed { output: output.clone().unwrap_or_default() }
        }
        (Some(RunEnd::Cancelled), _) => ChildEnd::Cancelled,
        (None, Some(stopped)) if !note.waits_on_failure => ChildEnd::Failed { error: stopped.error.clone() },
        (None, _) => return,
    };
    if matches!(end, ChildEnd::Failed { .. }) {
        after.ledger.child = Some(crate::ledger::ChildNote { parent_notified: true, ..note });
    }
    let body = MessageBody::Child { activation: parent.activation, child: parent.child, end };
    extras.send.push(body.to(parent.run));
}

/// Records in the ledger the fence that the next owner will have if no process crashes before that.
fn expect_fence(before: &LoadedRun, after: &mut LoadedRun, owner: Ownership, by: CommittedBy) {
    let head = &before.head;
    match (by, head.owner, owner) {
        // Another process owns the run: keep the fence that it recorded.
        (CommittedBy::Anyone(_), Some(_), Ownership::Keep) => {}
        (CommittedBy::Owner, _, Ownership::Keep) => {
            after.ledger.fence = head.fence;
        }
        _ => {
            // A run that has ended gets no owner again. The default value needs no space in its row.
            let ended = after.snapshot.is_terminal() && after.ledger.cancelling.is_empty();
            after.ledger.fence = if ended { 1 } else { head.fence + 1 };
        }
    }
}

/// Returns the waits that open and close with a step, and the actions of newly queued tasks for remote workers.
fn changed_waits(before: &LoadedRun, after: &LoadedRun) -> (Vec<StoredWait>, Vec<u64>, Vec<Name>) {
    let has_waits = before.workflow.has_waits || after.workflow.has_waits;
    let has_tasks = before.ledger.has_queued_tasks() || after.ledger.has_queued_tasks();
    let is_same = Arc::ptr_eq(&before.snapshot, &after.snapshot)
        && before.ledger.claims == after.ledger.claims
        && before.ledger.heartbeats == after.ledger.heartbeats;
    let is_admission_same = before.ledger.admission == after.ledger.admission;
    if !has_tasks && is_admission_same && (!has_waits || is_same) {
        return (Vec::new(), Vec::new(), Vec::new());
    }
    let stored = |run: &LoadedRun| {
        let open = open_waits_of(run.definition(), &run.snapshot);
        admission::queue::with_queue(run, remote::with_tasks(run, waits::with_claims(run, open)))
    };
    let (was, is) = (stored(before), stored(after));
    let gone = |wait: &&StoredWait| !is.iter().any(|now| now.activation == wait.activation);
    let close = was.iter().filter(gone).map(|wait| wait.activation).collect();
    let open: Vec<_> = is.iter().filter(|wait| !was.contains(wait)).cloned().collect();
    let offered = remote::offered(&open);
    (open, close, offered)
}

pub(crate) fn open_waits_of(definition: &Definition, snapshot: &Snapshot) -> Vec<StoredWait> {
    let open = open_waits(definition, snapshot).into_iter();
    open.map(|wait| StoredWait {
        activation: wait.activation,
        place: wait.place.clone(),
        since: wait.since,
        until: wait.until,
        detail: serde_json::to_vec(&wait).expect("an open wait is plain data").into(),
        topic: wait.event.as_ref().map(AwaitedEvent::topic),
        due: Some(wait.until.unwrap_or(Timestamp::MAX)),
    })
    .collect()
}
