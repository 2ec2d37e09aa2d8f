//! A flow comes to rest: what it was resumed by is used up, what its steps have staged is written, and it is put where it rests
//! next. One commit, or none if there is nothing to write.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stepwell_core::schema::Misfit;
use stepwell_core::snapshot::Finished;
use stepwell_core::{Failure, Name, RunId, Snapshot, Timestamp};
use stepwell_store::{
    CellError, HandleChange, HandleHash, HandleKind, HandleRow, HandleWrite, KeyWrite, Lives, NewRun,
    RecordQuery, Refused, Status, TenantId,
};

use super::answer::{Answer, FlowError};
use super::flows::Flows;
use super::outlet::{Message, Outgoing, Posted, SEND_LEASE_MS};
use super::pass::{Pass, Passless};
use super::post;
use super::resume::{Asked, FLOW, Taking};
use super::strategy::{Strategy, WATCH};
use super::token::{self, Bound, Claims, Purpose, Secret};
use crate::error::EngineError;
use crate::lists;
use crate::standing::Along;
use crate::turn::{Turnless, open_waits_of};

/// The operation under which it is kept that a sealed token was used.
const SEALED: &str = "sealed";
/// How often a sealed flow's message is tried before its sender is told.
const SENDS_AT_ONCE: u32 = 3;

/// What a flow was resumed by.
pub(crate) enum Origin {
    /// Nothing: it begins.
    Begun,
    /// A sealed token.
    Sealed { claims: Claims, flow: RunId, version: u64, is_once: bool },
    /// A handle.
    Handle { row: Box<HandleRow>, before: Arc<Snapshot> },
}

impl Origin {
    pub(crate) fn expires_at(&self) -> Option<Timestamp> {
        match self {
            Origin::Begun => None,
            Origin::Sealed { claims, .. } => Some(claims.expires_at),
            Origin::Handle { row, .. } => row.expires_at,
        }
    }

    /// The same, as it stands after it was reserved.
    pub(crate) fn taken_by(&self, taking: Option<&Taking>) -> Origin {
        match self {
            Origin::Begun => Origin::Begun,
            Origin::Sealed { claims, flow, version, is_once } => {
                Origin::Sealed { claims: claims.clone(), flow: *flow, version: *version, is_once: *is_once }
            }
            Origin::Handle { row, before } => Origin::Handle {
                row: taking.map_or_else(|| row.clone(), |taking| Box::new(taking.row.clone())),
                before: before.clone(),
            },
        }
    }

    /// When the flow began, and who began it.
    fn created(&self) -> Option<(Timestamp, Option<String>)> {
        match self {
            Origin::Begun => None,
            Origin::Sealed { claims, .. } => Some((claims.created_at, claims.created_by.clone())),
            Origin::Handle { row, .. } => Some((row.created_at, row.created_by.clone())),
        }
    }
}

/// Why a flow did not come to rest. It is where it was.
pub(crate) enum Restless {
    /// What was given is wrong.
    Unfit(Vec<Misfit>),
    /// Something has changed since it was read.
    Again,
    /// The same request was answered before.
    Answered(Box<Answer>),
    /// It cannot.
    Flow(FlowError),
}

impl<E: Into<FlowError>> From<E> for Restless {
    fn from(error: E) -> Self {
        Restless::Flow(error.into())
    }
}

impl From<Passless> for Restless {
    fn from(passless: Passless) -> Self {
        match passless {
            Passless::Unfit(errors) => Restless::Unfit(errors),
            Passless::Again => Restless::Again,
            Passless::Failed(failure) => Restless::Flow(FlowError::Failed(failure)),
            Passless::Refused(refusal) => Restless::Flow(FlowError::Refused(refusal)),
            Passless::Engine(error) => Restless::Flow(FlowError::Engine(error)),
        }
    }
}

/// What a token that only shows something says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Watching {
    pub(crate) strategy: String,
    pub(crate) flow: RunId,
    pub(crate) place: Option<Name>,
    /// The handle that what it waits for is behind.
    pub(crate) handle: Option<String>,
    pub(crate) outlet: Option<String>,
}

/// What a link to a wait of a durable run is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkState {
    pub(crate) activation: u64,
    /// What may be answered; none = all that the place takes.
    pub(crate) outcomes: Vec<Name>,
}

impl LinkState {
    pub(crate) fn written(&self) -> Bytes {
        serde_json::to_vec(self).expect("a link is plain data").into()
    }
}

/// Where the flow rests next, in the making.
pub(crate) struct Resting<'p> {
    pub(crate) name: &'p str,
    pub(crate) created_at: Timestamp,
    pub(crate) created_by: Option<String>,
    pub(crate) now: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    /// When every token is over that this pause may have.
    pub(crate) latest: Option<Timestamp>,
    pub(crate) outgoing: Option<&'p Outgoing>,
}

impl Resting<'_> {
    /// A handle's row, without what it holds; `by` writes it.
    pub(crate) fn row(
        &self,
        handle: HandleHash,
        kind: HandleKind,
        standing: &crate::standing::Standing,
        by: Option<String>,
    ) -> HandleRow {
        HandleRow {
            handle,
            kind,
            run: standing.run(),
            workflow: standing.definition().name().clone(),
            definition: standing.definition().hash(),
            state: Bytes::new(),
            expires_at: self.expires_at,
            owner: None,
            fence: 0,
            deliver_at: None,
            delivery: None,
            created_at: self.created_at,
            created_by: self.created_by.clone(),
            updated_at: self.now,
            updated_by: by,
            commit: stepwell_store::CommitId(uuid::Uuid::nil()),
        }
    }

    /// The same for a token that only shows something.
    fn watch(&self) -> Resting<'_> {
        Resting { outgoing: None, latest: None, created_by: self.created_by.clone(), ..*self }
    }
}

impl Flows {
    /// The pass has come somewhere, or it has not.
    pub(crate) async fn rested(
        &self,
        came: Result<(), Passless>,
        pass: &mut Pass<'_>,
        origin: &Origin,
        current: &str,
        asked: Option<&Asked>,
    ) -> Result<Answer, Restless> {
        came?;
        let inner = &self.engine.inner;
        let scope = self.engine.scope;
        let now = inner.host.now();
        let mut along = pass.staged();
        let mut is_written = !is_nothing(&along);
        let mut answer = Answer::of(
            pass.standing.definition(),
            &pass.standing.snapshot,
            status_of(&pass.standing.snapshot),
        );
        let mut posted = None;
        if let Origin::Handle { row, .. } = origin {
            let take =
                HandleWrite { handle: row.handle, expected: Some(row.fence), then: HandleChange::Take };
            along.handles.push(take);
            is_written = true;
        }
        if let (true, Some(outgoing)) = (pass.standing.snapshot.is_terminal(), &pass.outgoing) {
            let why = format!("`{}` has nothing to send: the flow ends without a pause", outgoing.outlet);
            return Err(FlowError::Failed(Failure::new("cannotSend", why).finally()).into());
        }
        if !pass.standing.snapshot.is_terminal() {
            let name = pass.swap.clone().unwrap_or_else(|| current.to_owned());
            let put = self.put(pass, origin, &name, &mut along, &mut answer, now)?;
            is_written |= put.is_written;
            posted = put.posted;
        }
        if let Origin::Sealed { claims, flow, version, is_once } = origin
            && (is_written || *is_once)
        {
            along.keys.insert(0, consumed(*flow, *version, claims.all_over_at()));
            is_written = true;
        }
        if is_written {
            let by = self.engine.actor_id();
            along.actor = along.actor.take().or(by);
            if let Some(asked) = asked {
                let kept = self.kept(asked, &answer, now)?;
                along.keys.insert(0, kept);
            }
            if let Err(turnless) = inner.apply(scope, inner.commit_of(scope, along, now)).await {
                return self.not_committed(turnless, asked).await;
            }
        }
        match posted {
            Some(Post::Sealed(posted)) => self.send_now(&posted).await?,
            // Whoever has committed it knows.
            Some(Post::Kept) | None => {}
        }
        Ok(answer)
    }

    /// Puts the flow where it rests next.
    fn put(
        &self,
        pass: &mut Pass<'_>,
        origin: &Origin,
        name: &str,
        along: &mut Along,
        answer: &mut Answer,
        now: Timestamp,
    ) -> Result<Put, Restless> {
        let strategy = self.shared.strategies.get(name)?;
        if let Some(error) = strategy.refuses(name, pass.standing.definition()) {
            return Err(error.into());
        }
        let by = self.engine.actor_id();
        let (created_at, created_by) = origin.created().unwrap_or((now, by));
        let outgoing = pass.outgoing.take();
        if let Some(outgoing) = &outgoing {
            self.outlet(&outgoing.outlet)?;
            let is_link = matches!(strategy, Strategy::Durable(_));
            if !is_link && !outgoing.outcomes.is_empty() {
                let why = "only what leads to a durable run can be bound to outcomes";
                return Err(EngineError::Invalid(why.to_owned()).into());
            }
        }
        let ttl_ms = outgoing.as_ref().and_then(|outgoing| outgoing.ttl_ms).or(strategy.ttl_ms());
        let expires_at = ttl_ms.map(|ttl| now.plus_ms(ttl));
        let latest = match origin {
            // It is not used up: as long as it is good, it makes another one of what is made here.
            Origin::Sealed { claims, is_once: false, .. } if is_nothing(along) => {
                ttl_ms.map(|ttl| claims.all_over_at().plus_ms(ttl))
            }
            Origin::Begun | Origin::Sealed { .. } | Origin::Handle { .. } => None,
        };
        let outgoing = outgoing.as_ref();
        let resting = Resting { name, created_at, created_by, now, expires_at, latest, outgoing };
        answer.rests = Some(name.to_owned());
        answer.expires_at = expires_at;
        match strategy {
            Strategy::Sealed(sealed) => {
                let state = self.state_of(&pass.standing.snapshot)?;
                let token = self.token_of(&resting, answer, &state, Purpose::Resume, sealed.compresses)?;
                let is_once = matches!(origin, Origin::Sealed { is_once: true, .. });
                if resting.outgoing.is_some() && (is_once || !is_nothing(along)) {
                    return self.put_message(pass, &resting, token, along, answer);
                }
                return self.hand_out(&resting, token, answer, None);
            }
            Strategy::Handle(_) | Strategy::Durable(_) => {}
        }
        if let Origin::Sealed { claims, flow, .. } = origin {
            let sealed_until = now.plus_ms(self.shared.longest_sealed_ms().unwrap_or(0).saturating_mul(2));
            along.keys.push(left(*flow, claims.all_over_at().max(sealed_until)));
        }
        match strategy {
            Strategy::Durable(_) => self.put_durable(pass, origin, &resting, along, answer),
            _ => self.put_behind(pass, origin, &resting, along, answer),
        }
    }

    /// In a token that is sent out: what is written uses up what the flow was resumed by, so that the message has to be kept
    /// until it is sent, in a row that nothing else leads to.
    fn put_message(
        &self,
        pass: &Pass<'_>,
        resting: &Resting<'_>,
        token: String,
        along: &mut Along,
        answer: &mut Answer,
    ) -> Result<Put, Restless> {
        let handle = Secret::new(self.engine.scope.tenant())?.hash(resting.name);
        let mut row = resting.row(handle, HandleKind::Link, &pass.standing, self.engine.actor_id());
        let activation = answer.waits.first().map_or(0, |pause| pause.activation);
        row.state = LinkState { activation, outcomes: Vec::new() }.written();
        let put = self.hand_out(resting, token, answer, Some(&mut row))?;
        let then = HandleChange::Put(Box::new(row), Vec::new());
        along.handles.push(HandleWrite { handle, expected: None, then });
        Ok(put)
    }

    /// Behind a handle: a new secret for each pause.
    fn put_behind(
        &self,
        pass: &Pass<'_>,
        origin: &Origin,
        resting: &Resting<'_>,
        along: &mut Along,
        answer: &mut Answer,
    ) -> Result<Put, Restless> {
        let inner = &self.engine.inner;
        let standing = &pass.standing;
        let secret = Secret::new(self.engine.scope.tenant())?;
        let hash = secret.hash(resting.name);
        let mut row = resting.row(hash, HandleKind::Flow, standing, self.engine.actor_id());
        row.state = self.state_of(&standing.snapshot)?;
        let before = match origin {
            Origin::Handle { before, .. } => Some(before.context()),
            Origin::Begun | Origin::Sealed { .. } => None,
        };
        let shadows = inner.shadows(&standing.workflow, before, standing.snapshot.context());
        along.definitions.push(standing.workflow.clone());
        let put = self.hand_out(resting, secret.token(resting.name), answer, Some(&mut row))?;
        let then = HandleChange::Put(Box::new(row), shadows);
        along.handles.push(HandleWrite { handle: hash, expected: None, then });
        Ok(put)
    }

    /// As a durable run under the flow's own id, at the version it has.
    fn put_durable(
        &self,
        pass: &mut Pass<'_>,
        origin: &Origin,
        resting: &Resting<'_>,
        along: &mut Along,
        answer: &mut Answer,
    ) -> Result<Put, Restless> {
        let inner = &self.engine.inner;
        let entry = pass.entry.take();
        let standing = &pass.standing;
        let entry = entry.ok_or_else(|| EngineError::Invalid("the flow has not moved".to_owned()))?;
        let first = inner.checkpoint(&standing.snapshot, &entry).map_err(EngineError::from)?;
        let before = match origin {
            Origin::Handle { before, .. } => Some(before.context()),
            Origin::Begun | Origin::Sealed { .. } => None,
        };
        along.definitions.push(standing.workflow.clone());
        along.documents.extend(lists::kept(standing.run(), None, &standing.snapshot));
        along.create.push(NewRun {
            run: standing.run(),
            workflow: standing.definition().name().clone(),
            definition: standing.definition().hash(),
            version: standing.snapshot.version(),
            first,
            status: Status::Waiting,
            // A wait for an event asks for those that have come before it.
            wake: match standing.workflow.has_events {
                true => Some(resting.now),
                false => standing.snapshot.next_due(resting.now),
            },
            owner: None,
            parent: None,
            root: standing.run(),
            attempt: None,
            open: open_waits_of(standing.definition(), &standing.snapshot),
            shadows: inner.shadows(&standing.workflow, before, standing.snapshot.context()),
        });
        let Some(pause) = answer.waits.first().cloned() else {
            return Ok(Put { is_written: true, posted: None });
        };
        if resting.outgoing.is_none() && !pause.answerers.is_empty() {
            // Somebody else is to answer: whoever is here sees that it waits.
            answer.token = Some(self.watch(&resting.watch(), answer, None, None)?);
            answer.only_shows = true;
            return Ok(Put { is_written: true, posted: None });
        }
        let only = resting.outgoing.map(|outgoing| outgoing.outcomes.clone()).unwrap_or_default();
        let secret = Secret::new(self.engine.scope.tenant())?;
        let mut row =
            resting.row(secret.hash(resting.name), HandleKind::Link, standing, self.engine.actor_id());
        row.state = LinkState { activation: pause.activation, outcomes: only }.written();
        let put = self.hand_out(resting, secret.token(resting.name), answer, Some(&mut row))?;
        let handle = row.handle;
        let then = HandleChange::Put(Box::new(row), Vec::new());
        along.handles.push(HandleWrite { handle, expected: None, then });
        Ok(put)
    }

    /// Whoever resumed the flow gets what resumes it next, or, if that is sent to somebody, what only shows that it waits.
    fn hand_out(
        &self,
        resting: &Resting<'_>,
        token: String,
        answer: &mut Answer,
        row: Option<&mut HandleRow>,
    ) -> Result<Put, Restless> {
        let is_written = row.is_some();
        let Some(outgoing) = resting.outgoing else {
            answer.token = Some(token);
            return Ok(Put { is_written, posted: None });
        };
        let message = message_of(self.engine.scope.tenant(), outgoing, answer, token, resting.expires_at);
        let posted = Posted { outlet: outgoing.outlet.clone(), message, tries: 0 };
        let handle = row.as_ref().map(|row| row.handle);
        answer.token = Some(self.watch(&resting.watch(), answer, handle, Some(&outgoing.outlet))?);
        answer.only_shows = true;
        answer.sent = Some(outgoing.outlet.clone());
        let posted = match row {
            None => Post::Sealed(Box::new(posted)),
            Some(row) => {
                // It is sent right after the commit; if that does not come about, by somebody else.
                row.deliver_at = Some(resting.now.plus_ms(SEND_LEASE_MS));
                row.delivery = Some(post::sealed(&self.shared, self.engine.scope, &row.handle, &posted));
                Post::Kept
            }
        };
        Ok(Put { is_written, posted: Some(posted) })
    }

    /// A token that only shows that the flow waits.
    pub(crate) fn watch(
        &self,
        resting: &Resting<'_>,
        answer: &Answer,
        handle: Option<HandleHash>,
        outlet: Option<&str>,
    ) -> Result<String, EngineError> {
        let watching = Watching {
            strategy: resting.name.to_owned(),
            flow: answer.flow,
            place: answer.waits.first().map(|pause| pause.place.clone()),
            handle: handle.map(|handle| handle.to_string()),
            outlet: outlet.map(str::to_owned),
        };
        let watching = serde_json::to_vec(&watching).expect("what is watched is plain data");
        self.token_of(resting, answer, &watching, Purpose::Watch, false)
    }

    fn token_of(
        &self,
        resting: &Resting<'_>,
        answer: &Answer,
        state: &[u8],
        purpose: Purpose,
        compress: bool,
    ) -> Result<String, EngineError> {
        let inner = &self.engine.inner;
        let name = if purpose == Purpose::Watch { WATCH } else { resting.name };
        let bound = Bound { name, tenant: self.engine.scope.tenant(), workflow: &answer.workflow, purpose };
        let claims = Claims {
            issued_at: resting.now,
            expires_at: resting.expires_at.unwrap_or(Timestamp::MAX),
            latest: resting.latest.map(Timestamp::micros),
            created_at: resting.created_at,
            created_by: resting.created_by.clone(),
            is_compressed: false,
        };
        Ok(token::seal(&self.shared.ring, bound, claims, state, compress, inner.limits())?)
    }

    /// A state that has not rested before, sealed.
    pub(crate) fn sealed(
        &self,
        name: &str,
        sealed: &super::strategy::Sealed,
        snapshot: &Snapshot,
    ) -> Result<String, FlowError> {
        let inner = &self.engine.inner;
        let now = inner.host.now();
        let bound = Bound {
            name,
            tenant: self.engine.scope.tenant(),
            workflow: snapshot.workflow(),
            purpose: Purpose::Resume,
        };
        let claims = Claims {
            issued_at: now,
            expires_at: now.plus_ms(sealed.ttl_ms),
            latest: None,
            created_at: snapshot.created_at(),
            created_by: self.engine.actor_id(),
            is_compressed: false,
        };
        let state = snapshot.encode(inner.limits()).map_err(EngineError::from)?;
        let token = token::seal(&self.shared.ring, bound, claims, &state, sealed.compresses, inner.limits());
        Ok(token.map_err(EngineError::from)?)
    }

    fn state_of(&self, snapshot: &Snapshot) -> Result<Bytes, EngineError> {
        Ok(snapshot.encode(self.engine.inner.limits())?.into())
    }
}

/// What a flow's new resting place asks for.
pub(crate) struct Put {
    is_written: bool,
    posted: Option<Post>,
}

/// What is to be sent out.
enum Post {
    /// By whoever has sealed it: nothing else has it.
    Sealed(Box<Posted>),
    /// It is kept with its handle until it is sent.
    Kept,
}

/// What is kept under a request's key.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Kept {
    /// The answer.
    Answer(Box<Answer>),
    /// The request was taken by a durable run, whose next link has this token.
    Link {
        /// The run.
        run: RunId,
        /// The token.
        token: String,
    },
}

impl Flows {
    /// The record of an answer: sealed, because the next token is in it.
    pub(crate) fn kept(
        &self,
        asked: &Asked,
        answer: &Answer,
        now: Timestamp,
    ) -> Result<KeyWrite, EngineError> {
        self.keep(asked, &Kept::Answer(Box::new(answer.clone())), now)
    }

    pub(crate) fn keep(&self, asked: &Asked, kept: &Kept, now: Timestamp) -> Result<KeyWrite, EngineError> {
        let text = serde_json::to_string(kept).expect("an answer is plain data");
        let sealed = self.shared.ring.seal(&text, "", &self.bound_answer(&asked.key));
        Ok(KeyWrite {
            operation: FLOW.to_owned(),
            key: asked.key.clone(),
            request: asked.request,
            answer: sealed.into(),
            lives: Lives::Until(now.plus_ms(self.engine.inner.options.keys_kept_ms)),
        })
    }

    fn bound_answer(&self, key: &str) -> Vec<u8> {
        format!("stepwell answer\0{}\0{key}", self.engine.scope.tenant()).into_bytes()
    }

    /// The answer that is kept under a key, once more.
    pub(crate) async fn replayed(&self, key: &str, sealed: &[u8]) -> Result<Answer, FlowError> {
        let bound = self.bound_answer(key);
        let opened =
            std::str::from_utf8(sealed).ok().and_then(|text| self.shared.ring.open(text, |_| Some(bound)));
        // The key it was sealed under is revoked: what it says is not to be known any more.
        let opened = opened.ok_or(FlowError::Gone)?;
        let kept: Kept = serde_json::from_str(&opened).map_err(|error| {
            FlowError::Engine(EngineError::Invalid(format!(
                "the answer kept under `{key}` cannot be read: {error}"
            )))
        })?;
        let answer = match kept {
            Kept::Answer(answer) => *answer,
            Kept::Link { run, token } => self.answered_by_run(key, run, &token).await?,
        };
        Ok(Answer { is_replayed: true, ..answer })
    }

    /// What it means that the commit was refused.
    async fn not_committed(&self, turnless: Turnless, asked: Option<&Asked>) -> Result<Answer, Restless> {
        match turnless {
            Turnless::Moved => Err(Restless::Again),
            Turnless::Refused(refused) => self.refused(refused, asked).await,
            turnless => Err(EngineError::from(turnless).into()),
        }
    }

    pub(crate) async fn refused(&self, refused: Refused, asked: Option<&Asked>) -> Result<Answer, Restless> {
        match (refused, asked) {
            (Refused::Done { operation, answer, .. }, Some(asked)) if operation == FLOW => {
                Ok(self.replayed(&asked.key, &answer).await?)
            }
            (Refused::KeyReused { operation, key }, _) if operation == FLOW => {
                Err(FlowError::KeyReused { key }.into())
            }
            (Refused::Done { operation, .. }, _) if operation == SEALED => Err(FlowError::Gone.into()),
            // Something else that happens once was done meanwhile: the next pass finds it.
            (Refused::Done { .. }, _) => Err(Restless::Again),
            (Refused::Handle { actual: None, .. } | Refused::RunExists { .. }, _) => {
                Err(FlowError::Gone.into())
            }
            (Refused::Handle { .. } | Refused::Cell { error: CellError::Conflict { .. }, .. }, _) => {
                Err(Restless::Again)
            }
            (refused, _) => {
                let failure = Failure::new("refused", refused.to_string()).finally();
                Err(FlowError::Failed(failure).into())
            }
        }
    }

    /// A sealed flow has no row to keep what is to be sent: it is tried while its sender waits.
    async fn send_now(&self, posted: &Posted) -> Result<(), FlowError> {
        let outlet = self.outlet(&posted.outlet)?;
        let mut tries = 0;
        loop {
            let Err(error) = outlet.send(posted.message.clone()).await else { return Ok(()) };
            tries += 1;
            if error.is_final() || tries >= SENDS_AT_ONCE {
                return Err(FlowError::NotSent { outlet: posted.outlet.clone(), why: error.to_string() });
            }
        }
    }
}

/// How a flow that has come to rest is doing.
fn status_of(snapshot: &Snapshot) -> Status {
    match snapshot.finished() {
        Some(Finished::Completed { .. }) => Status::Completed,
        Some(Finished::Cancelled) => Status::Cancelled,
        None => Status::Waiting,
    }
}

/// Nothing is to be written.
fn is_nothing(along: &Along) -> bool {
    let Along {
        create,
        send,
        handles,
        cells,
        links,
        fills,
        actor: _,
        documents,
        keys,
        audit,
        definitions: _,
        shadings: _,
        shadows,
    } = along;
    create.is_empty()
        && send.is_empty()
        && handles.is_empty()
        && cells.is_empty()
        && links.is_empty()
        && fills.is_empty()
        && documents.is_empty()
        && keys.is_empty()
        && audit.is_empty()
        && shadows.is_empty()
}

/// The record that a sealed token was used. A pause of a flow is answered once, whichever of its tokens is used.
fn consumed(flow: RunId, version: u64, until: Timestamp) -> KeyWrite {
    KeyWrite { key: format!("{flow}:{version}"), ..left(flow, until) }
}

/// The record that a flow rests sealed no longer: it gets its row once.
fn left(flow: RunId, until: Timestamp) -> KeyWrite {
    KeyWrite {
        operation: SEALED.to_owned(),
        key: flow.to_string(),
        request: [0; 32],
        answer: Bytes::new(),
        lives: Lives::Until(until),
    }
}

/// Asks for those records.
pub(crate) fn consumed_queries(flow: RunId, version: u64, now: Timestamp) -> [RecordQuery; 2] {
    [format!("{flow}:{version}"), flow.to_string()].map(|key| RecordQuery::Key {
        operation: SEALED.to_owned(),
        key,
        now,
    })
}

/// What is sent out for a flow that waits.
pub(crate) fn message_of(
    tenant: TenantId,
    outgoing: &Outgoing,
    answer: &Answer,
    token: String,
    expires_at: Option<Timestamp>,
) -> Message {
    let pause = answer.waits.first();
    let may = |name: &&Name| outgoing.outcomes.is_empty() || outgoing.outcomes.contains(name);
    let outcomes = pause.into_iter().flat_map(|pause| &pause.outcomes).filter(may).cloned().collect();
    let activation = pause.map_or(0, |pause| pause.activation);
    Message {
        id: format!("{}-{activation}", answer.flow),
        tenant,
        flow: answer.flow,
        workflow: answer.workflow.clone(),
        place: pause.map_or_else(|| Name::from(""), |pause| pause.place.clone()),
        outcomes,
        to: outgoing.to.clone(),
        template: outgoing.template.clone(),
        data: outgoing.data.clone(),
        token,
        expires_at,
    }
}
