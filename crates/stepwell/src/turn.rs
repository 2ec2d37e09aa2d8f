//! One turn of a durable run: load, decide, commit; decided again on the newer snapshot if the run has moved.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use stepwell_core::graph::open_waits;
use stepwell_core::snapshot::Finished;
use stepwell_core::{
    Answers, Change, DecideError, Decision, Definition, Event, Failure, Limits, Name, Rejected, RestoreError,
    RunId, Snapshot, Timestamp, dispatch, start,
};
use stepwell_store::{
    Commit, CommitError, CommitId, Head, NewRun, NextState, OpenWait, Ownership, Refused, Status, Step,
    Store, StoreError, StoredDefinition, TenantScope,
};

/// How often a decision is made again because the run has moved, before that is called an error.
pub const MAX_TRIES: u32 = 16;

/// The one clock.
pub trait Clock: Send + Sync {
    /// What time it is.
    fn now(&self) -> Timestamp;
}

/// The computer's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(since.as_micros() as i64)
    }
}

/// Where turns are made: a store, a tenant and a clock.
#[derive(Clone)]
pub struct Desk {
    store: Arc<dyn Store>,
    scope: TenantScope,
    clock: Arc<dyn Clock>,
    limits: Limits,
}

/// What a turn came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Turned {
    /// The change that was committed.
    pub change: Change,
    /// How the run is doing after it.
    pub status: Status,
}

/// Why a turn came to nothing. The run is unchanged, unless the error says that nobody knows.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// There is no such run.
    #[error("there is no run {0}")]
    NoRun(RunId),
    /// The workflow said no, or the decision could not be made.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// The run does not go with the definition.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The transition has an action; a turn by itself runs none.
    #[error("transition `{0}` runs the action `{1}`, and a turn by itself runs none")]
    NeedsAction(Name, Name),
    /// The decision is about a try, not about the snapshot.
    #[error(
        "what was decided on run {0} is recorded beside its snapshot, and a turn by itself keeps no tries"
    )]
    OnlyRecorded(RunId),
    /// The run moved every time.
    #[error("run {run} moved {MAX_TRIES} times while a decision on it was made")]
    Contended {
        /// The run.
        run: RunId,
    },
    /// The commit was refused or not made.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The store could not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<DecideError> for TurnError {
    fn from(error: DecideError) -> Self {
        TurnError::Rejected(error.into())
    }
}

impl Desk {
    /// Turns on this store, for this tenant, by the computer's clock.
    pub fn new(store: Arc<dyn Store>, scope: TenantScope) -> Self {
        Desk { store, scope, clock: Arc::new(SystemClock), limits: Limits::default() }
    }

    /// The same by another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Begins a run: version 0, its definition stored with it.
    pub async fn start(
        &self,
        definition: &Definition,
        run: RunId,
        context: Value,
    ) -> Result<Turned, TurnError> {
        let now = self.clock.now();
        let change = start(definition, run, context, now)?;
        let (status, wake) = rest(definition, &change, now);
        let mut commit = self.commit(now);
        commit.definitions.push(StoredDefinition {
            hash: definition.hash(),
            workflow: definition.name().clone(),
            version: definition.version(),
            body: definition.canonical().into(),
        });
        commit.create.push(NewRun {
            run,
            workflow: definition.name().clone(),
            definition: definition.hash(),
            version: change.snapshot.version(),
            first: self.checkpoint(&change)?,
            status,
            wake,
            owner: None,
            parent: None,
            root: run,
            attempt: attempt(change.stopped.as_ref()),
            open: waits(definition, &change.snapshot),
        });
        self.store.commit(self.scope, commit).await?;
        Ok(Turned { change, status })
    }

    /// A run's snapshot, checked against its definition.
    pub async fn snapshot(&self, definition: &Definition, run: RunId) -> Result<Snapshot, TurnError> {
        let loaded = self.store.load(self.scope, run).await?.ok_or(TurnError::NoRun(run))?;
        Ok(Snapshot::restore(definition, &loaded.head.state)?)
    }

    /// Decides an event on a run and commits the decision.
    pub async fn turn(
        &self,
        definition: &Definition,
        run: RunId,
        event: &Event,
    ) -> Result<Turned, TurnError> {
        for _ in 0..MAX_TRIES {
            let loaded = self.store.load(self.scope, run).await?.ok_or(TurnError::NoRun(run))?;
            let snapshot = Snapshot::restore(definition, &loaded.head.state)?;
            let now = self.clock.now();
            let change = match dispatch(definition, &snapshot, event, &Answers::none(), now)? {
                Decision::Change(change) => *change,
                Decision::Act(call) => return Err(TurnError::NeedsAction(call.transition, call.action)),
                Decision::Retry { .. } | Decision::Stop(_) => return Err(TurnError::OnlyRecorded(run)),
            };
            let (status, commit) = self.step(definition, loaded.head, &snapshot, &change, now)?;
            match self.store.commit(self.scope, commit).await {
                Ok(_) => return Ok(Turned { change, status }),
                Err(CommitError::Refused(Refused::Moved { .. })) => {}
                Err(CommitError::Unknown { reference, why }) => {
                    // Unknown is not failed: it is looked up, not guessed.
                    match self.store.outcome(self.scope, reference.clone()).await? {
                        Some(_) => return Ok(Turned { change, status }),
                        None => return Err(CommitError::Unknown { reference, why }.into()),
                    }
                }
                Err(other) => return Err(other.into()),
            }
        }
        Err(TurnError::Contended { run })
    }

    fn step(
        &self,
        definition: &Definition,
        head: Head,
        before: &Snapshot,
        change: &Change,
        now: Timestamp,
    ) -> Result<(Status, Commit), TurnError> {
        let (status, wake) = rest(definition, change, now);
        let (was, is) = (waits(definition, before), waits(definition, &change.snapshot));
        let gone = |wait: &&OpenWait| !is.iter().any(|now| now.activation == wait.activation);
        let new = |wait: &&OpenWait| !was.contains(wait);
        let mut commit = self.commit(now);
        commit.step = Some(Step {
            fence: None,
            next: Some(self.checkpoint(change)?),
            status,
            wake,
            owner: Ownership::Keep,
            attempt: attempt(change.stopped.as_ref()),
            take: Vec::new(),
            close: was.iter().filter(gone).map(|wait| wait.activation).collect(),
            open: is.iter().filter(new).cloned().collect(),
            head,
        });
        Ok((status, commit))
    }

    fn commit(&self, now: Timestamp) -> Commit {
        Commit::new(CommitId(uuid::Uuid::now_v7()), now)
    }

    fn checkpoint(&self, change: &Change) -> Result<NextState, TurnError> {
        let state = change.snapshot.encode(&self.limits).map_err(DecideError::from)?;
        let entry = serde_json::to_vec(&change.entry).expect("a history entry is plain data");
        Ok(NextState { state: state.into(), entry: entry.into(), places: change.snapshot.current_places() })
    }
}

/// How a run is doing after a change, and when it is to be looked at next.
fn rest(definition: &Definition, change: &Change, now: Timestamp) -> (Status, Option<Timestamp>) {
    let snapshot = &change.snapshot;
    match snapshot.finished() {
        Some(Finished::Completed { .. }) => return (Status::Completed, None),
        Some(Finished::Cancelled) => return (Status::Cancelled, None),
        None => {}
    }
    if change.stopped.is_some() {
        return (Status::Failed, None);
    }
    match dispatch(definition, snapshot, &Event::advance(), &Answers::none(), now) {
        Err(Rejected::Refused(_)) => (Status::Waiting, snapshot.next_due(now)),
        // What cannot be decided here may be decidable where the guards are: somebody has to look.
        Ok(_) | Err(Rejected::Undecidable(_)) => (Status::Running, Some(now)),
    }
}

fn attempt(stopped: Option<&Failure>) -> Option<Bytes> {
    let stopped = stopped?;
    Some(
        serde_json::to_vec(&serde_json::json!({ "error": stopped })).expect("a failure is plain data").into(),
    )
}

fn waits(definition: &Definition, snapshot: &Snapshot) -> Vec<OpenWait> {
    let open = open_waits(definition, snapshot).into_iter();
    open.map(|wait| OpenWait {
        activation: wait.activation,
        place: wait.place.clone(),
        since: wait.since,
        until: wait.until,
        detail: serde_json::to_vec(&wait).expect("an open wait is plain data").into(),
    })
    .collect()
}
