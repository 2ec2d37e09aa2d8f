//! Flows that are durable runs: their tokens are links to one of their waits.

use std::sync::Arc;
use std::time::Duration;

use stepwell_core::snapshot::ActivationId;
use stepwell_core::{Failure, Name, Refusal, RunId, Snapshot, Timestamp};
use stepwell_store::{
    HandleChange, HandleKind, HandleRow, HandleWrite, KeyWrite, Record, RecordQuery, Refused, Status,
    TenantScope,
};

use super::answer::{Answer, FlowError, Pause, pauses};
use super::flows::{Flows, Shared};
use super::outlet::{Outgoing, Posted, SEND_LEASE_MS};
use super::post;
use super::rest::{Kept, LinkState, Resting, Restless, Watching, message_of};
use super::resume::{Asked, RETRY_AFTER_MS, Resume, check_form, chosen, event_of};
use super::strategy::{Durable, Strategy, WATCH};
use super::token::{self, Purpose, Secret};
use crate::actor::Permission;
use crate::error::EngineError;
use crate::standing::{Along, Standing};
use crate::start::Start;
use crate::turn::{MAX_TRIES, Turnless};

/// The operation under which the answer of a run is kept that was promised a token.
const SETTLED: &str = "flow.settled";
/// How long is waited before a run is looked at again; it grows.
const LOOK_MS: u64 = 1;
const LOOK_MS_MOST: u64 = 50;

/// A link to a wait of a durable run.
#[derive(Debug, Clone)]
pub struct LinkTo {
    run: RunId,
    place: Option<Name>,
    outcomes: Vec<Name>,
    ttl_ms: Option<u64>,
}

impl LinkTo {
    /// A wait of this run: the only one it has.
    pub fn new(run: RunId) -> Self {
        LinkTo { run, place: None, outcomes: Vec::new(), ttl_ms: None }
    }

    /// The wait in this place.
    #[must_use]
    pub fn place(mut self, place: impl Into<Name>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// This can be answered by it; without any, all that the place takes.
    #[must_use]
    pub fn outcome(mut self, outcome: impl Into<Name>) -> Self {
        self.outcomes.push(outcome.into());
        self
    }

    /// How long it is good; without this, as long as its strategy says.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = Some(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        self
    }
}

impl Flows {
    /// Starts a durable run and waits for its first pause.
    pub(crate) async fn start_durable(
        &self,
        name: &str,
        durable: &Durable,
        start: Start,
        asked: Option<&Asked>,
    ) -> Result<Answer, FlowError> {
        let run = match self.engine.start_once(start).await {
            Err(EngineError::KeyReused { key, .. }) => return Err(FlowError::KeyReused { key }),
            started => started?.run.id(),
        };
        let next = Secret::new(self.engine.scope.tenant())?;
        if let Some(asked) = asked
            && let Some(answer) = self.promise(asked, run, next.token(name)).await?
        {
            return Ok(answer);
        }
        let standing = self.settled(run, durable).await?;
        self.answer_of(name, durable, &standing, next, asked.map(|asked| asked.key.as_str())).await
    }

    /// Keeps which token the answer to a request will have; gives the answer if somebody else has.
    async fn promise(&self, asked: &Asked, run: RunId, token: String) -> Result<Option<Answer>, FlowError> {
        let inner = &self.engine.inner;
        let now = inner.host.now();
        let kept = self.keep(asked, &Kept::Link { run, token }, now)?;
        let along = Along { keys: vec![kept], ..Along::default() };
        match inner.apply(self.engine.scope, inner.commit_of(self.engine.scope, along, now)).await {
            Ok(_) => Ok(None),
            Err(Turnless::Refused(Refused::Done { answer, .. })) => {
                self.replayed(&asked.key, &answer).await.map(Some)
            }
            Err(Turnless::Refused(Refused::KeyReused { key, .. })) => Err(FlowError::KeyReused { key }),
            Err(turnless) => Err(EngineError::from(turnless).into()),
        }
    }

    /// Waits until a run has nothing more to do by itself, for so long at most.
    async fn settled(&self, run: RunId, durable: &Durable) -> Result<Standing, FlowError> {
        let inner = &self.engine.inner;
        let until = tokio::time::Instant::now() + Duration::from_millis(durable.settle_ms);
        let mut pause_ms = LOOK_MS;
        loop {
            let standing = inner.load(self.engine.scope, run).await?;
            let due = standing.head.wake.is_some_and(|wake| wake <= inner.host.now());
            let goes_on = standing.head.owner.is_some() || standing.head.status == Status::Running || due;
            let is_over = standing.snapshot.is_terminal() || standing.ledger.stopped.is_some();
            if is_over || !goes_on || tokio::time::Instant::now() >= until {
                return Ok(standing);
            }
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            pause_ms = (pause_ms * 2).min(LOOK_MS_MOST);
        }
    }

    /// How a run stands, with a link to what it waits for, under this secret. The answer to a request with a key is kept with
    /// the link, which is put once: what was used does not come back.
    async fn answer_of(
        &self,
        name: &str,
        durable: &Durable,
        standing: &Standing,
        secret: Secret,
        key: Option<&str>,
    ) -> Result<Answer, FlowError> {
        let mut answer = answer_for(name, standing);
        let (inner, now) = (&self.engine.inner, self.engine.inner.host.now());
        let Some(pause) = answer.waits.first().cloned() else { return Ok(answer) };
        if answer.status != Status::Waiting {
            return Ok(answer);
        }
        let by = self.engine.actor_id();
        let expires_at = durable.ttl_ms.map(|ttl| now.plus_ms(ttl));
        let resting =
            Resting { name, created_at: now, created_by: by, now, expires_at, latest: None, outgoing: None };
        answer.expires_at = expires_at;
        let is_sent = is_sent_out(&standing.snapshot, pause.activation);
        let mut along = Along::default();
        if is_sent || !pause.answerers.is_empty() {
            // Somebody else is to answer: whoever is here sees that it waits.
            answer.token = Some(self.watch(&resting, &answer, None, None)?);
            answer.only_shows = true;
        } else {
            let mut row = resting.row(secret.hash(name), HandleKind::Link, standing, self.engine.actor_id());
            row.state = LinkState { activation: pause.activation, outcomes: Vec::new() }.written();
            along.handles.push(put_link(row));
            answer.token = Some(secret.token(name));
        }
        if let Some(key) = key {
            along.keys.push(self.keep_settled(key, &answer, now)?);
        }
        if along.handles.is_empty() && along.keys.is_empty() {
            return Ok(answer);
        }
        let scope = self.engine.scope;
        match inner.apply(scope, inner.commit_of(scope, along, now)).await {
            Ok(_) => Ok(answer),
            Err(Turnless::Refused(Refused::Done { key, answer, .. })) => self.replayed(&key, &answer).await,
            Err(turnless) => Err(EngineError::from(turnless).into()),
        }
    }

    /// The record of an answer that was promised a token.
    fn keep_settled(&self, key: &str, answer: &Answer, now: Timestamp) -> Result<KeyWrite, EngineError> {
        let asked = Asked { key: key.to_owned(), request: [0; 32] };
        Ok(KeyWrite { operation: SETTLED.to_owned(), ..self.kept(&asked, answer, now)? })
    }

    /// Makes a link to a wait of a durable run: a token that answers it, once.
    pub async fn link(&self, to: LinkTo) -> Result<String, FlowError> {
        self.engine.permit(Permission::Manage)?;
        let wrong = |why: String| FlowError::Engine(EngineError::Invalid(why));
        let Some((name, durable)) = self.shared.durable() else {
            return Err(wrong(
                "there is no durable strategy under whose name a link could be made".to_owned(),
            ));
        };
        if to.ttl_ms == Some(0) {
            return Err(wrong("the TTL of the link is 0: it would be over at once".to_owned()));
        }
        let inner = &self.engine.inner;
        let standing = inner.load(self.engine.scope, to.run).await?;
        let waits = pauses(standing.definition(), &standing.snapshot);
        let fits = |pause: &&Pause| to.place.as_ref().is_none_or(|place| *place == pause.place);
        let fitting: Vec<&Pause> = waits.iter().filter(fits).collect();
        let [pause] = fitting[..] else {
            let places: Vec<_> = waits.iter().map(|pause| format!("`{}`", pause.place)).collect();
            let places =
                if places.is_empty() { "nowhere".to_owned() } else { format!("in {}", places.join(", ")) };
            return Err(wrong(format!("run {} waits {places}: say which place is meant", to.run)));
        };
        if let Some(unknown) = to.outcomes.iter().find(|outcome| !pause.outcomes.contains(outcome)) {
            let (given, outcomes) = (Some(unknown.to_string()), pause.outcomes.clone());
            return Err(FlowError::Outcome { given, outcomes });
        }
        let now = inner.host.now();
        let expires_at = to.ttl_ms.or(durable.ttl_ms).map(|ttl| now.plus_ms(ttl));
        let by = self.engine.actor_id();
        let resting =
            Resting { name, created_at: now, created_by: by, now, expires_at, latest: None, outgoing: None };
        let secret = Secret::new(self.engine.scope.tenant())?;
        let mut row = resting.row(secret.hash(name), HandleKind::Link, &standing, self.engine.actor_id());
        row.state = LinkState { activation: pause.activation, outcomes: to.outcomes }.written();
        let along = Along { handles: vec![put_link(row)], ..Along::default() };
        let commit = inner.commit_of(self.engine.scope, along, now);
        inner.apply(self.engine.scope, commit).await.map_err(EngineError::from)?;
        Ok(secret.token(name))
    }

    /// A durable run is answered by a link: the link is used up in the commit that takes the answer.
    pub(crate) async fn resume_link(
        &self,
        name: &str,
        durable: &Durable,
        mut row: HandleRow,
        resume: &Resume,
        asked: Option<&Asked>,
    ) -> Result<Answer, FlowError> {
        let next = Secret::new(self.engine.scope.tenant())?;
        for _ in 0..MAX_TRIES {
            let (standing, link) = self.behind(&row).await?;
            match self.take_answer(&row, &standing, &link, resume, asked, (&next, name)).await {
                Ok(()) => {
                    let standing = self.settled(row.run, durable).await?;
                    let key = asked.map(|asked| asked.key.as_str());
                    return self.answer_of(name, durable, &standing, next, key).await;
                }
                Err(Restless::Unfit(errors)) => {
                    let mut answer = bound(answer_for(name, &standing), &link);
                    answer.token = Some(resume.token().to_owned());
                    answer.expires_at = row.expires_at;
                    answer.errors = errors;
                    return Ok(answer);
                }
                Err(Restless::Again) => {
                    row = self.handle_row(row.handle).await?.ok_or(FlowError::Gone)?;
                }
                Err(Restless::Flow(error)) => return Err(error),
                Err(Restless::Answered(answer)) => return Ok(*answer),
            }
        }
        Err(EngineError::Contended { run: row.run, tries: MAX_TRIES }.into())
    }

    /// The run that a link leads to, if it still waits there.
    async fn behind(&self, row: &HandleRow) -> Result<(Standing, LinkState), FlowError> {
        let standing = match self.engine.inner.load(self.engine.scope, row.run).await {
            Err(EngineError::NoRun(_)) => return Err(FlowError::Gone),
            standing => standing?,
        };
        let link: LinkState = serde_json::from_slice(&row.state)
            .map_err(|error| EngineError::Unreadable { run: row.run, why: error.to_string() })?;
        let waits = pauses(standing.definition(), &standing.snapshot);
        if !waits.iter().any(|pause| pause.activation == link.activation) {
            return Err(FlowError::Gone);
        }
        Ok((standing, link))
    }

    async fn take_answer(
        &self,
        row: &HandleRow,
        standing: &Standing,
        link: &LinkState,
        resume: &Resume,
        asked: Option<&Asked>,
        (next, name): (&Secret, &str),
    ) -> Result<(), Restless> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope);
        let waits = pauses(standing.definition(), &standing.snapshot);
        let here: Vec<Pause> =
            waits.iter().filter(|pause| pause.activation == link.activation).cloned().collect();
        let input = resume.input_value()?;
        let (pause, outcome) = chosen(&here, resume.wanted(), &link.outcomes)?;
        let misfits = check_form(pause, &input);
        if !misfits.is_empty() {
            return Err(Restless::Unfit(misfits));
        }
        let event = event_of(pause, outcome, input.clone());
        let mut moved = match inner.received(standing, &event, &input, true).await {
            Ok(Some(moved)) => moved,
            Ok(None) => return Err(Restless::Again),
            Err(EngineError::Refused(Refusal::PayloadUnfit { misfits, .. })) => {
                return Err(Restless::Unfit(misfits));
            }
            Err(EngineError::Refused(Refusal::NoActiveSource { .. } | Refusal::Terminal)) => {
                return Err(FlowError::Gone.into());
            }
            // Another process has just taken an answer, and works on what comes of it.
            Err(EngineError::NotNow { status: stepwell_store::Status::Running, .. }) => {
                return Err(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS }.into());
            }
            Err(error) => return Err(error.into()),
        };
        let take = HandleWrite { handle: row.handle, expected: Some(row.fence), then: HandleChange::Take };
        moved.along.handles.push(take);
        moved.along.actor = self.engine.actor_id();
        moved.in_order = true;
        if let Some(asked) = asked {
            let kept = Kept::Link { run: row.run, token: next.token(name) };
            moved.along.keys.push(self.keep(asked, &kept, inner.host.now())?);
        }
        match inner.anyone(scope, standing, moved).await {
            Ok(()) => Ok(()),
            Err(Turnless::Moved) => Err(Restless::Again),
            Err(Turnless::Refused(refused)) => match self.refused(refused, asked).await {
                Ok(answer) => Err(Restless::Answered(Box::new(answer))),
                Err(restless) => Err(restless),
            },
            Err(turnless) => Err(EngineError::from(turnless).into()),
        }
    }

    /// The answer to a request that a run had taken: as it was given, or else as the run stands now, with the link that was
    /// promised.
    pub(crate) async fn answered_by_run(
        &self,
        key: &str,
        run: RunId,
        token: &str,
    ) -> Result<Answer, FlowError> {
        let inner = &self.engine.inner;
        let query =
            RecordQuery::Key { operation: SETTLED.to_owned(), key: key.to_owned(), now: inner.host.now() };
        let settled = inner.store.records(self.engine.scope, query).await?.items.pop();
        if let Some(Record::Key(record)) = settled {
            return Box::pin(self.replayed(key, &record.answer.unwrap_or_default())).await;
        }
        let (name, raw) = token::split(token).ok_or(FlowError::Gone)?;
        let secret = Secret::read(raw).ok_or(FlowError::Gone)?;
        let Some(Strategy::Durable(durable)) = self.shared.strategies.by_name.get(name) else {
            return Err(FlowError::Gone);
        };
        let standing = self.settled(run, durable).await?;
        Box::pin(self.answer_of(name, durable, &standing, secret, Some(key))).await
    }

    /// What a link leads to.
    pub(crate) async fn show_link(&self, token: &str, name: &str, raw: &str) -> Result<Answer, FlowError> {
        let row = self.load_handle(name, raw, HandleKind::Link).await?;
        let (standing, link) = self.behind(&row).await?;
        let mut answer = bound(answer_for(name, &standing), &link);
        answer.token = Some(token.to_owned());
        answer.expires_at = row.expires_at;
        Ok(answer)
    }

    /// What a token shows that resumes nothing.
    pub(crate) async fn watched(&self, token: &str, raw: &str) -> Result<Answer, FlowError> {
        let inner = &self.engine.inner;
        let unsealed = token::open(&self.shared.ring, WATCH, raw, inner.limits()).ok_or(FlowError::Gone)?;
        let is_ours = unsealed.tenant == self.engine.scope.tenant() && unsealed.purpose == Purpose::Watch;
        let is_over = unsealed.claims.expires_at <= inner.host.now();
        if !is_ours || is_over || !self.shared.is_allowed(&unsealed.workflow) {
            return Err(FlowError::Gone);
        }
        let watching: Watching = serde_json::from_slice(&unsealed.state).map_err(|_| FlowError::Gone)?;
        let status = match &watching.handle {
            Some(handle) => {
                let hash = stepwell_store::HandleHash::parse(handle).ok_or(FlowError::Gone)?;
                self.handle_row(hash).await?.ok_or(FlowError::Gone)?;
                Status::Waiting
            }
            None if matches!(
                self.shared.strategies.by_name.get(&watching.strategy),
                Some(Strategy::Durable(_))
            ) =>
            {
                match inner.load(self.engine.scope, watching.flow).await {
                    Ok(standing) => standing.head.status,
                    Err(EngineError::NoRun(_)) => return Err(FlowError::Gone),
                    Err(error) => return Err(error.into()),
                }
            }
            None => Status::Waiting,
        };
        Ok(Answer {
            flow: watching.flow,
            workflow: unsealed.workflow,
            status,
            rests: Some(watching.strategy),
            token: Some(token.to_owned()),
            only_shows: true,
            expires_at: Some(unsealed.claims.expires_at).filter(|at| *at < Timestamp::MAX),
            waits: Vec::new(),
            errors: Vec::new(),
            sent: watching.outlet,
            result: None,
            error: None,
            is_replayed: false,
        })
    }
}

/// A link is put.
fn put_link(row: HandleRow) -> HandleWrite {
    HandleWrite { handle: row.handle, expected: None, then: HandleChange::Put(Box::new(row), Vec::new()) }
}

fn answer_for(name: &str, standing: &Standing) -> Answer {
    let mut answer = Answer::of(standing.definition(), &standing.snapshot, standing.head.status);
    answer.error = standing.ledger.stopped.clone().map(|stopped| stopped.error);
    answer.rests = (!standing.snapshot.is_terminal()).then(|| name.to_owned());
    answer
}

/// A link shows what it is bound to, and nothing else.
fn bound(mut answer: Answer, link: &LinkState) -> Answer {
    answer.waits.retain(|pause| pause.activation == link.activation);
    for pause in &mut answer.waits {
        pause.outcomes.retain(|outcome| link.outcomes.is_empty() || link.outcomes.contains(outcome));
    }
    answer
}

/// The local under which an activation is told that its link was sent out.
const SENT: &str = "__sent";

/// What answers this activation was sent to somebody. Those that come after it inherit its locals.
fn is_sent_out(snapshot: &Snapshot, id: ActivationId) -> bool {
    let mark = snapshot.activation(id).and_then(|activation| activation.locals.get(SENT));
    mark.and_then(serde_json::Value::as_u64) == Some(id)
}

/// Where somebody could answer after a change who could not before.
fn newly_asked(before: &Standing, after: &Snapshot) -> Option<Pause> {
    let is_new = |pause: &Pause| before.snapshot.activation(pause.activation).is_none();
    pauses(before.definition(), after).into_iter().find(is_new)
}

impl Shared {
    /// What an action of a durable run sends out: a link to the wait that its transition leads to, kept until it is sent.
    pub(crate) fn sent_out(
        self: &Arc<Self>,
        scope: TenantScope,
        outgoing: &Outgoing,
        before: &Standing,
        after: &Snapshot,
        now: Timestamp,
    ) -> Result<HandleWrite, Failure> {
        let wrong = |why: String| Failure::new("cannotSend", why).finally();
        self.outlet(&outgoing.outlet).map_err(|error| wrong(error.to_string()))?;
        let Some((name, durable)) = self.durable() else {
            return Err(wrong(
                "there is no durable strategy under whose name a link could be made".to_owned(),
            ));
        };
        let Some(pause) = newly_asked(before, after) else {
            return Err(wrong("its transition leads to no place where somebody could answer".to_owned()));
        };
        if let Some(unknown) = outgoing.outcomes.iter().find(|outcome| !pause.outcomes.contains(outcome)) {
            return Err(wrong(format!("`{unknown}` cannot be answered in `{}`", pause.place)));
        }
        let expires_at = outgoing.ttl_ms.or(durable.ttl_ms).map(|ttl| now.plus_ms(ttl));
        let secret = Secret::new(scope.tenant()).map_err(|error| wrong(error.to_string()))?;
        let handle = secret.hash(name);
        let mut answer = Answer::of(before.definition(), after, Status::Waiting);
        answer.waits = vec![pause.clone()];
        let message = message_of(scope.tenant(), outgoing, &answer, secret.token(name), expires_at);
        let posted = Posted { outlet: outgoing.outlet.clone(), message, tries: 0 };
        let by = before.workflow.publisher().map(|actor| actor.id.clone());
        let created_by = by.clone();
        let resting =
            Resting { name, created_at: now, created_by, now, expires_at, latest: None, outgoing: None };
        let mut row = resting.row(handle, HandleKind::Link, before, by);
        row.state = LinkState { activation: pause.activation, outcomes: outgoing.outcomes.clone() }.written();
        row.deliver_at = Some(now.plus_ms(SEND_LEASE_MS));
        row.delivery = Some(post::sealed(self, scope, &handle, &posted));
        Ok(put_link(row))
    }
}

/// What an action that sends something out tells the place that its transition leads to: that it did.
pub(crate) fn sent_mark(before: &Standing, after: &Snapshot) -> Option<(&'static str, serde_json::Value)> {
    newly_asked(before, after).map(|pause| (SENT, pause.activation.into()))
}
