//! One turn of a durable run: what was decided becomes one commit, which already says what comes next.
//!
//! Before a change is committed, the run is looked at as it will be after it. So one commit writes the step, how the run
//! is doing then, who works on it and when to look again; a run that goes on costs one commit per step, and nothing
//! acts on what is not committed.

use std::sync::Arc;

use stepwell_core::graph::{AwaitedEvent, open_waits};
use stepwell_core::snapshot::{ChildEnd, Finished};
use stepwell_core::{DecideError, Definition, DefinitionHash, Failure, Name, Snapshot, Timestamp};
use stepwell_store::plan::ownership;
use stepwell_store::{
    Commit, CommitError, CommitId, Committed, NextState, OpenWait, Ownership, ProcessId, Refused, Status,
    Step, StoreError, TenantScope,
};

use crate::engine::Inner;
use crate::error::EngineError;
use crate::hold::Hold;
use crate::lists;
use crate::look::{Look, Next, Rest};
use crate::observe::Committing;
use crate::post::Says;
use crate::remote;
use crate::room::Pass;
use crate::standing::{Along, Flying, Move, Standing};

/// How often a decision is made again because the run has moved, before that is called an error.
pub(crate) const MAX_TRIES: u32 = 64;
/// How many moves share a commit at most, and up to how many bytes of states another may join.
const MOVES_AT_ONCE: usize = 16;
const BYTES_AT_ONCE: usize = 64 * 1_024;

/// Who makes a turn.
#[derive(Clone, Copy)]
pub(crate) enum By {
    /// The process that owns the run.
    Owner,
    /// Anybody; with room, this process goes on with the run if it is free.
    Anyone(Option<ProcessId>),
}

/// What a turn came to.
pub(crate) struct Turned {
    /// The run after it.
    pub(crate) standing: Standing,
    /// What comes next.
    pub(crate) next: Next,
    /// When that was looked for.
    pub(crate) at: Timestamp,
    /// If this process owns the run, it does by this turn, and nobody else in it knows.
    pub(crate) is_ours: bool,
}

/// Why a turn came to nothing.
pub(crate) enum Turnless {
    /// The run has moved: decide again.
    Moved,
    /// The run belongs to somebody else.
    Fenced,
    /// Something in the commit cannot be done.
    Refused(Refused),
    /// The state cannot be written.
    Undecidable(DecideError),
    /// The store cannot now.
    Store(StoreError),
    /// Nobody knows.
    Engine(EngineError),
}

impl Turnless {
    /// Why what was decided cannot be written, however often it is decided.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self {
            Turnless::Refused(refused) => {
                Some(Failure::new("refused", format!("the commit was refused: {refused}")).finally())
            }
            Turnless::Undecidable(error) => Some(Failure::new("undecidable", error.to_string()).finally()),
            Turnless::Moved | Turnless::Fenced | Turnless::Store(_) | Turnless::Engine(_) => None,
        }
    }
}

impl From<Turnless> for EngineError {
    fn from(turnless: Turnless) -> Self {
        match turnless {
            // Both are dealt with before somebody outside hears of them.
            Turnless::Moved | Turnless::Fenced => EngineError::Stopped,
            Turnless::Refused(refused) => refused.into(),
            Turnless::Undecidable(error) => error.into(),
            Turnless::Store(error) => error.into(),
            Turnless::Engine(error) => error,
        }
    }
}

impl Inner {
    /// What is to happen next to a run.
    pub(crate) async fn look(&self, standing: &Standing, flying: &Flying, now: Timestamp) -> Next {
        let (registry, options) = (&self.registry, &self.options);
        let (max_crashes, signal_kept_ms) = (options.max_crashes, options.signal_kept_ms);
        let posts = !self.is_stateless;
        Look { registry, standing, flying, now, max_crashes, signal_kept_ms, posts }.next().await
    }

    /// The same for a run in memory, which nobody elsewhere can find.
    pub(crate) async fn look_in_memory(&self, standing: &Standing, now: Timestamp) -> Next {
        let (registry, options, flying) = (&self.registry, &self.options, &Flying::new());
        let (max_crashes, signal_kept_ms) = (options.max_crashes, options.signal_kept_ms);
        Look { registry, standing, flying, now, max_crashes, signal_kept_ms, posts: false }.next().await
    }

    /// Commits a move. `flying` are the actions that go on beside it.
    pub(crate) async fn turn(
        &self,
        scope: TenantScope,
        standing: &Standing,
        next: Move,
        flying: &Flying,
        by: By,
    ) -> Result<Turned, Turnless> {
        let now = self.host.now();
        let mut draft = Draft::new(standing);
        let state = self.checkpoint_of(&next).map_err(Turnless::Undecidable)?;
        draft.add(next, state);
        // What its operations give is in the state only after the commit: what comes next is decided then.
        let is_filled = !draft.along.fills.is_empty();
        let next = if is_filled { None } else { Some(self.follow(scope, &mut draft, flying, by, now).await) };
        let Draft { mut after, states, takes, definition, along, in_order, .. } = draft;
        let flying = still_flying(flying, &after);
        let (status, wake, owner) = match &next {
            Some(next) => self.resting(standing, &after, next, &flying, by, now),
            None => (Status::Running, standing.head.wake, Ownership::Keep),
        };
        expect_fence(standing, &mut after, owner, by);
        let (open, close, offered) = waits(standing, &after);
        let shadings = along.shadings.unwrap_or(u64::MAX).min(self.registry.shadings());
        let before = Some(standing.snapshot.context());
        let mut shadows = self.shadows(&after.workflow, before, after.snapshot.context());
        shadows.extend(along.shadows.iter().cloned());
        let started = along.create.iter().filter_map(|new| new.wake).min();
        let mut commit = self.commit_of(scope, along, now);
        let step = Step {
            head: standing.head.clone(),
            fence: matches!(by, By::Owner).then_some(standing.head.fence),
            in_order,
            next: states,
            status,
            wake,
            owner,
            attempt: after.ledger.write(),
            definition,
            take: takes,
            open,
            close,
            shadows,
        };
        let owned = ownership(&step);
        commit.step = Some(step);
        let committed = self.apply(scope, commit).await?;
        self.saw_turn(scope, standing, &after, status, now);
        // What was filled in is not in the context that its columns were read from.
        if self.registry.shadings() != shadings || (is_filled && self.has_shadows(&after.workflow)) {
            let created = committed.iter().flat_map(|committed| &committed.created).map(|head| head.run);
            Box::pin(self.catch_up(scope, created.chain([after.run()]).collect())).await;
        }
        self.look_at(started);
        self.desk.offer(scope.tenant(), &offered);
        let Some(mut committed) = committed else {
            return self.applied_unseen(scope, &after, &flying, owned).await;
        };
        after.head = committed.head.take().unwrap_or(after.head);
        let next = match next {
            Some(next) => next,
            None => {
                after.read_back().map_err(Turnless::Engine)?;
                self.look(&after, &flying, now).await
            }
        };
        self.published(scope, &after);
        Ok(Turned { standing: after, next, at: now, is_ours: true })
    }

    /// What comes after the moves of a draft. Moves that follow by themselves go into the same commit: nothing happens
    /// outside between them, so nobody could tell. Each still has its version, its entry and its state.
    async fn follow(
        &self,
        scope: TenantScope,
        draft: &mut Draft<'_>,
        flying: &Flying,
        by: By,
        now: Timestamp,
    ) -> Next {
        // What runs for somebody else's run only they know, and what this process cannot serve it does not decide.
        let before = draft.before;
        let free = matches!(by, By::Owner) || before.head.owner.is_none();
        // What is on record as somebody's doing is a commit of its own.
        let free = free && draft.along.audit.is_empty();
        loop {
            let flying = still_flying(flying, &draft.after);
            let next = self.look(&draft.after, &flying, now).await;
            let more = match next {
                Next::Move(more) if free && draft.has_room() && more.along.send.is_empty() => more,
                next => return next,
            };
            if !self.serves(scope.tenant(), &draft.after.workflow) {
                return Next::Move(more);
            }
            match self.checkpoint_of(&more) {
                Ok(state) => draft.add(*more, state),
                // It comes to its own end, in its own turn.
                Err(_) => return Next::Move(more),
            }
        }
    }

    /// Applies a commit; `None` = it was applied and its answer was lost.
    pub(crate) async fn apply(
        &self,
        scope: TenantScope,
        commit: Commit,
    ) -> Result<Option<Committed>, Turnless> {
        let definitions: Vec<_> = commit.definitions.iter().map(|definition| definition.hash).collect();
        let posts = commit.handles.iter().filter(|write| write.is_posted()).map(|write| write.handle);
        let posts: Vec<_> = posts.collect();
        let committing = Committing::begin(self, &commit);
        let answer = self.store.commit(scope, commit).await;
        committing.answered(self, scope, &answer);
        let (reference, why) = match answer {
            Ok(committed) => {
                self.stored(scope, &definitions);
                self.post(scope, posts);
                return Ok(Some(committed));
            }
            Err(CommitError::Refused(Refused::Moved { .. })) => return Err(Turnless::Moved),
            Err(CommitError::Refused(Refused::Fenced { .. })) => return Err(Turnless::Fenced),
            Err(CommitError::Refused(refused)) => return Err(Turnless::Refused(refused)),
            Err(CommitError::Store(error)) => return Err(Turnless::Store(error)),
            Err(CommitError::Unknown { reference, why }) => (reference, why),
        };
        // Unknown is not failed: it is looked up, not guessed.
        match self.resolved(scope, &reference).await {
            Ok(Some(_)) => {
                committing.applied(self, scope);
                self.post(scope, posts);
                Ok(None)
            }
            Ok(None) => Err(Turnless::Moved),
            Err(StoreError::Unavailable(_)) => {
                self.in_doubt();
                Err(Turnless::Engine(EngineError::Unknown { reference: Box::new(reference), why }))
            }
            Err(error) => {
                self.in_doubt();
                Err(Turnless::Store(error))
            }
        }
    }

    /// The commit is there and its answer is not: the run is read again.
    async fn applied_unseen(
        &self,
        scope: TenantScope,
        after: &Standing,
        flying: &Flying,
        owned: (Option<ProcessId>, u64),
    ) -> Result<Turned, Turnless> {
        let loaded = self.store.load(scope, after.run()).await.map_err(|error| {
            self.in_doubt();
            Turnless::Store(error)
        })?;
        let loaded = loaded.ok_or(Turnless::Engine(EngineError::NoRun(after.run())))?;
        let standing = self.stand(scope, loaded).await.map_err(Turnless::Engine)?;
        self.published(scope, &standing);
        let at = self.host.now();
        let next = self.look(&standing, flying, at).await;
        let is_ours = (standing.head.owner, standing.head.fence) == owned;
        Ok(Turned { standing, next, at, is_ours })
    }

    /// How the run is doing after the commit, when it is looked at, and who works on it.
    fn resting(
        &self,
        before: &Standing,
        after: &Standing,
        next: &Next,
        flying: &Flying,
        by: By,
        now: Timestamp,
    ) -> (Status, Option<Timestamp>, Ownership) {
        let head = &before.head;
        let goes_on = match next {
            Next::Rest(rest) => Err(*rest),
            Next::TellChildren => Ok(Status::Cancelled),
            Next::Move(_) | Next::Act(_) | Next::Ask(_) => Ok(Status::Running),
        };
        match (by, goes_on) {
            (By::Owner, Ok(status)) if self.is_stopping() && flying.is_empty() => {
                (status, Some(now), Ownership::Release)
            }
            // Indexed columns stay still while a run is worked on.
            (By::Owner, Ok(status)) => (status, head.wake, Ownership::Keep),
            (By::Owner, Err(rest)) if !flying.is_empty() => (rest.status, head.wake, Ownership::Keep),
            (By::Owner, Err(rest)) => (rest.status, rest.wake, Ownership::Release),
            (By::Anyone(_), _) if after.snapshot.is_terminal() && head.owner.is_some() => {
                let rest = goes_on.err();
                let status = rest.map_or(Status::Cancelled, |rest| rest.status);
                (status, rest.map_or(Some(now), |rest| rest.wake), Ownership::Release)
            }
            (By::Anyone(_), goes_on) if head.owner.is_some() => {
                let still = |rest: Rest| matches!(rest.status, Status::Failed | Status::Suspended);
                let status = goes_on.err().filter(|rest| still(*rest)).map_or(Status::Running, |r| r.status);
                (status, head.wake, Ownership::Keep)
            }
            (By::Anyone(Some(process)), Ok(status)) => (status, Some(now), Ownership::Take(process)),
            (By::Anyone(None), Ok(status)) => (status, Some(now), Ownership::Keep),
            (By::Anyone(_), Err(rest)) => (rest.status, rest.wake, Ownership::Keep),
        }
    }

    /// A commit with what goes along.
    pub(crate) fn commit_of(&self, scope: TenantScope, along: Along, now: Timestamp) -> Commit {
        let Along {
            create,
            send,
            handles,
            cells,
            links,
            fills,
            actor,
            documents,
            keys,
            audit,
            definitions,
            shadings: _,
            shadows: _,
        } = along;
        let mut commit = Commit::new(CommitId(self.host.ids.next()), now);
        commit.create = create;
        commit.send = send;
        commit.handles = handles;
        commit.cells = cells;
        commit.links = links;
        commit.fills = fills;
        commit.actor = actor;
        commit.documents = documents;
        commit.keys = keys;
        commit.audit = audit;
        let new = definitions.iter().filter(|workflow| !self.is_stored(scope, workflow.stored.hash));
        commit.definitions = new.map(|workflow| workflow.kept()).collect();
        commit
    }

    /// The checkpoint of a move that has one.
    fn checkpoint_of(&self, next: &Move) -> Result<Option<NextState>, DecideError> {
        let change = next.change.as_ref();
        change.map(|change| self.checkpoint(&change.snapshot, &change.entry)).transpose()
    }

    pub(crate) fn checkpoint(
        &self,
        snapshot: &Snapshot,
        entry: &stepwell_core::Entry,
    ) -> Result<NextState, DecideError> {
        let state = snapshot.encode_apart(&self.options.limits).map_err(DecideError::from)?;
        let mut written = Vec::with_capacity(512);
        serde_json::to_writer(&mut written, entry).expect("a history entry is plain data");
        Ok(NextState { state: state.into(), entry: written.into(), places: snapshot.current_places() })
    }

    /// Loads a run and goes on with it if this process may and can: the commit has made it the owner.
    pub(crate) fn go_on(self: &Arc<Self>, scope: TenantScope, turned: Turned, pass: Option<Pass>) {
        if let Some((hold, next)) = self.taken_up(scope, turned, pass) {
            self.host.spawn.spawn(Box::pin(hold.run(Some(next))));
        }
    }

    /// The same, for whoever goes on with it themselves.
    pub(crate) fn taken_up(
        self: &Arc<Self>,
        scope: TenantScope,
        turned: Turned,
        pass: Option<Pass>,
    ) -> Option<(Hold, Next)> {
        let Turned { standing, next, is_ours, .. } = turned;
        let head = &standing.head;
        let mine = is_ours && head.owner.is_some_and(|owner| self.goes_by(owner));
        let mine = mine && !self.is_held_under(scope.run(head.run), head.fence);
        if let (true, Some(pass)) = (mine, pass) {
            return Some((Hold::new(self.clone(), scope, standing, Some(pass)), next));
        }
        self.look_at(head.wake);
        self.recent.put(scope, standing);
        None
    }
}

/// A commit in the making: moves that follow from one another.
struct Draft<'a> {
    before: &'a Standing,
    /// The run after the moves so far.
    after: Standing,
    states: Vec<NextState>,
    takes: Vec<u64>,
    definition: Option<DefinitionHash>,
    along: Along,
    in_order: bool,
    moves: usize,
}

impl<'a> Draft<'a> {
    fn new(before: &'a Standing) -> Self {
        Draft {
            before,
            after: before.clone(),
            states: Vec::new(),
            takes: Vec::new(),
            definition: None,
            along: Along::default(),
            in_order: false,
            moves: 0,
        }
    }

    /// Another move may join.
    fn has_room(&self) -> bool {
        let bytes: usize = self.states.iter().map(|next| next.state.len() + next.entry.len()).sum();
        self.moves < MOVES_AT_ONCE && bytes < BYTES_AT_ONCE
    }

    fn add(&mut self, next: Move, state: Option<NextState>) {
        let Move { change, ledger, takes, suspend, repin, in_order, along } = next;
        let was_over = self.after.snapshot.is_terminal();
        let after = &mut self.after;
        after.ledger = ledger;
        after.inbox.retain(|letter| !takes.contains(&letter.seq));
        after.suspended = suspend.unwrap_or(after.suspended);
        if let Some(workflow) = repin {
            self.definition = Some(workflow.definition.hash());
            after.workflow = workflow;
        }
        if let Some(change) = change {
            self.along.documents.extend(lists::kept(after.head.run, Some(&after.snapshot), &change.snapshot));
            after.snapshot = Arc::new(change.snapshot);
        }
        self.states.extend(state);
        self.takes.extend(takes);
        self.along.extend(along);
        tell_parent(was_over, after, &mut self.along);
        self.in_order |= in_order;
        self.moves += 1;
    }
}

/// The actions that go on beside a change.
fn still_flying(flying: &Flying, after: &Standing) -> Flying {
    let there = flying.iter().filter(|(id, _)| after.snapshot.activation(**id).is_some());
    there.map(|(id, flight)| (*id, *flight)).collect()
}

/// A run whose end or failure its parent is to hear of says so in the commit that ends it.
pub(crate) fn tell_parent(was_over: bool, after: &mut Standing, along: &mut Along) {
    let Some(parent) = after.parent.as_ref().filter(|parent| parent.activation != 0) else { return };
    let note = after.ledger.child.unwrap_or_default();
    if was_over || note.told {
        return;
    }
    let end = match (after.snapshot.finished(), &after.ledger.stopped) {
        (Some(Finished::Completed { output, .. }), _) => {
            ChildEnd::Completed { output: output.clone().unwrap_or_default() }
        }
        (Some(Finished::Cancelled), _) => ChildEnd::Cancelled,
        (None, Some(stopped)) if !note.waits_on_failure => ChildEnd::Failed { error: stopped.error.clone() },
        (None, _) => return,
    };
    if matches!(end, ChildEnd::Failed { .. }) {
        after.ledger.child = Some(crate::ledger::ChildNote { told: true, ..note });
    }
    let says = Says::Child { activation: parent.activation, child: parent.child, end };
    along.send.push(says.to(parent.run));
}

/// Notes which fence the next owner has if nobody dies meanwhile.
fn expect_fence(before: &Standing, after: &mut Standing, owner: Ownership, by: By) {
    let head = &before.head;
    match (by, head.owner, owner) {
        // Somebody else works on it: what that process has counted stays counted.
        (By::Anyone(_), Some(_), Ownership::Keep) => {}
        (By::Owner, _, Ownership::Keep) => {
            after.ledger.fence = head.fence;
        }
        _ => {
            // Nobody works on a run that has ended: its row need not say anything.
            let ended = after.snapshot.is_terminal() && after.ledger.cancelling.is_empty();
            after.ledger.fence = if ended { 1 } else { head.fence + 1 };
        }
    }
}

/// The waits that open and close with a step, and the actions of the tasks among them that wait for a worker.
fn waits(before: &Standing, after: &Standing) -> (Vec<OpenWait>, Vec<u64>, Vec<Name>) {
    let has_waits = before.workflow.has_waits || after.workflow.has_waits;
    let has_tasks = before.ledger.has_posted() || after.ledger.has_posted();
    if !has_tasks && (!has_waits || Arc::ptr_eq(&before.snapshot, &after.snapshot)) {
        return (Vec::new(), Vec::new(), Vec::new());
    }
    let was = remote::with_tasks(before, open_waits_of(before.definition(), &before.snapshot));
    let is = remote::with_tasks(after, open_waits_of(after.definition(), &after.snapshot));
    let gone = |wait: &&OpenWait| !is.iter().any(|now| now.activation == wait.activation);
    let close = was.iter().filter(gone).map(|wait| wait.activation).collect();
    let open: Vec<_> = is.iter().filter(|wait| !was.contains(wait)).cloned().collect();
    let offered = remote::offered(&open);
    (open, close, offered)
}

pub(crate) fn open_waits_of(definition: &Definition, snapshot: &Snapshot) -> Vec<OpenWait> {
    let open = open_waits(definition, snapshot).into_iter();
    open.map(|wait| OpenWait {
        activation: wait.activation,
        place: wait.place.clone(),
        since: wait.since,
        until: wait.until,
        detail: serde_json::to_vec(&wait).expect("an open wait is plain data").into(),
        topic: wait.event.as_ref().map(AwaitedEvent::topic),
    })
    .collect()
}
