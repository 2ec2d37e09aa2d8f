//! Flows that are durable runs. Their tokens are answer links to one of the run's waits.

use std::time::Duration;

use stepwell_core::spec::Raise;
use stepwell_core::{Input, Refusal, RunId, Timestamp};
use stepwell_store::{
    HandleChange, HandleKind, HandleRow, HandleWrite, KeyWrite, Record, RecordQuery, Refused, Status,
};

use super::answer::{Answer, FlowError, Pause, pauses};
use super::commit::{AnswerLinkState, FlowCommitError, NextPause, StoredAnswer, Watching};
use super::execution::{ExecutionError, FlowExecution};
use super::flows::Flows;
use super::links::{is_sent_out, put_link};
use super::resume::{IdempotentRequest, RETRY_AFTER_MS, Resume, check_form, chosen, event_of};
use super::strategy::{Durable, Strategy, WATCH};
use super::token::{self, Purpose, Secret};
use crate::answering::{LinkSender, Sender};
use crate::commit_cycle::{CommitFailure, MAX_ATTEMPTS};
use crate::error::EngineError;
use crate::loaded_run::{CommitExtras, LoadedRun};
use crate::signal::AskedSignal;
use crate::start::Start;

/// Operation name of the stored answer to a request that was promised a token.
const SETTLED: &str = "flow.settled";
/// First delay between two reads of a run, in milliseconds. It doubles up to [`MAX_POLL_MS`].
const MIN_POLL_MS: u64 = 1;
const MAX_POLL_MS: u64 = 50;

impl Flows {
    /// Starts a durable run and waits for its first pause.
    pub(crate) async fn start_durable(
        &self,
        name: &str,
        durable: &Durable,
        start: Start,
        asked: Option<&IdempotentRequest>,
    ) -> Result<Answer, FlowError> {
        let run = match self.engine.start_once(start).await {
            Err(EngineError::KeyReused { key, .. }) => return Err(FlowError::KeyReused { key }),
            started => started?.run.id(),
        };
        let next = Secret::new(self.engine.scope.tenant())?;
        if let Some(asked) = asked
            && let Some(answer) = self.reserve_token(asked, run, next.token(name)).await?
        {
            return Ok(answer);
        }
        let loaded_run = self.settled(run, durable).await?;
        self.answer_of(name, durable, &loaded_run, next, asked.map(|asked| asked.key.as_str())).await
    }

    /// Stores the token that the answer to a request will contain. If the request was answered before, returns that
    /// answer.
    async fn reserve_token(
        &self,
        asked: &IdempotentRequest,
        run: RunId,
        token: String,
    ) -> Result<Option<Answer>, FlowError> {
        let inner = &self.engine.inner;
        let now = inner.host.now();
        let kept = self.keep(asked, &StoredAnswer::Link { run, token }, run, now)?;
        let extras = CommitExtras { keys: vec![kept], ..CommitExtras::default() };
        match inner.apply(self.engine.scope, inner.commit_of(self.engine.scope, extras, now)).await {
            Ok(_) => Ok(None),
            Err(CommitFailure::Refused(Refused::Done { answer, .. })) => {
                self.replayed(&asked.key, &answer).await.map(Some)
            }
            Err(CommitFailure::Refused(Refused::KeyReused { key, .. })) => Err(FlowError::KeyReused { key }),
            Err(failure) => Err(EngineError::from(failure).into()),
        }
    }

    /// Waits until a run has nothing more to do by itself, or `durable.settle_ms` has passed.
    async fn settled(&self, run: RunId, durable: &Durable) -> Result<LoadedRun, FlowError> {
        let inner = &self.engine.inner;
        let until = tokio::time::Instant::now() + Duration::from_millis(durable.settle_ms);
        let mut pause_ms = MIN_POLL_MS;
        loop {
            let loaded_run = inner.load(self.engine.scope, run).await?;
            let due = loaded_run.head.wake.is_some_and(|wake| wake <= inner.host.now());
            let goes_on = loaded_run.head.owner.is_some() || loaded_run.head.status == Status::Running || due;
            let is_over = loaded_run.snapshot.is_terminal() || loaded_run.ledger.stopped.is_some();
            if is_over || !goes_on || tokio::time::Instant::now() >= until {
                return Ok(loaded_run);
            }
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            pause_ms = (pause_ms * 2).min(MAX_POLL_MS);
        }
    }

    /// Describes a run and creates an answer link to its first wait under this secret.
    ///
    /// With an idempotency key, one commit stores the answer and the link. A repeated request replays the stored
    /// answer, so a used link is not created again.
    async fn answer_of(
        &self,
        name: &str,
        durable: &Durable,
        loaded_run: &LoadedRun,
        secret: Secret,
        key: Option<&str>,
    ) -> Result<Answer, FlowError> {
        let mut answer = answer_for(name, loaded_run);
        let (inner, now) = (&self.engine.inner, self.engine.inner.host.now());
        let Some(pause) = answer.waits.first().cloned() else { return Ok(answer) };
        if answer.status != Status::Waiting {
            return Ok(answer);
        }
        let by = self.engine.actor_id();
        let expires_at = durable.ttl_ms.map(|ttl| now.plus_ms(ttl));
        let next_pause = NextPause {
            name,
            created_at: now,
            created_by: by,
            now,
            expires_at,
            latest: None,
            outgoing: None,
        };
        answer.expires_at = expires_at;
        let is_sent = is_sent_out(&loaded_run.snapshot, pause.activation);
        let mut extras = CommitExtras::default();
        if is_sent || !pause.answerers.is_empty() {
            // The answer is expected from another person, so the caller gets a token that only shows the wait.
            answer.token = Some(self.watch(&next_pause, &answer, None, None)?);
            answer.watch_only = true;
        } else {
            let mut row =
                next_pause.row(secret.hash(name), HandleKind::Link, loaded_run, self.engine.actor_id());
            row.state = AnswerLinkState::trusted(pause.activation, Vec::new()).written();
            extras.handles.push(put_link(row));
            answer.token = Some(secret.token(name));
        }
        if let Some(key) = key {
            extras.keys.push(self.keep_settled(key, &answer, now)?);
        }
        if extras.handles.is_empty() && extras.keys.is_empty() {
            return Ok(answer);
        }
        let scope = self.engine.scope;
        match inner.apply(scope, inner.commit_of(scope, extras, now)).await {
            Ok(_) => Ok(answer),
            Err(CommitFailure::Refused(Refused::Done { key, answer, .. })) => {
                self.replayed(&key, &answer).await
            }
            Err(failure) => Err(EngineError::from(failure).into()),
        }
    }

    /// Builds the stored answer to a request that was promised a token.
    fn keep_settled(&self, key: &str, answer: &Answer, now: Timestamp) -> Result<KeyWrite, EngineError> {
        let asked = IdempotentRequest { key: key.to_owned(), request: [0; 32] };
        Ok(KeyWrite { operation: SETTLED.to_owned(), ..self.kept(&asked, answer, now)? })
    }

    /// Answers a durable run through a link. The commit that takes the answer also removes the link.
    pub(crate) async fn resume_link(
        &self,
        name: &str,
        durable: &Durable,
        mut row: HandleRow,
        resume: &Resume,
        asked: Option<&IdempotentRequest>,
    ) -> Result<Answer, FlowError> {
        let next = Secret::new(self.engine.scope.tenant())?;
        for _ in 0..MAX_ATTEMPTS {
            let (loaded_run, link) = self.load_link_run(&row).await?;
            match self.take_answer(&row, &loaded_run, &link, resume, asked, (&next, name)).await {
                Ok(()) => {
                    let loaded_run = self.settled(row.run, durable).await?;
                    let key = asked.map(|asked| asked.key.as_str());
                    return self.answer_of(name, durable, &loaded_run, next, key).await;
                }
                Err(FlowCommitError::InvalidOutcome(errors)) => {
                    let mut answer = bound(answer_for(name, &loaded_run), &link);
                    answer.token = Some(resume.token().to_owned());
                    answer.expires_at = row.expires_at;
                    answer.errors = errors;
                    return Ok(answer);
                }
                Err(FlowCommitError::Again) => {
                    row = self.handle_row(row.handle).await?.ok_or(FlowError::Gone)?;
                }
                Err(FlowCommitError::Flow(error)) => return Err(error),
                Err(FlowCommitError::Answered(answer)) => return Ok(*answer),
            }
        }
        Err(EngineError::Contended { run: row.run, attempts: MAX_ATTEMPTS }.into())
    }

    /// Loads the run behind a link. Fails with [`FlowError::Gone`] if the run no longer has that wait.
    pub(crate) async fn load_link_run(
        &self,
        row: &HandleRow,
    ) -> Result<(LoadedRun, AnswerLinkState), FlowError> {
        let loaded_run = match self.engine.inner.load(self.engine.scope, row.run).await {
            Err(EngineError::NoRun(_)) => return Err(FlowError::Gone),
            loaded_run => loaded_run?,
        };
        let link: AnswerLinkState = serde_json::from_slice(&row.state)
            .map_err(|error| EngineError::Unreadable { run: row.run, why: error.to_string() })?;
        let waits = pauses(loaded_run.definition(), &loaded_run.snapshot);
        if !waits.iter().any(|pause| pause.activation == link.activation) {
            return Err(FlowError::Gone);
        }
        Ok((loaded_run, link))
    }

    async fn take_answer(
        &self,
        row: &HandleRow,
        loaded_run: &LoadedRun,
        link: &AnswerLinkState,
        resume: &Resume,
        asked: Option<&IdempotentRequest>,
        (next, name): (&Secret, &str),
    ) -> Result<(), FlowCommitError> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope);
        let waits = pauses(loaded_run.definition(), &loaded_run.snapshot);
        let here: Vec<Pause> =
            waits.iter().filter(|pause| pause.activation == link.activation).cloned().collect();
        let input = resume.input_value()?;
        let (pause, outcome) = chosen(&here, resume.wanted(), &link.outcomes)?;
        let violations = check_form(pause, &input);
        if !violations.is_empty() {
            return Err(FlowCommitError::InvalidOutcome(violations));
        }
        let (signal, payload) = (outcome.clone(), input.clone());
        let event = event_of(pause, outcome, input.clone());
        let link = LinkSender::new(row.handle, link.answerer.clone(), link.is_trusted);
        let sender = Sender::Link(link);
        self.rejected_by_steps(loaded_run, &event, &sender).await?;
        let asking = AskedSignal {
            event: &event,
            signal: &signal,
            payload: &payload,
            is_strict: true,
            sender: &sender,
        };
        let mut moved = match inner.decide_signal(loaded_run, &asking).await {
            Ok(Some(moved)) => moved,
            Ok(None) => return Err(FlowCommitError::Again),
            Err(EngineError::Refused(Refusal::InvalidPayload { violations, .. })) => {
                return Err(FlowCommitError::InvalidOutcome(violations));
            }
            Err(EngineError::Refused(Refusal::NoActiveSource { .. } | Refusal::Terminal)) => {
                return Err(FlowError::Gone.into());
            }
            Err(EngineError::NotAnAnswerer { .. }) => return Err(FlowError::Gone.into()),
            Err(EngineError::Claimed { until, .. }) => {
                let left = until.ms_since(inner.host.now());
                return Err(FlowError::Busy { retry_after_ms: left.max(RETRY_AFTER_MS) }.into());
            }
            // Another process has just taken an answer and is running the steps after it.
            Err(EngineError::WrongStatus { status: stepwell_store::Status::Running, .. }) => {
                return Err(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS }.into());
            }
            Err(error) => return Err(error.into()),
        };
        let take = HandleWrite { handle: row.handle, expected: Some(row.fence), then: HandleChange::Take };
        moved.extras.handles.push(take);
        moved.extras.actor = sender.id();
        moved.in_order = true;
        if let Some(asked) = asked {
            let kept = StoredAnswer::Link { run: row.run, token: next.token(name) };
            moved.extras.keys.push(self.keep(asked, &kept, row.run, inner.host.now())?);
        }
        match inner.commit_and_drive(scope, loaded_run, moved).await {
            Ok(()) => Ok(()),
            Err(CommitFailure::Moved) => Err(FlowCommitError::Again),
            Err(CommitFailure::Refused(refused)) => match self.refused(refused, asked).await {
                Ok(answer) => Err(FlowCommitError::Answered(Box::new(answer))),
                Err(error) => Err(error),
            },
            Err(failure) => Err(EngineError::from(failure).into()),
        }
    }

    /// Fails if the steps after the answer, up to the first action, reject it with field errors. Nothing is committed
    /// then, and the link stays valid.
    async fn rejected_by_steps(
        &self,
        loaded_run: &LoadedRun,
        event: &Input,
        sender: &Sender,
    ) -> Result<(), FlowCommitError> {
        if !raises_field_errors(loaded_run) {
            return Ok(());
        }
        let mut trial = FlowExecution::new(&self.engine.inner, self.engine.scope, loaded_run.clone());
        let ended = match trial.offer(event, sender).await {
            Ok(None) => trial.next().await.map(drop),
            other => other.map(drop),
        };
        match ended {
            Err(ExecutionError::InvalidOutcome(errors)) => Err(FlowCommitError::InvalidOutcome(errors)),
            // Anything else is decided by the commit itself.
            _ => Ok(()),
        }
    }

    /// Returns the answer to a request that a run has taken.
    ///
    /// If no answer is stored yet, it is built from the run's current state, with the promised token.
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
        let loaded_run = self.settled(run, durable).await?;
        Box::pin(self.answer_of(name, durable, &loaded_run, secret, Some(key))).await
    }

    /// Shows the wait that an answer link leads to.
    pub(crate) async fn show_link(&self, token: &str, name: &str, raw: &str) -> Result<Answer, FlowError> {
        let row = self.load_handle(name, raw, HandleKind::Link).await?;
        let (loaded_run, link) = self.load_link_run(&row).await?;
        let mut answer = bound(answer_for(name, &loaded_run), &link);
        answer.token = Some(token.to_owned());
        answer.expires_at = row.expires_at;
        Ok(answer)
    }

    /// Shows the status of the flow behind a watch token.
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
                    Ok(loaded_run) => loaded_run.head.status,
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
            strategy: Some(watching.strategy),
            token: Some(token.to_owned()),
            watch_only: true,
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

fn answer_for(name: &str, loaded_run: &LoadedRun) -> Answer {
    let mut answer = Answer::of(loaded_run.definition(), &loaded_run.snapshot, loaded_run.head.status);
    answer.error = loaded_run.ledger.stopped.clone().map(|stopped| stopped.error);
    answer.strategy = (!loaded_run.snapshot.is_terminal()).then(|| name.to_owned());
    answer
}

/// Removes the waits and outcomes that a link does not cover.
fn bound(mut answer: Answer, link: &AnswerLinkState) -> Answer {
    answer.waits.retain(|pause| pause.activation == link.activation);
    for pause in &mut answer.waits {
        pause.outcomes.retain(|outcome| link.outcomes.is_empty() || link.outcomes.contains(outcome));
    }
    answer
}

/// Returns true if a transition of the run's workflow raises a failure with field errors.
fn raises_field_errors(loaded_run: &LoadedRun) -> bool {
    let mut transitions = loaded_run.definition().spec().transitions.iter();
    transitions.any(|one| matches!(one.fail, Some(Raise::New { errors: Some(_), .. })))
}
