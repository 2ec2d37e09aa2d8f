//! How a run begins: at once or later, once per key, for a time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use stepwell_core::{DefinitionHash, Event, Name, Refusal, Rejected, RunId, Timestamp, dispatch, start};
use stepwell_store::{
    Chain, Commit, Head, KeyWrite, Lives, NewRun, Parent, ProcessId, Record, RecordQuery, Refused,
    ShadowWrite, Status, StoreError, TenantScope,
};

use crate::engine::{Inner, Run};
use crate::error::EngineError;
use crate::ledger::{ChildNote, Ledger, Stopped};
use crate::lists;
use crate::look::Next;
use crate::post::Says;
use crate::registry::Workflow;
use crate::room::Pass;
use crate::signal::{Signal, Signalled};
use crate::standing::{Along, Flying, Standing};
use crate::turn::{Turned, Turnless, open_waits_of, tell_parent};

/// The operation under which the keys of starts are kept.
pub(crate) const START: &str = "start";
/// The same for keys that the engine makes up, of schedules, events and triggers: no caller can take one of these.
pub(crate) const OWN_START: &str = "stepwell.start";

/// The data of a run that is started without any.
pub(crate) fn no_input() -> Value {
    Value::Object(Map::new())
}

/// A run that is to begin.
#[derive(Debug, Clone)]
pub struct Start {
    pub(crate) workflow: Name,
    pub(crate) input: Result<Value, String>,
    pub(crate) id: Option<RunId>,
    pub(crate) key: Option<String>,
    begins: Option<When>,
    deadline: Option<When>,
    waits_on_failure: bool,
    /// The same key gives the same run, whatever it is to be started with.
    whatever: bool,
    /// Shadow columns that are not read from its data.
    shaded: Vec<ShadowWrite>,
    /// The edition that it is to be.
    pinned: Option<DefinitionHash>,
    /// The workflow is one of the engine's own.
    own: bool,
    /// The key is the engine's, not a caller's.
    engine_key: bool,
}

#[derive(Debug, Clone, Copy)]
enum When {
    At(Timestamp),
    In(Duration),
}

impl When {
    fn after(self, now: Timestamp) -> Timestamp {
        match self {
            When::At(at) => at,
            When::In(pause) => now.plus_ms(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

impl Start {
    /// A run of this workflow, without data: it begins with an empty object.
    pub fn new(workflow: impl Into<Name>) -> Self {
        Start {
            workflow: workflow.into(),
            input: Ok(no_input()),
            id: None,
            key: None,
            begins: None,
            deadline: None,
            waits_on_failure: false,
            whatever: false,
            shaded: Vec::new(),
            pinned: None,
            own: false,
            engine_key: false,
        }
    }

    /// A run of one of the engine's own workflows, with a key of the engine's.
    pub(crate) fn own(workflow: &'static str, key: impl Into<String>) -> Self {
        Start { own: true, ..Start::new(workflow) }.engine_key(key)
    }

    /// A key of the engine's: no key that a caller chooses is the same.
    pub(crate) fn engine_key(self, key: impl Into<String>) -> Self {
        Start { engine_key: true, ..self.key(key) }
    }

    pub(crate) fn is_own(&self) -> bool {
        self.own
    }

    /// The operation under which its key is kept.
    pub(crate) fn operation(&self) -> &'static str {
        if self.engine_key { OWN_START } else { START }
    }

    /// The same key gives the same run, whatever it is to be started with.
    pub(crate) fn whatever(mut self) -> Self {
        self.whatever = true;
        self
    }

    /// Shadow columns that are not read from its data.
    pub(crate) fn shaded(mut self, columns: Vec<ShadowWrite>) -> Self {
        self.shaded = columns;
        self
    }

    /// A run of this edition, whichever new runs get.
    pub(crate) fn pinned(mut self, edition: DefinitionHash) -> Self {
        self.pinned = Some(edition);
        self
    }

    /// The data it begins with: an object, or anything if the workflow is a document.
    #[must_use]
    pub fn input<T: Serialize + ?Sized>(mut self, input: &T) -> Self {
        self.input = serde_json::to_value(input).map_err(|error| error.to_string());
        self
    }

    /// Its id; without this it gets a new one.
    #[must_use]
    pub fn id(mut self, id: RunId) -> Self {
        self.id = Some(id);
        self
    }

    /// The same key gives the same run, as long as that run is there.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// It begins then; until then it is pending.
    #[must_use]
    pub fn at(mut self, at: Timestamp) -> Self {
        self.begins = Some(When::At(at));
        self
    }

    /// It begins after a while.
    #[must_use]
    pub fn after(mut self, pause: Duration) -> Self {
        self.begins = Some(When::In(pause));
        self
    }

    /// If it has not ended by then, it is cancelled.
    #[must_use]
    pub fn deadline(mut self, at: Timestamp) -> Self {
        self.deadline = Some(When::At(at));
        self
    }

    /// If it has not ended after this time, it is cancelled.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.deadline = Some(When::In(time));
        self
    }

    /// For a child: its parent does not hear that it has failed, only that it has completed or was cancelled.
    #[must_use]
    pub fn wait_on_failure(mut self) -> Self {
        self.waits_on_failure = true;
        self
    }

    /// It begins later, or has a time by which it has to end.
    pub(crate) fn is_timed(&self) -> bool {
        self.begins.is_some() || self.deadline.is_some()
    }

    /// The record of its key: the same key with another request is an error.
    pub(crate) fn key_for(&self, run: RunId) -> Option<KeyWrite> {
        let key = self.key.as_ref()?;
        let input = self.input.as_ref().ok().filter(|_| !self.whatever);
        let asked = json!([self.workflow, input]).to_string();
        Some(KeyWrite {
            operation: self.operation().to_owned(),
            key: key.clone(),
            request: Sha256::digest(asked.as_bytes()).into(),
            answer: run.to_string().into(),
            lives: Lives::WithRun(run),
        })
    }
}

/// A run that is about to begin.
pub(crate) struct Fresh {
    pub(crate) new: NewRun,
    pub(crate) standing: Standing,
    pub(crate) next: Next,
    /// The registry's number by which it has its shadow columns.
    pub(crate) shadings: u64,
}

impl Fresh {
    /// Puts the run into a commit that is somebody else's. One that has ended or stopped as it began tells its parent in
    /// the same commit.
    pub(crate) fn goes_along(self, along: &mut Along) {
        let Fresh { mut new, mut standing, next: _, shadings } = self;
        along.shadings = Some(along.shadings.map_or(shadings, |known| known.min(shadings)));
        tell_parent(false, &mut standing, along);
        along.documents.extend(lists::kept(new.run, None, &standing.snapshot));
        new.attempt = standing.ledger.write();
        along.create.push(new);
        along.definitions.push(standing.workflow);
    }
}

impl Inner {
    /// A run that is about to begin, of what the name stands for now.
    pub(crate) async fn fresh(
        &self,
        scope: TenantScope,
        wanted: &Start,
        run: RunId,
        parent: Option<(Parent, RunId)>,
    ) -> Result<Fresh, EngineError> {
        let pinned = wanted.pinned.and_then(|hash| self.registry.by_hash(scope.tenant(), hash));
        let workflow = match pinned {
            Some(pinned) => pinned,
            None => self.workflow_of(scope, wanted).await?,
        };
        self.fresh_of(workflow, wanted, run, parent, None).await
    }

    /// A run that is about to begin; `owner` works on it at once if there is something to do.
    pub(crate) async fn fresh_of(
        &self,
        workflow: Arc<Workflow>,
        wanted: &Start,
        run: RunId,
        parent: Option<(Parent, RunId)>,
        owner: Option<ProcessId>,
    ) -> Result<Fresh, EngineError> {
        let shadings = self.registry.shadings();
        let now = self.host.now();
        let input = wanted.input.clone().map_err(|why| {
            EngineError::Invalid(format!(
                "the input of `{}` cannot be written as JSON: {why}",
                wanted.workflow
            ))
        })?;
        let begins = wanted.begins.map_or(now, |when| when.after(now)).max(now);
        let change = start(&workflow.definition, run, input, begins)?;
        let (parent, root) = parent.map_or((None, run), |(parent, root)| (Some(parent), root));
        let child = wanted.waits_on_failure.then_some(ChildNote { waits_on_failure: true, told: false });
        let deadline = wanted.deadline.map(|when| when.after(now));
        let stopped = change.stopped.clone().map(|error| Stopped { at: now, error, activation: None });
        let ledger = Ledger { deadline, child, stopped, ..Ledger::default() };
        let first = self.checkpoint(&change.snapshot, &change.entry)?;
        let head = Head {
            run,
            revision: 0,
            version: change.snapshot.version(),
            fence: 0,
            owner: None,
            status: Status::Running,
            wake: Some(now),
            inbox_seen: 0,
            state: first.state.clone(),
            chain: Chain::default(),
        };
        let standing = Standing {
            head,
            workflow: workflow.clone(),
            snapshot: Arc::new(change.snapshot),
            ledger,
            inbox: Vec::new(),
            parent: parent.clone(),
            root,
            suspended: false,
        };
        let next = self.look(&standing, &Flying::new(), now).await;
        let (status, wake, owner) = match &next {
            Next::Rest(rest) => (rest.status, rest.wake, None),
            _ => (Status::Running, Some(now), owner),
        };
        let mut shadows = self.shadows(&workflow, None, standing.snapshot.context());
        shadows.extend(wanted.shaded.iter().cloned());
        let new = NewRun {
            run,
            workflow: workflow.definition.name().clone(),
            definition: workflow.definition.hash(),
            version: standing.snapshot.version(),
            first,
            status,
            wake,
            owner,
            parent,
            root,
            attempt: standing.ledger.write(),
            open: open_waits_of(&workflow.definition, &standing.snapshot),
            shadows,
        };
        Ok(Fresh { new, standing, next, shadings })
    }

    /// Begins a run, with a first signal if one is given.
    pub(crate) async fn start(
        self: &Arc<Self>,
        scope: TenantScope,
        wanted: &Start,
        first: Option<&Signal>,
    ) -> Result<Started, EngineError> {
        let workflow = match self.workflow_of(scope, wanted).await {
            Err(error @ EngineError::Inactive { .. }) => {
                return self.begun_before(scope, wanted).await?.ok_or(error);
            }
            found => found?,
        };
        let run = wanted.id.unwrap_or_else(|| RunId::new(self.host.ids.next()));
        let pass = if first.is_some() { None } else { self.pass_for(scope.tenant(), &workflow) };
        let owner = pass.as_ref().map(|_| self.process());
        let Fresh { new, standing, next, shadings } =
            self.fresh_of(workflow.clone(), wanted, run, None, owner).await?;
        let mut along = Along { definitions: vec![workflow.clone()], ..Along::default() };
        if let Some(signal) = first {
            let payload = signal.payload()?;
            self.check_signal(&standing, &signal.name, &payload).await?;
            let says = Says::Signal { name: signal.name.clone(), payload: payload.clone() };
            along.send.push(says.kept(run, self.host.now().plus_ms(self.kept_ms(signal))));
            along.keys.extend(signal.key(run, &payload, Signalled::Kept));
        }
        along.keys.extend(wanted.key_for(run));
        let owner = new.owner;
        along.documents.extend(lists::kept(run, None, &standing.snapshot));
        along.create.push(new);
        let handle = Run::new(self.clone(), scope, run, true);
        let commit = self.commit_of(scope, along, self.host.now());
        let (guard, _under_way) = (self.unless_dropped(), self.under_way());
        let started = self.begun(scope, commit, (standing, next, pass), owner, handle).await;
        if started.is_ok() && self.registry.shadings() != shadings {
            Box::pin(self.catch_up(scope, vec![run])).await;
        }
        guard.done();
        started
    }

    /// The run that was begun under a start's key, while its workflow could be started.
    async fn begun_before(
        self: &Arc<Self>,
        scope: TenantScope,
        wanted: &Start,
    ) -> Result<Option<Started>, EngineError> {
        let Some(key) = wanted.key.clone() else { return Ok(None) };
        let query = RecordQuery::Key { operation: START.to_owned(), key: key.clone(), now: self.host.now() };
        let Some(Record::Key(known)) = self.store.records(scope, query).await?.items.pop() else {
            return Ok(None);
        };
        let run = run_of(known.answer.as_ref())?;
        let asked = wanted.key_for(run).map(|key| key.request);
        if known.request.is_some() && known.request != asked {
            return Err(EngineError::KeyReused { operation: START.to_owned(), key });
        }
        Ok(Some(Started { run: Run::new(self.clone(), scope, run, false), is_new: false }))
    }

    /// Commits the beginning of a run and goes on with it.
    async fn begun(
        self: &Arc<Self>,
        scope: TenantScope,
        commit: Commit,
        (mut standing, next, pass): (Standing, Next, Option<Pass>),
        owner: Option<ProcessId>,
        handle: Run,
    ) -> Result<Started, EngineError> {
        let run = standing.run();
        match self.apply(scope, commit).await {
            Ok(committed) => {
                let head = committed.and_then(|committed| committed.created.into_iter().next());
                match (head, owner.is_some()) {
                    (Some(head), true) => {
                        standing.head = head;
                        self.published(scope, &standing);
                        let at = self.host.now();
                        self.go_on(scope, Turned { standing, next, at, is_ours: true }, pass);
                    }
                    (Some(head), false) => {
                        standing.head = head;
                        self.published(scope, &standing);
                        self.look_at(standing.head.wake);
                        self.recent.put(scope, standing);
                    }
                    // The answer was lost: whoever owns the run by now finds it as an orphan's or by its time.
                    (None, _) => {
                        if let Err(error) = self.adopt(scope, run, owner, pass).await {
                            tracing::warn!(%run, %error, "a run was begun whose answer was lost");
                            self.in_doubt();
                        }
                    }
                }
                Ok(Started { run: handle, is_new: true })
            }
            Err(Turnless::Refused(Refused::Done { answer, .. })) => {
                let run = run_of(Some(&answer))?;
                Ok(Started { run: Run::new(self.clone(), scope, run, false), is_new: false })
            }
            Err(Turnless::Moved) => Err(EngineError::Store(StoreError::Unavailable(format!(
                "run {run} was not started: its commit was lost; start it again"
            )))),
            Err(turnless) => Err(turnless.into()),
        }
    }

    /// A signal that the definition does not know, or whose payload does not fit, begins no run.
    pub(crate) async fn check_signal(
        &self,
        standing: &Standing,
        name: &Name,
        payload: &Value,
    ) -> Result<(), EngineError> {
        let event = Event::Signalled { signal: name.clone(), payload: payload.clone() };
        let answers = self.registry.answer(&standing.workflow, &standing.snapshot, &event).await?;
        let decided = dispatch(standing.definition(), &standing.snapshot, &event, &answers, self.host.now());
        match decided {
            Err(Rejected::Refused(
                refusal @ (Refusal::UnknownSignal { .. } | Refusal::PayloadUnfit { .. }),
            )) => Err(refusal.into()),
            _ => Ok(()),
        }
    }

    /// Goes on with a run whose commit made this process its owner and whose answer was lost.
    async fn adopt(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        owner: Option<ProcessId>,
        pass: Option<Pass>,
    ) -> Result<(), EngineError> {
        let loaded = self.store.load(scope, run).await?.ok_or(EngineError::NoRun(run))?;
        let standing = self.stand(scope, loaded).await?;
        self.published(scope, &standing);
        let at = self.host.now();
        let next = self.look(&standing, &Flying::new(), at).await;
        // As it is read it may belong to this process by another commit than the one that began it.
        let is_ours = owner.is_some() && standing.head.owner == owner && standing.head.fence == BEGUN;
        self.go_on(scope, Turned { standing, next, at, is_ours }, pass);
        Ok(())
    }
}

/// The fence of a run's first owner.
const BEGUN: u64 = 1;

/// The run that the record of a start's key names.
pub(crate) fn run_of(answer: Option<&Bytes>) -> Result<RunId, EngineError> {
    let text = answer.and_then(|answer| std::str::from_utf8(answer).ok());
    let run = text.and_then(|text| text.parse().ok());
    run.ok_or_else(|| EngineError::Invalid("the key's record names no run".to_owned()))
}

/// A run, and whether it was begun just now or had been before under the same key.
#[derive(Debug, Clone)]
pub struct Started {
    /// The run.
    pub run: Run,
    /// It was begun just now.
    pub is_new: bool,
}
