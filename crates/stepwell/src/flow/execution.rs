//! Runs a flow in memory to its next pause or its end.
//!
//! Nothing is written meanwhile. The writes that its steps stage are collected for the one commit at the pause.

use std::sync::Arc;

use stepwell_core::schema::SchemaViolation;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{
    ActionCall, Decision, Failure, HistoryEntry, Input, Refusal, Rejected, Snapshot, Timestamp, dispatch,
};
use stepwell_store::{CellError, Chain, Head, KeyWrite, Refused, Status, StoreError, TenantScope};

use super::answer::Pause;
use super::outlet::Outgoing;
use crate::action::VALIDATION_FAILED;
use crate::answering::{Sender, may_answer};
use crate::apply_outcome::{InvalidOutcome, OutcomeApplier};
use crate::cx::{EarlierWrites, Op, StateLocation};
use crate::data::changes::WRITE;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::ledger::Ledger;
use crate::loaded_run::{CommitExtras, LoadedRun, PendingCommit};
use crate::planner::{NextStep, PlannedAction};
use crate::registry::Workflow;
use crate::run_driver::{ActionOutcome, spawn_action};

/// The reason why a flow did not reach a pause. Nothing was written.
#[derive(Debug)]
pub(crate) enum ExecutionError {
    /// The input failed validation.
    InvalidOutcome(Vec<SchemaViolation>),
    /// A step has failed.
    Failed(Failure),
    /// Data that was read has changed since. Run the flow again.
    Again,
    /// The workflow refuses the input.
    Refused(Refusal),
    /// The store or the engine reported an error.
    Engine(EngineError),
}

impl From<StoreError> for ExecutionError {
    fn from(error: StoreError) -> Self {
        ExecutionError::Engine(error.into())
    }
}

impl From<EngineError> for ExecutionError {
    fn from(error: EngineError) -> Self {
        ExecutionError::Engine(error)
    }
}

/// A flow that runs in memory between two pauses.
pub(crate) struct FlowExecution<'a> {
    inner: &'a Arc<Inner>,
    scope: TenantScope,
    pub(crate) loaded_run: LoadedRun,
    /// History entry of the last transition.
    pub(crate) entry: Option<HistoryEntry>,
    /// Writes that the steps have staged so far.
    pub(crate) extras: CommitExtras,
    /// Strategy that keeps the flow's state from the next pause on, if a step has changed it.
    pub(crate) swap: Option<String>,
    /// Message to send at the next pause.
    pub(crate) outgoing: Option<Outgoing>,
    /// The activations when the message was staged. The message is for a wait that was opened later.
    before_outgoing: Vec<ActivationId>,
    /// Keys of single-use changes, each with the positions of its changes among all staged writes.
    once: Vec<(KeyWrite, Vec<Op>)>,
    moves: usize,
    /// An action has run, so there may be side effects outside.
    has_acted: bool,
}

/// Builds an in-memory run for a flow that has no row in the store.
pub(crate) fn loaded_run_of(workflow: Arc<Workflow>, snapshot: Arc<Snapshot>, now: Timestamp) -> LoadedRun {
    let run = snapshot.instance_id();
    let head = Head {
        run,
        revision: 0,
        version: snapshot.version(),
        fence: 0,
        owner: None,
        status: Status::Running,
        wake: Some(now),
        inbox_seen: 0,
        state: bytes::Bytes::new(),
        chain: Chain::default(),
    };
    LoadedRun {
        head,
        workflow,
        snapshot,
        ledger: Ledger::default(),
        inbox: Vec::new(),
        parent: None,
        root: run,
        suspended: false,
    }
}

impl<'a> FlowExecution<'a> {
    pub(crate) fn new(inner: &'a Arc<Inner>, scope: TenantScope, loaded_run: LoadedRun) -> Self {
        FlowExecution {
            inner,
            scope,
            loaded_run,
            entry: None,
            extras: CommitExtras::default(),
            swap: None,
            outgoing: None,
            before_outgoing: Vec::new(),
            once: Vec::new(),
            moves: 0,
            has_acted: false,
        }
    }

    /// Applies an input from outside. Returns the action that it starts, if any.
    pub(crate) async fn offer(
        &mut self,
        event: &Input,
        sender: &Sender,
    ) -> Result<Option<Box<ActionCall>>, ExecutionError> {
        if let Input::Answered { activation, .. } = event {
            may_answer(&self.loaded_run, *activation, sender, self.inner.host.now())?;
        }
        let (registry, loaded_run) = (&self.inner.registry, &self.loaded_run);
        let answers = registry.answer(&loaded_run.workflow, &loaded_run.snapshot, event).await;
        let answers = answers.map_err(|error| ExecutionError::Engine(error.into()))?;
        let now = self.inner.host.now();
        match dispatch(loaded_run.definition(), &loaded_run.snapshot, event, &answers, now) {
            Ok(Decision::Change(mut change)) => {
                change.entry.actor = sender.id();
                let stopped = change.stopped.clone();
                let next = PendingCommit::change(change, loaded_run);
                self.moved(next)?;
                stopped.map_or(Ok(None), |failure| Err(raised(failure)))
            }
            Ok(Decision::Act(call)) => Ok(Some(Box::new(call))),
            Ok(Decision::Retry { .. } | Decision::Stop(_)) => Ok(None),
            Err(Rejected::Refused(Refusal::InvalidPayload { violations, .. })) => {
                Err(ExecutionError::InvalidOutcome(violations))
            }
            Err(Rejected::Refused(refusal)) => Err(ExecutionError::Refused(refusal)),
            Err(Rejected::Undecidable(error)) => Err(ExecutionError::Engine(error.into())),
        }
    }

    /// Applies transitions that need no action, and returns the next action to run.
    ///
    /// The caller may have to reserve the flow before it runs the action.
    pub(crate) async fn next(&mut self) -> Result<Option<Box<ActionCall>>, ExecutionError> {
        loop {
            let now = self.inner.host.now();
            match self.inner.plan_in_memory(&self.loaded_run, now).await {
                NextStep::Commit(next) => {
                    let stopped = next.ledger.stopped.clone();
                    self.moved(*next)?;
                    if let Some(stopped) = stopped {
                        return Err(raised(stopped.error));
                    }
                }
                NextStep::RunAction(act) => {
                    let PlannedAction { call, .. } = *act;
                    return Ok(Some(Box::new(call)));
                }
                NextStep::FetchEarlierEvents(_)
                | NextStep::Admit
                | NextStep::CancelChildren
                | NextStep::Sleep(_) => {
                    return Ok(None);
                }
            }
        }
    }

    /// Runs an action and applies its outcome.
    pub(crate) async fn act(&mut self, call: ActionCall) -> Result<(), ExecutionError> {
        let keys = self.once.iter().map(|(key, _)| key).chain(&self.extras.keys).cloned().collect();
        let before = Arc::new(EarlierWrites { cells: self.extras.cells.clone(), keys });
        let is_first = !std::mem::replace(&mut self.has_acted, true);
        let location = StateLocation::Flow(before.clone());
        let flight = spawn_action(self.inner, self.scope, &self.loaded_run, call, None, 1, location);
        let outcome = tokio::select! {
            biased;
            outcome = Box::pin(flight) => outcome,
            // The engine has stopped: drop the action and write nothing.
            () = self.inner.over() => return Err(ExecutionError::Engine(EngineError::Stopped)),
        };
        let applier = OutcomeApplier {
            inner: self.inner,
            scope: self.scope,
            loaded_run: &self.loaded_run,
            before: Some(&before.cells),
        };
        let failure = match &outcome.result {
            Ok((_, staged)) => {
                let (swap, outgoing) = (staged.swap.clone(), staged.outgoing.clone());
                match applier.succeeded(&outcome).await {
                    Ok(Some(next)) => {
                        self.swap = swap.or(self.swap.take());
                        if outgoing.is_some() {
                            self.outgoing = outgoing;
                            let known = self.loaded_run.snapshot.activations().iter();
                            self.before_outgoing = known.map(|activation| activation.id).collect();
                        }
                        return self.took(next);
                    }
                    Ok(None) => return Ok(()),
                    Err(InvalidOutcome::Failed(failure)) => failure,
                    Err(InvalidOutcome::Refused(refused)) => return Err(again(refused)),
                    Err(InvalidOutcome::Store(error)) => return Err(error.into()),
                }
            }
            Err(failure) => failure.clone(),
        };
        // Only the first action runs on the input, so only its validation errors are the input's.
        if is_first && failure.code == VALIDATION_FAILED {
            return Err(ExecutionError::InvalidOutcome(failure.errors));
        }
        self.failed(&outcome, failure)
    }

    /// Moves the wait that the staged message is for to the front, so that the message names it.
    pub(crate) fn sort_waits(&self, waits: &mut [Pause]) {
        let is_new = |pause: &Pause| !self.before_outgoing.contains(&pause.activation);
        if let (true, Some(new)) = (self.outgoing.is_some(), waits.iter().position(is_new)) {
            waits[..=new].rotate_right(1);
        }
    }

    fn failed(&mut self, outcome: &ActionOutcome, failure: Failure) -> Result<(), ExecutionError> {
        let applier = OutcomeApplier {
            inner: self.inner,
            scope: self.scope,
            loaded_run: &self.loaded_run,
            before: None,
        };
        match applier.failed(outcome, &failure) {
            Ok(Some(next)) if next.change.is_some() => self.took(next),
            _ => Err(ExecutionError::Failed(failure)),
        }
    }

    fn took(&mut self, next: PendingCommit) -> Result<(), ExecutionError> {
        let stopped = next.ledger.stopped.clone();
        self.moved(next)?;
        stopped.map_or(Ok(()), |stopped| Err(raised(stopped.error)))
    }

    fn moved(&mut self, next: PendingCommit) -> Result<(), ExecutionError> {
        let PendingCommit {
            change,
            ledger,
            takes: _,
            suspend: _,
            repin: _,
            in_order: _,
            is_command: _,
            extras,
        } = next;
        self.moves += 1;
        let limits = self.inner.limits();
        limits.flow_moves("the flow between two pauses", self.moves).map_err(EngineError::from)?;
        self.loaded_run.ledger = ledger;
        if let Some(change) = change {
            self.loaded_run.snapshot = Arc::new(change.snapshot);
            self.entry = Some(change.entry);
        }
        self.gather(extras);
        Ok(())
    }

    /// Appends the writes of a step to those staged before, and shifts the positions of its single-use changes.
    fn gather(&mut self, mut extras: CommitExtras) {
        let (cells, links, own) = (self.extras.cells.len(), self.extras.links.len(), extras.cells.len());
        let place = |number: usize| match number.checked_sub(own) {
            None => Op::Cell(cells + number),
            Some(number) => Op::Link(links + number),
        };
        let keys = std::mem::take(&mut extras.keys);
        let (once, others): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| key.operation == WRITE);
        extras.keys = others;
        for key in once {
            let numbers: Vec<usize> = serde_json::from_slice(&key.answer).unwrap_or_default();
            self.once.push((key, numbers.into_iter().map(place).collect()));
        }
        self.extras.extend(extras);
    }

    /// Takes everything the steps have staged, in the form of the commit at the pause.
    pub(crate) fn staged(&mut self) -> CommitExtras {
        let mut extras = std::mem::take(&mut self.extras);
        let cells = extras.cells.len();
        for (key, ops) in std::mem::take(&mut self.once) {
            let number = |op: &Op| match op {
                Op::Cell(number) => *number,
                Op::Link(number) => cells + *number,
            };
            let numbers: Vec<usize> = ops.iter().map(number).collect();
            let answer = serde_json::to_vec(&numbers).expect("numbers are plain data").into();
            extras.keys.push(KeyWrite { answer, ..key });
        }
        extras
    }
}

/// Maps a failure that the workflow raises. One with field errors rejects the answer that led to it.
fn raised(failure: Failure) -> ExecutionError {
    match failure.errors.is_empty() {
        true => ExecutionError::Failed(failure),
        false => ExecutionError::InvalidOutcome(failure.errors),
    }
}

/// Maps a refused write: a cell conflict asks for another run, and anything else is a failure.
fn again(refused: Refused) -> ExecutionError {
    match refused {
        Refused::Cell { error: CellError::Conflict { .. }, .. } => ExecutionError::Again,
        refused => ExecutionError::Failed(Failure::new("refused", refused.to_string()).non_retryable()),
    }
}
