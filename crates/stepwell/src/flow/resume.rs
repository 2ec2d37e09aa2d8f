//! A flow is started, resumed, or looked at.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stepwell_core::schema::{Misfit, Schema};
use stepwell_core::{ActionCall, Event, Name, RunId, Snapshot, Timestamp, start};
use stepwell_store::{
    HandleChange, HandleHash, HandleKind, HandleRow, HandleWrite, Record, RecordQuery, Refused, Status,
    StoreError, TenantScope,
};

use super::answer::{Answer, FlowError, Pause, pauses};
use super::flows::{Flows, Revoke, handle};
use super::pass::{Pass, Passless, standing_of};
use super::rest::{Origin, Restless};
use super::strategy::{Sealed, Strategy, WATCH};
use super::token::{self, Purpose, Secret, Unsealed};
use crate::actor::Permission;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::registry::Workflow;
use crate::runner;
use crate::standing::Along;
use crate::start::Start;
use crate::turn::Turnless;

/// How often a pass is made again because something it had read has changed.
const MAX_PASSES: u32 = 16;
/// After how long somebody who came while a flow is being resumed may try again.
pub(super) const RETRY_AFTER_MS: u64 = 1_000;
/// Every refusal of a token takes a multiple of this, whatever the reason: longer than any look-up should.
const REFUSAL_MS: u64 = 25;
/// The operation under which answers are kept.
pub(crate) const FLOW: &str = "flow";

/// A flow is to go on.
#[derive(Debug, Clone)]
pub struct Resume {
    token: String,
    outcome: Option<Name>,
    brings: Result<Value, String>,
    key: Option<String>,
}

impl Resume {
    /// With this token.
    pub fn new(token: impl Into<String>) -> Self {
        Resume { token: token.into(), outcome: None, brings: Ok(Value::Null), key: None }
    }

    /// With this input.
    #[must_use]
    pub fn input<T: Serialize + ?Sized>(mut self, input: &T) -> Self {
        self.brings = serde_json::to_value(input).map_err(|error| error.to_string());
        self
    }

    /// One of the outcomes that the pause names; without this, the only one.
    #[must_use]
    pub fn outcome(mut self, outcome: impl Into<Name>) -> Self {
        self.outcome = Some(outcome.into());
        self
    }

    /// The same key gets the same answer, next token included.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// The outcome that is meant, if it was said.
    pub(crate) fn wanted(&self) -> Option<&Name> {
        self.outcome.as_ref()
    }

    pub(crate) fn input_value(&self) -> Result<Value, FlowError> {
        self.brings.clone().map_err(|why| {
            FlowError::Engine(EngineError::Invalid(format!("the input cannot be written as JSON: {why}")))
        })
    }
}

/// A request whose answer is kept.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) key: String,
    /// A hash of what was asked.
    pub(crate) request: [u8; 32],
}

impl Asked {
    fn new(key: Option<String>, request: &Value) -> Option<Self> {
        key.map(|key| Asked { key, request: Sha256::digest(request.to_string()).into() })
    }
}

/// A handle that is being used: by whom, as far as its row says.
pub(crate) struct Taking {
    pub(crate) row: HandleRow,
    pub(crate) is_reserved: bool,
}

/// What a resume is given, once it is known to be good.
pub(crate) struct Opened {
    pub(crate) workflow: Arc<Workflow>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) origin: Origin,
    /// The strategy's name.
    pub(crate) name: String,
}

impl Flows {
    /// Starts a flow: it goes on to its first pause, or to its end.
    pub async fn start(&self, start: Start) -> Result<Answer, FlowError> {
        self.engine.permit(Permission::Manage)?;
        let inner = &self.engine.inner;
        let workflow = inner.workflow(self.engine.scope, &start.workflow).await?;
        if !self.shared.is_allowed(&start.workflow) {
            return Err(FlowError::NotAllowed(start.workflow));
        }
        let (name, strategy) = self.shared.strategies.of(&workflow.definition)?;
        let asked =
            Asked::new(start.key.clone(), &json!(["start", start.workflow, start.input.as_ref().ok()]));
        let _answering = self.answering(asked.as_ref())?;
        if let Some(answer) = self.answered(asked.as_ref()).await? {
            return Ok(answer);
        }
        if let Strategy::Durable(durable) = strategy {
            return self.start_durable(&name, durable, start, asked.as_ref()).await;
        }
        if start.is_timed() {
            let why = "only a durable run begins later or has a deadline: let the workflow begin as one";
            return Err(EngineError::Invalid(why.to_owned()).into());
        }
        let flow = start.id.unwrap_or_else(|| RunId::new(inner.host.ids.next()));
        let input = start.input.clone().map_err(|why| {
            EngineError::Invalid(format!(
                "the input of `{}` cannot be written as JSON: {why}",
                start.workflow
            ))
        })?;
        for attempt in 0..MAX_PASSES {
            let change = start_of(&workflow, flow, input.clone(), inner.host.now())?;
            let standing = standing_of(workflow.clone(), Arc::new(change.snapshot), inner.host.now());
            let mut pass = Pass::new(inner, self.engine.scope, standing);
            pass.entry = Some(change.entry);
            if let Some(failure) = change.stopped {
                return Err(FlowError::Failed(failure));
            }
            let came = self.to_pause(&mut pass, None, None).await;
            match self.rested(came, &mut pass, &Origin::Begun, &name, asked.as_ref()).await {
                Err(Restless::Again) => inner.pause_after(attempt).await,
                Err(Restless::Unfit(errors)) => return Err(unfit(errors)),
                Err(Restless::Flow(error)) => return Err(error),
                Err(Restless::Answered(answer)) => return Ok(*answer),
                Ok(answer) => return Ok(answer),
            }
        }
        Err(EngineError::Contended { run: flow, tries: MAX_PASSES }.into())
    }

    /// Resumes a flow: it goes on to its next pause, or to its end. An input that is wrong leaves it where it is: the answer
    /// says what, and the token is still good.
    pub async fn resume(&self, resume: Resume) -> Result<Answer, FlowError> {
        let began = tokio::time::Instant::now();
        let name = token::split(&resume.token).map(|(name, _)| name.to_owned());
        let strategy = name.as_ref().and_then(|name| self.shared.strategies.by_name.get(name));
        let answer = match strategy {
            Some(Strategy::Sealed(sealed)) => self.resume_sealed(&resume, sealed).await,
            // Whoever asked may go away: what they have begun is brought to its end.
            Some(Strategy::Handle(_) | Strategy::Durable(_)) => self.beside(resume).await,
            None if name.as_deref() == Some(WATCH) => self.show(&resume.token).await,
            None => Err(FlowError::Gone),
        };
        if matches!(answer, Err(FlowError::Gone)) {
            evenly(began).await;
        }
        answer
    }

    /// Seals a state of one's own under a strategy that seals: what [`Flows::open`] gives back and [`Flows::resume`] goes on
    /// with. The state goes with a workflow that is known here.
    pub fn seal(&self, strategy: &str, snapshot: &Snapshot) -> Result<String, FlowError> {
        let Strategy::Sealed(sealed) = self.shared.strategies.get(strategy)? else {
            let why = format!("strategy `{strategy}` does not seal: what rests there is in a row");
            return Err(EngineError::Invalid(why).into());
        };
        self.sealed(strategy, sealed, snapshot)
    }

    /// The state in a sealed token, if the token is good. It stays good.
    pub async fn open(&self, token: &str) -> Result<Arc<Snapshot>, FlowError> {
        let name = token::split(token).ok_or(FlowError::Gone)?.0;
        match self.shared.strategies.by_name.get(name) {
            Some(Strategy::Sealed(sealed)) => Ok(self.open_sealed(token, sealed).await?.snapshot),
            Some(Strategy::Handle(_) | Strategy::Durable(_)) | None => Err(FlowError::Gone),
        }
    }

    /// Shows what a token is for. Nothing changes, however often it is asked.
    pub async fn show(&self, token: &str) -> Result<Answer, FlowError> {
        let began = tokio::time::Instant::now();
        let shown = self.shown(token).await;
        if matches!(shown, Err(FlowError::Gone)) {
            evenly(began).await;
        }
        shown
    }

    async fn shown(&self, token: &str) -> Result<Answer, FlowError> {
        let (name, raw) = token::split(token).ok_or(FlowError::Gone)?;
        if name == WATCH {
            return self.watched(token, raw).await;
        }
        let opened = match self.shared.strategies.by_name.get(name) {
            None => return Err(FlowError::Gone),
            Some(Strategy::Sealed(sealed)) => self.open_sealed(token, sealed).await?,
            Some(Strategy::Handle(_)) => {
                let row = self.load_handle(name, raw, HandleKind::Flow).await?;
                self.open_handle(row, name).await?
            }
            Some(Strategy::Durable(_)) => return self.show_link(token, name, raw).await,
        };
        let mut answer = Answer::of(&opened.workflow.definition, &opened.snapshot, Status::Waiting);
        answer.rests = Some(opened.name.clone());
        answer.token = Some(token.to_owned());
        answer.expires_at = opened.origin.expires_at();
        Ok(answer)
    }

    async fn beside(&self, resume: Resume) -> Result<Answer, FlowError> {
        let (tell, told) = tokio::sync::oneshot::channel();
        let flows = self.clone();
        let inner = self.engine.inner.clone();
        inner.host.spawn.spawn(Box::pin(async move {
            // An engine that stops waits for it.
            let _under_way = flows.engine.inner.under_way();
            let answer = flows.resume_row(&resume).await;
            // Nobody may be there any more.
            let _ = tell.send(answer);
        }));
        told.await.unwrap_or(Err(FlowError::Engine(EngineError::Stopped)))
    }

    async fn resume_row(&self, resume: &Resume) -> Result<Answer, FlowError> {
        let asked = self.asked(resume)?;
        let _answering = self.answering(asked.as_ref())?;
        if let Some(answer) = self.answered(asked.as_ref()).await? {
            return Ok(answer);
        }
        match self.resume_found(resume, asked.as_ref()).await {
            // Another process may have answered the same request since it was looked for.
            Err(FlowError::Gone) => self.answered(asked.as_ref()).await?.ok_or(FlowError::Gone),
            answer => answer,
        }
    }

    async fn resume_found(&self, resume: &Resume, asked: Option<&Asked>) -> Result<Answer, FlowError> {
        let (name, raw) = token::split(&resume.token).ok_or(FlowError::Gone)?;
        if let Some(Strategy::Durable(durable)) = self.shared.strategies.by_name.get(name) {
            let row = self.load_handle(name, raw, HandleKind::Link).await?;
            return self.resume_link(name, durable, row, resume, asked).await;
        }
        for attempt in 0..MAX_PASSES {
            let row = self.load_handle(name, raw, HandleKind::Flow).await?;
            self.not_reserved(&row).await?;
            let opened = self.open_handle(row, name).await?;
            if let Some(answer) = self.tried(&opened, resume, asked).await {
                return answer;
            }
            self.engine.inner.pause_after(attempt).await;
        }
        Err(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS })
    }

    async fn resume_sealed(&self, resume: &Resume, sealed: &Sealed) -> Result<Answer, FlowError> {
        let asked = self.asked(resume)?;
        let _answering = self.answering(asked.as_ref())?;
        // Before it is looked whether the token was used: the same request is the same answer.
        let opened = self.open_sealed(&resume.token, sealed).await;
        if let Some(answer) = self.answered(asked.as_ref()).await? {
            return Ok(answer);
        }
        let opened = opened?;
        for attempt in 0..MAX_PASSES {
            if let Some(answer) = self.tried(&opened, resume, asked.as_ref()).await {
                return answer;
            }
            self.engine.inner.pause_after(attempt).await;
        }
        Err(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS })
    }

    /// One try to go on; `None` = something has changed meanwhile, and it is to be tried again.
    async fn tried(
        &self,
        opened: &Opened,
        resume: &Resume,
        asked: Option<&Asked>,
    ) -> Option<Result<Answer, FlowError>> {
        match self.go_on(opened, resume, asked).await {
            Err(Restless::Again) => None,
            Err(Restless::Unfit(errors)) => Some(Ok(self.again(opened, resume, errors))),
            Err(Restless::Flow(error)) => Some(Err(error)),
            Err(Restless::Answered(answer)) => Some(Ok(*answer)),
            Ok(answer) => Some(Ok(answer)),
        }
    }

    /// The flow takes the input and goes on to where it rests next.
    async fn go_on(
        &self,
        opened: &Opened,
        resume: &Resume,
        asked: Option<&Asked>,
    ) -> Result<Answer, Restless> {
        let inner = &self.engine.inner;
        let definition = &opened.workflow.definition;
        let waits = pauses(definition, &opened.snapshot);
        let input = resume.input_value()?;
        let (pause, outcome) = chosen(&waits, resume.outcome.as_ref(), &[])?;
        let misfits = check_form(pause, &input);
        if !misfits.is_empty() {
            return Err(Restless::Unfit(misfits));
        }
        let event = event_of(pause, outcome, input);
        let standing = standing_of(opened.workflow.clone(), opened.snapshot.clone(), inner.host.now());
        let mut pass = Pass::new(inner, self.engine.scope, standing);
        let mut taking = match &opened.origin {
            Origin::Handle { row, .. } => Some(Taking { row: (**row).clone(), is_reserved: false }),
            Origin::Begun | Origin::Sealed { .. } => None,
        };
        let came = match pass.offer(&event).await {
            Ok(call) => self.to_pause(&mut pass, call, taking.as_mut()).await,
            Err(passless) => Err(passless),
        };
        let origin = opened.origin.taken_by(taking.as_ref());
        let rested = self.rested(came, &mut pass, &origin, &opened.name, asked).await;
        if let (Err(_), Some(taking)) = (&rested, &taking) {
            self.give_back(taking).await;
        }
        rested
    }

    /// Runs what is due until nothing is. A handle is reserved before the first action runs.
    async fn to_pause(
        &self,
        pass: &mut Pass<'_>,
        mut due: Option<Box<ActionCall>>,
        mut taking: Option<&mut Taking>,
    ) -> Result<(), Passless> {
        loop {
            let call = match due.take() {
                Some(call) => call,
                None => match pass.next().await? {
                    Some(call) => call,
                    None => return Ok(()),
                },
            };
            if let Some(taking) = taking.as_deref_mut().filter(|taking| !taking.is_reserved) {
                self.reserve(taking).await?;
            }
            pass.act(*call).await?;
        }
    }

    async fn reserve(&self, taking: &mut Taking) -> Result<(), Passless> {
        let process = self.engine.inner.process();
        self.own(&mut taking.row, Some(process)).await?;
        taking.is_reserved = true;
        Ok(())
    }

    async fn own(
        &self,
        row: &mut HandleRow,
        owner: Option<stepwell_store::ProcessId>,
    ) -> Result<(), Passless> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope);
        let write =
            HandleWrite { handle: row.handle, expected: Some(row.fence), then: HandleChange::Own(owner) };
        let along = Along { handles: vec![write], ..Along::default() };
        match inner.apply(scope, inner.commit_of(scope, along, inner.host.now())).await {
            Ok(_) => {
                row.owner = owner;
                row.fence += 1;
                Ok(())
            }
            Err(Turnless::Refused(Refused::Handle { .. }) | Turnless::Moved) => Err(Passless::Again),
            Err(turnless) => Err(Passless::Engine(turnless.into())),
        }
    }

    /// What was reserved is good again.
    async fn give_back(&self, taking: &Taking) {
        if !taking.is_reserved {
            return;
        }
        let mut row = taking.row.clone();
        for attempt in 0..MAX_PASSES {
            match self.own(&mut row, None).await {
                Ok(()) => return,
                Err(Passless::Again) => {}
                Err(passless) => {
                    tracing::warn!(handle = %row.handle, ?passless, "a handle was not given back; it is tried again");
                    self.engine.inner.pause_after(attempt).await;
                }
            }
            // It may have been written meanwhile and still be ours: nobody else would ever give it back.
            match self.handle_row(row.handle).await {
                Ok(Some(now)) if now.owner == taking.row.owner => row = now,
                Ok(_) => return,
                Err(_) => {}
            }
        }
        // Under another name this process owns it no longer.
        self.engine.inner.in_doubt();
    }

    /// Refuses a handle that somebody living works on.
    async fn not_reserved(&self, row: &HandleRow) -> Result<(), FlowError> {
        match is_worked_on(&self.engine.inner, self.engine.scope, row).await? {
            true => Err(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS }),
            false => Ok(()),
        }
    }

    /// The row behind a handle's token.
    pub(crate) async fn load_handle(
        &self,
        name: &str,
        raw: &str,
        kind: HandleKind,
    ) -> Result<HandleRow, FlowError> {
        let scope = self.engine.scope;
        let secret =
            Secret::read(raw).filter(|secret| secret.tenant == scope.tenant()).ok_or(FlowError::Gone)?;
        let row = self.handle_row(secret.hash(name)).await?.ok_or(FlowError::Gone)?;
        let now = self.engine.inner.host.now();
        let is_over = row.expires_at.is_some_and(|expires| expires <= now);
        if is_over || row.kind != kind || !self.shared.is_allowed(&row.workflow) {
            return Err(FlowError::Gone);
        }
        Ok(row)
    }

    pub(crate) async fn handle_row(&self, hash: HandleHash) -> Result<Option<HandleRow>, FlowError> {
        let store = &self.engine.inner.store;
        let page = store.records(self.engine.scope, RecordQuery::Handle(hash)).await?;
        Ok(page.items.into_iter().find_map(handle))
    }

    pub(crate) async fn open_handle(&self, row: HandleRow, name: &str) -> Result<Opened, FlowError> {
        let (workflow, snapshot) = self.restore(&row.state).await?;
        let before = snapshot.clone();
        Ok(Opened {
            workflow,
            snapshot,
            origin: Origin::Handle { row: Box::new(row), before },
            name: name.to_owned(),
        })
    }

    async fn open_sealed(&self, token: &str, sealed: &Sealed) -> Result<Opened, FlowError> {
        let inner = &self.engine.inner;
        let (name, raw) = token::split(token).ok_or(FlowError::Gone)?;
        let unsealed = token::open(&self.shared.ring, name, raw, inner.limits()).ok_or(FlowError::Gone)?;
        let is_ours = unsealed.tenant == self.engine.scope.tenant() && unsealed.purpose == Purpose::Resume;
        let is_over = unsealed.claims.expires_at <= inner.host.now();
        if !is_ours || is_over || !self.shared.is_allowed(&unsealed.workflow) {
            return Err(FlowError::Gone);
        }
        let (workflow, snapshot) = self.restore(&unsealed.state).await?;
        // Where nothing but tokens is, nothing can have become of it that a row would tell.
        let may_be_used = sealed.is_once || self.shared.strategies.keeps_rows();
        if (may_be_used && self.is_used(&snapshot).await?)
            || (sealed.is_once && self.is_revoked(&unsealed, &snapshot).await?)
        {
            return Err(FlowError::Gone);
        }
        let origin = Origin::Sealed {
            claims: unsealed.claims,
            flow: snapshot.instance_id(),
            version: snapshot.version(),
            is_once: sealed.is_once,
        };
        Ok(Opened { workflow, snapshot, origin, name: name.to_owned() })
    }

    /// Whether a sealed token was used for something that was written, or its flow rests elsewhere since.
    async fn is_used(&self, snapshot: &Snapshot) -> Result<bool, FlowError> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope);
        let (flow, version) = (snapshot.instance_id(), snapshot.version());
        let [used, left] = super::rest::consumed_queries(flow, version, inner.host.now());
        let (used, left) =
            tokio::try_join!(inner.store.records(scope, used), inner.store.records(scope, left))?;
        Ok(!used.items.is_empty() || !left.items.is_empty())
    }

    /// Whether a sealed token that can be revoked was.
    async fn is_revoked(&self, token: &Unsealed, snapshot: &Snapshot) -> Result<bool, FlowError> {
        let flow = snapshot.instance_id();
        let by = token.claims.created_by.clone().map(Revoke::Actor);
        for which in [Some(Revoke::Flow(flow)), by].into_iter().flatten() {
            if self.revoked_at(&which).await?.is_some_and(|at| token.claims.created_at <= at) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A state that was kept, and the definition it goes with.
    pub(crate) async fn restore(&self, state: &[u8]) -> Result<(Arc<Workflow>, Arc<Snapshot>), FlowError> {
        let inner = &self.engine.inner;
        let unreadable = |error: serde_json::Error| {
            EngineError::Restore(stepwell_core::RestoreError::Unreadable(error.to_string()))
        };
        let snapshot: Snapshot = serde_json::from_slice(state).map_err(unreadable)?;
        let hash = snapshot.definition_hash();
        let tenant = self.engine.scope.tenant();
        if inner.registry.by_hash(tenant, hash).is_none() {
            runner::learn(inner, self.engine.scope, hash).await?;
        }
        let workflow = inner
            .registry
            .by_hash(tenant, hash)
            .ok_or_else(|| EngineError::UnknownDefinition { workflow: snapshot.workflow().clone(), hash })?;
        snapshot.verify(&workflow.definition).map_err(EngineError::from)?;
        Ok((workflow, Arc::new(snapshot)))
    }

    /// The input was wrong: the flow waits where it was, and so does the token.
    fn again(&self, opened: &Opened, resume: &Resume, errors: Vec<Misfit>) -> Answer {
        let mut answer = Answer::of(&opened.workflow.definition, &opened.snapshot, Status::Waiting);
        answer.rests = Some(opened.name.clone());
        answer.token = Some(resume.token.clone());
        answer.expires_at = opened.origin.expires_at();
        answer.errors = errors;
        answer
    }

    fn asked(&self, resume: &Resume) -> Result<Option<Asked>, FlowError> {
        let Resume { token, outcome, key, .. } = resume;
        Ok(Asked::new(key.clone(), &json!(["resume", token, outcome, resume.input_value()?])))
    }

    /// Nobody else in this process answers a request with this key meanwhile.
    fn answering(&self, asked: Option<&Asked>) -> Result<Option<super::flows::Answering>, FlowError> {
        let Some(asked) = asked else { return Ok(None) };
        let answering = self.shared.answering(self.engine.scope.tenant(), &asked.key);
        answering.map(Some).ok_or(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS })
    }

    /// What the same request was answered with.
    async fn answered(&self, asked: Option<&Asked>) -> Result<Option<Answer>, FlowError> {
        let Some(Asked { key, request }) = asked else { return Ok(None) };
        let now = self.engine.inner.host.now();
        let query = RecordQuery::Key { operation: FLOW.to_owned(), key: key.clone(), now };
        let known = self.engine.inner.store.records(self.engine.scope, query).await?.items.pop();
        match known {
            Some(Record::Key(record)) if record.request == Some(*request) => {
                let answer = record.answer.unwrap_or_default();
                self.replayed(key, &answer).await.map(Some)
            }
            Some(_) => Err(FlowError::KeyReused { key: key.clone() }),
            None => Ok(None),
        }
    }
}

/// Somebody living works on a handle.
pub(crate) async fn is_worked_on(
    inner: &Inner,
    scope: TenantScope,
    row: &HandleRow,
) -> Result<bool, StoreError> {
    let Some(owner) = row.owner else { return Ok(false) };
    if inner.goes_by(owner) {
        return Ok(true);
    }
    let query = RecordQuery::Living { process: owner, now: inner.host.now() };
    Ok(!inner.store.records(scope, query).await?.items.is_empty())
}

/// A refusal takes as long as any other: who asks learns nothing from the time.
async fn evenly(began: tokio::time::Instant) {
    let passed = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let until = (passed / REFUSAL_MS + 1) * REFUSAL_MS;
    tokio::time::sleep_until(began + std::time::Duration::from_millis(until)).await;
}

/// A flow begins.
fn start_of(
    workflow: &Workflow,
    flow: RunId,
    input: Value,
    now: Timestamp,
) -> Result<stepwell_core::Change, EngineError> {
    Ok(start(&workflow.definition, flow, input, now)?)
}

fn unfit(errors: Vec<Misfit>) -> FlowError {
    let mut failure =
        stepwell_core::Failure::new(crate::action::UNFIT, "the input is not accepted").finally();
    failure.errors = errors;
    FlowError::Failed(failure)
}

/// The pause that is answered, and how. `only` are the outcomes that may be; none = all.
pub(crate) fn chosen<'a>(
    waits: &'a [Pause],
    outcome: Option<&Name>,
    only: &[Name],
) -> Result<(&'a Pause, Name), FlowError> {
    let may = |name: &&Name| only.is_empty() || only.contains(name);
    let open =
        waits.iter().flat_map(|pause| pause.outcomes.iter().filter(may).map(move |name| (pause, name)));
    let open: Vec<_> = open.collect();
    let mut fitting = open.iter().filter(|(_, name)| outcome.is_none_or(|wanted| wanted == *name));
    let first = fitting.next();
    let is_clear =
        outcome.is_some() || fitting.all(|(_, name)| first.is_some_and(|(_, known)| known == name));
    match first {
        Some((pause, name)) if is_clear => Ok((pause, (*name).clone())),
        _ => {
            let mut outcomes: Vec<Name> = open.iter().map(|(_, name)| (*name).clone()).collect();
            outcomes.sort();
            outcomes.dedup();
            Err(FlowError::Outcome { given: outcome.map(ToString::to_string), outcomes })
        }
    }
}

/// What of the input does not fit the form.
pub(crate) fn check_form(pause: &Pause, input: &Value) -> Vec<Misfit> {
    let schema = pause.form.as_ref().and_then(|form| Schema::compile(form).ok());
    schema.map(|schema| schema.check(input)).unwrap_or_default()
}

/// An outcome as it comes to the flow: to this pause, and to no other that takes the same.
pub(crate) fn event_of(pause: &Pause, outcome: Name, input: Value) -> Event {
    Event::Answered { activation: pause.activation, signal: outcome, payload: input }
}
