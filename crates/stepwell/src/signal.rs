//! A signal comes: it moves the run, begins an action, is kept for later, or is refused.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stepwell_core::dispatch::Retrial;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{Decision, Event, Name, Refusal, Rejected, RunId, Timestamp, dispatch};
use stepwell_store::{KeyWrite, Lives, Record, RecordQuery, Recorded, Refused, TenantScope};

use crate::actor::Actor;
use crate::engine::{Inner, Run};
use crate::error::EngineError;
use crate::ledger::Tries;
use crate::once::Done;
use crate::post::Says;
use crate::registry::refuse_own;
use crate::standing::{Along, Move, Standing, moved_by};
use crate::start::{self, START, Start, Started};
use crate::turn::{MAX_TRIES, Turnless};

/// Why a signal is not taken although the run could.
const BEFORE_IT: &str = "what came before the signal is still being dealt with, and it is not to be kept";

/// A signal to a run.
#[derive(Debug, Clone)]
pub struct Signal {
    pub(crate) name: Name,
    brings: Result<Value, String>,
    id: Option<String>,
    strict: bool,
    kept_ms: Option<u64>,
    /// The engine signals one of its own runs.
    own: bool,
    /// The wait that it answers.
    wait: Option<ActivationId>,
    /// Who sends it.
    by: Option<String>,
}

/// The answer that a wait was given, for whoever comes second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstAnswer {
    /// The signal.
    pub signal: Name,
    /// Who gave it, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Signalled {
    /// It has moved the run, or begun the action that will.
    Taken,
    /// Nothing takes it now: it is kept, and offered whenever the run comes to rest.
    Kept,
}

impl Signal {
    /// A signal without a payload.
    pub fn new(name: impl Into<Name>) -> Self {
        Signal {
            name: name.into(),
            brings: Ok(Value::Null),
            id: None,
            strict: false,
            kept_ms: None,
            own: false,
            wait: None,
            by: None,
        }
    }

    /// A signal of the engine's to one of its own runs.
    pub(crate) fn own(name: &'static str) -> Self {
        Signal { own: true, ..Signal::new(name) }
    }

    /// What it brings.
    #[must_use]
    pub fn with<T: Serialize + ?Sized>(mut self, payload: &T) -> Self {
        self.brings = serde_json::to_value(payload).map_err(|error| error.to_string());
        self
    }

    /// The same id is the same signal, for the life of the run.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// It is refused if nothing takes it now, instead of being kept.
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// How long it is kept if nothing takes it now.
    #[must_use]
    pub fn kept_for(mut self, time: Duration) -> Self {
        self.kept_ms = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// It answers this wait and no other, by its activation: it is refused if that is not open any more, with who has
    /// answered it first, and is never kept for a later one.
    #[must_use]
    pub fn answering(mut self, wait: ActivationId) -> Self {
        self.wait = Some(wait);
        self
    }

    pub(crate) fn by(mut self, actor: Option<&Actor>) -> Self {
        self.by = actor.map(|actor| actor.id.clone());
        self
    }

    /// It is not kept.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict || self.wait.is_some()
    }

    fn event(&self, payload: &Value) -> Event {
        let (signal, payload) = (self.name.clone(), payload.clone());
        match self.wait {
            Some(activation) => Event::Answered { activation, signal, payload },
            None => Event::Signalled { signal, payload },
        }
    }

    /// What is on record of the answer to a wait.
    fn answer(&self, run: RunId, payload: &Value, at: Timestamp) -> Option<KeyWrite> {
        let first = FirstAnswer { signal: self.name.clone(), by: self.by.clone(), at };
        let request = json!([self.by, self.name, payload]).to_string();
        Some(KeyWrite {
            operation: format!("answer:{run}"),
            key: self.wait?.to_string(),
            request: Sha256::digest(request.as_bytes()).into(),
            answer: serde_json::to_vec(&first).map(Bytes::from).expect("an answer is plain data"),
            lives: Lives::WithRun(run),
        })
    }

    pub(crate) fn payload(&self) -> Result<Value, EngineError> {
        self.brings.clone().map_err(|why| {
            EngineError::Invalid(format!("the payload of `{}` cannot be written as JSON: {why}", self.name))
        })
    }

    pub(crate) fn key(&self, run: RunId, payload: &Value, came_to: Signalled) -> Option<KeyWrite> {
        let id = self.id.as_ref()?;
        let request = json!([self.name, payload]).to_string();
        Some(KeyWrite {
            operation: operation(run),
            key: id.clone(),
            request: Sha256::digest(request.as_bytes()).into(),
            answer: serde_json::to_vec(&came_to).map(Bytes::from).expect("a word is plain data"),
            lives: Lives::WithRun(run),
        })
    }
}

/// The operation under which the ids of a run's signals are kept.
fn operation(run: RunId) -> String {
    format!("signal:{run}")
}

impl Inner {
    pub(crate) async fn signal(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        signal: &Signal,
    ) -> Result<Done<Signalled>, EngineError> {
        self.signalled(scope, run, signal).await.inspect_err(|_| self.saw_refusal())
    }

    async fn signalled(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        signal: &Signal,
    ) -> Result<Done<Signalled>, EngineError> {
        let payload = signal.payload()?;
        if signal.wait.is_some() && signal.kept_ms.is_some() {
            let why = "an answer to a wait is taken or refused, and never kept: leave out how long";
            return Err(EngineError::Invalid(why.to_owned()));
        }
        let key = signal.key(run, &payload, Signalled::Taken);
        for _ in 0..MAX_TRIES {
            // If the run is not as it was left, its commit says so. What is not a commit is said of the store's own.
            let left = self.recent.take(scope.run(run));
            let is_left = left.is_some();
            let standing = match left {
                Some(standing) => standing,
                None => self.load(scope, run).await?,
            };
            if !signal.own {
                refuse_own(standing.definition().name(), run)?;
            }
            let event = signal.event(&payload);
            let came_to = match self.received(&standing, &event, &payload, signal.is_strict()).await {
                Ok(Some(next)) => self.take(scope, &standing, next, signal, &payload).await,
                _ if is_left => continue,
                Ok(None) if signal.wait.is_some() => {
                    let (status, why) = (standing.head.status, BEFORE_IT.to_owned());
                    return Err(EngineError::NotNow { run, status, why });
                }
                Ok(None) => self.keep(scope, run, signal, &payload).await,
                Err(refused) => {
                    return self.second(scope, run, signal, &payload, key.as_ref(), refused).await;
                }
            };
            match came_to {
                Ok(came_to) => {
                    self.saw_signal(scope, &standing, came_to);
                    return Ok(Done::now(came_to));
                }
                Err(Turnless::Moved | Turnless::Refused(Refused::NoRun { .. })) => {}
                Err(Turnless::Refused(Refused::NoTarget { .. })) => return Err(Refusal::Terminal.into()),
                Err(turnless) => {
                    return self.second(scope, run, signal, &payload, key.as_ref(), turnless.into()).await;
                }
            }
        }
        Err(EngineError::Contended { run, tries: MAX_TRIES })
    }

    /// What is refused may have been done before; and a wait that it answers may have been answered by somebody else.
    async fn second(
        &self,
        scope: TenantScope,
        run: RunId,
        signal: &Signal,
        payload: &Value,
        key: Option<&KeyWrite>,
        refused: EngineError,
    ) -> Result<Done<Signalled>, EngineError> {
        let done = self.unless_done(scope, key, Err(refused)).await;
        let answer = signal.wait.zip(signal.answer(run, payload, self.host.now()));
        let (Err(refused), Some((wait, answer))) = (&done, answer) else { return done };
        let KeyWrite { operation, key, request, .. } = answer;
        let query = RecordQuery::Key { operation, key, now: self.host.now() };
        match self.store.records(scope, query).await?.items.pop() {
            Some(Record::Key(record)) if record.request == Some(request) => {
                Ok(Done::before(Signalled::Taken))
            }
            Some(Record::Key(Recorded { answer: Some(first), .. })) => {
                let unreadable =
                    |error: serde_json::Error| EngineError::Unreadable { run, why: error.to_string() };
                let first = serde_json::from_slice(&first).map_err(unreadable)?;
                Err(EngineError::AlreadyAnswered { run, wait, first })
            }
            _ => Err(refused.clone()),
        }
    }

    /// Signals the run that has this key, or begins it with the signal.
    pub(crate) async fn start_or_signal(
        self: &Arc<Self>,
        scope: TenantScope,
        start: &Start,
        signal: &Signal,
    ) -> Result<Started, EngineError> {
        let Some(key) = &start.key else {
            let why = "a start that may turn out to be a signal needs a key: it says which run is meant";
            return Err(EngineError::Invalid(why.to_owned()));
        };
        if signal.wait.is_some() {
            let why = "an answer to a wait cannot start a run: signal the run that waits";
            return Err(EngineError::Invalid(why.to_owned()));
        }
        for _ in 0..MAX_TRIES {
            let query =
                RecordQuery::Key { operation: START.to_owned(), key: key.clone(), now: self.host.now() };
            let known = self.store.records(scope, query).await?.items.into_iter().next();
            let Some(Record::Key(record)) = known else {
                match self.start(scope, start, Some(signal)).await {
                    Ok(started) if started.is_new => return Ok(started),
                    // Somebody else has begun it meanwhile: then it is signalled.
                    Ok(_) => continue,
                    Err(error) => return Err(error),
                }
            };
            let run = start::run_of(record.answer.as_ref())?;
            self.signal(scope, run, signal).await?;
            return Ok(Started { run: Run::new(self.clone(), scope, run, false), is_new: false });
        }
        Err(EngineError::Invalid(format!("the run with key `{key}` came and went {MAX_TRIES} times")))
    }

    /// What a signal, or the answer to a wait, does to the run as it stands; `None` = it is kept, unless it is strict.
    pub(crate) async fn received(
        &self,
        standing: &Standing,
        event: &Event,
        payload: &Value,
        strict: bool,
    ) -> Result<Option<Move>, EngineError> {
        let answers = self.registry.answer(&standing.workflow, &standing.snapshot, event).await?;
        let now = self.host.now();
        let decided = dispatch(standing.definition(), &standing.snapshot, event, &answers, now);
        let stands = standing.suspended || standing.ledger.stopped.is_some() || standing.is_pending(now);
        // What has come before it is dealt with before it.
        let unseen = standing.head.owner.is_none() && standing.head.wake.is_some_and(|wake| wake <= now);
        let waits = self.takes_an_earlier_one(standing).await?;
        let later = |why: &str| match strict {
            true => Err(EngineError::NotNow {
                run: standing.run(),
                status: standing.head.status,
                why: why.to_owned(),
            }),
            false => Ok(None),
        };
        match decided {
            Ok(_) if stands => later("it does not go on now, and the signal is not to be kept"),
            Ok(_) if unseen && !strict => Ok(None),
            Ok(_) if waits => later(BEFORE_IT),
            Ok(Decision::Change(change))
                if moved_by(&standing.snapshot, &change).any(|id| standing.is_engaged(id, now)) =>
            {
                later(BEFORE_IT)
            }
            Ok(Decision::Change(change)) => {
                let stopped = change.stopped.clone();
                let mut next = Move::change(change, standing);
                next.ledger.stopped =
                    stopped.map(|error| crate::ledger::Stopped { at: now, error, activation: None });
                Ok(Some(next))
            }
            // Somebody works on the run: whether the activation is free only the owner knows.
            Ok(Decision::Act(_)) if standing.head.owner.is_some() => {
                later("somebody works on it, and the signal is not to be kept")
            }
            Ok(Decision::Act(call)) => {
                let mut ledger = standing.ledger.clone();
                if ledger.of(call.activation).is_some_and(Tries::is_under_way) {
                    return later(
                        "what would take the signal is under way or tried again, and it is not to be kept",
                    );
                }
                ledger.tries.retain(|tries| tries.activation != call.activation);
                let first = Tries { next: Some(now), by_hand: true, ..Tries::new(&Retrial::of(&call), None) };
                ledger.tries.push(first.bringing(payload));
                Ok(Some(Move::note(ledger)))
            }
            Ok(Decision::Retry { .. } | Decision::Stop(_)) => Ok(None),
            Err(Rejected::Refused(Refusal::NoActiveSource { .. })) if !strict => Ok(None),
            Err(rejected) => Err(rejected.into()),
        }
    }

    async fn take(
        self: &Arc<Self>,
        scope: TenantScope,
        standing: &Standing,
        mut next: Move,
        signal: &Signal,
        payload: &Value,
    ) -> Result<Signalled, Turnless> {
        next.along.keys.extend(signal.key(standing.run(), payload, Signalled::Taken));
        // What begins an action may be given up, and the wait answered again.
        if next.change.is_some() {
            next.along.keys.extend(signal.answer(standing.run(), payload, self.host.now()));
        }
        next.in_order = true;
        self.anyone(scope, standing, next).await?;
        Ok(Signalled::Taken)
    }

    /// The run as it stands would take a signal that is kept already.
    async fn takes_an_earlier_one(&self, standing: &Standing) -> Result<bool, EngineError> {
        for letter in &standing.inbox {
            let Says::Signal { name, payload } = &letter.says else { continue };
            let event = Event::Signalled { signal: name.clone(), payload: payload.clone() };
            let answers = self.registry.answer(&standing.workflow, &standing.snapshot, &event).await?;
            if dispatch(standing.definition(), &standing.snapshot, &event, &answers, self.host.now()).is_ok()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Refuses to signal a run of the engine's own. One that is not there is not the engine's.
    pub(crate) async fn is_open(&self, scope: TenantScope, run: RunId) -> Result<(), EngineError> {
        match self.store.load(scope, run).await? {
            Some(loaded) => refuse_own(&loaded.workflow, run),
            None => Ok(()),
        }
    }

    /// How long a signal is kept.
    pub(crate) fn kept_ms(&self, signal: &Signal) -> u64 {
        signal.kept_ms.unwrap_or(self.options.signal_kept_ms)
    }

    async fn keep(
        &self,
        scope: TenantScope,
        run: RunId,
        signal: &Signal,
        payload: &Value,
    ) -> Result<Signalled, Turnless> {
        let now = self.host.now();
        let says = Says::Signal { name: signal.name.clone(), payload: payload.clone() };
        let until = now.plus_ms(self.kept_ms(signal));
        let mut along = Along { send: vec![says.kept(run, until)], ..Along::default() };
        along.keys.extend(signal.key(run, payload, Signalled::Kept));
        self.apply(scope, self.commit_of(scope, along, now)).await?;
        self.tell_holder(scope.run(run));
        self.look_at(Some(now));
        Ok(Signalled::Kept)
    }
}
