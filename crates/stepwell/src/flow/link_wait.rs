//! Answer links as callbacks: a link can also fail its wait, or send a heartbeat for it.

use stepwell_core::{Failure, Input, Name, Refusal, Timestamp};
use stepwell_store::{HandleChange, HandleKind, HandleRow, HandleWrite};

use super::answer::FlowError;
use super::commit::AnswerLinkState;
use super::flows::Flows;
use super::resume::{RETRY_AFTER_MS, evenly};
use super::strategy::{Strategy, WATCH};
use super::token;
use crate::answering::{LinkSender, Sender, may_answer};
use crate::commit_cycle::{CommitFailure, MAX_ATTEMPTS};
use crate::error::EngineError;
use crate::loaded_run::LoadedRun;
use crate::signal::{AskedSignal, FAIL};
use crate::waits::{WaitId, check_failure};

impl Flows {
    /// Fails the wait of an answer link with this error, and uses the link up. A link that accepts only some outcomes
    /// cannot fail its wait.
    pub async fn fail_link(&self, token: &str, failure: Failure) -> Result<(), FlowError> {
        check_failure(&failure)?;
        let began = tokio::time::Instant::now();
        let done = self.link_failed(token, &failure).await;
        if matches!(done, Err(FlowError::Gone)) {
            evenly(began).await;
        }
        done
    }

    /// Sends a heartbeat for the wait of an answer link, and returns the time at which the next one is due. The link
    /// stays valid.
    pub async fn heartbeat_link(&self, token: &str) -> Result<Timestamp, FlowError> {
        let began = tokio::time::Instant::now();
        let done = self.link_beat(token).await;
        if matches!(done, Err(FlowError::Gone)) {
            evenly(began).await;
        }
        done
    }

    async fn link_failed(&self, token: &str, failure: &Failure) -> Result<(), FlowError> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope);
        for _ in 0..MAX_ATTEMPTS {
            let (row, loaded_run, link) = self.link_of(token).await?;
            if !link.outcomes.is_empty() {
                return Err(FlowError::Outcome { given: Some("fail".to_owned()), outcomes: link.outcomes });
            }
            let (signal, payload) = (Name::from(FAIL), serde_json::json!(failure));
            let event = Input::WaitFailed { activation: link.activation, failure: failure.clone() };
            let sender = sender_of(&row, &link);
            let asked = AskedSignal {
                event: &event,
                signal: &signal,
                payload: &payload,
                is_strict: true,
                sender: &sender,
            };
            let mut moved = match inner.decide_signal(&loaded_run, &asked).await {
                Ok(Some(moved)) => moved,
                Ok(None) => continue,
                Err(error) => return Err(refused(error, inner.host.now())),
            };
            // If nothing handles the error, the wait stays open, and so does its link.
            if moved.change.is_some() {
                let then = HandleChange::Take;
                moved.extras.handles.push(HandleWrite {
                    handle: row.handle,
                    expected: Some(row.fence),
                    then,
                });
            }
            moved.extras.actor = sender.id();
            moved.in_order = true;
            match inner.commit_and_drive(scope, &loaded_run, moved).await {
                Ok(()) => return Ok(()),
                Err(CommitFailure::Moved) => {}
                Err(failure) => return Err(EngineError::from(failure).into()),
            }
        }
        Err(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS })
    }

    async fn link_beat(&self, token: &str) -> Result<Timestamp, FlowError> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope);
        for _ in 0..MAX_ATTEMPTS {
            let (row, loaded_run, link) = self.link_of(token).await?;
            let now = inner.host.now();
            may_answer(&loaded_run, link.activation, &sender_of(&row, &link), now)
                .map_err(|error| refused(error, now))?;
            let wait = WaitId { run: row.run, activation: link.activation };
            if let Some(due) = inner.beat(scope, &loaded_run, wait).await? {
                return Ok(due);
            }
        }
        Err(FlowError::Busy { retry_after_ms: RETRY_AFTER_MS })
    }

    /// Loads the row, the run and the state of an answer link.
    async fn link_of(&self, token: &str) -> Result<(HandleRow, LoadedRun, AnswerLinkState), FlowError> {
        let (name, raw) = token::split(token).ok_or(FlowError::Gone)?;
        match self.shared.strategies.by_name.get(name) {
            Some(Strategy::Durable(_)) => {}
            Some(Strategy::Sealed(_) | Strategy::Handle(_)) => {
                let why = "only the wait of a durable run can be failed or get heartbeats: answer this token";
                return Err(EngineError::Invalid(why.to_owned()).into());
            }
            None if name == WATCH => return Err(FlowError::WatchOnly),
            None => return Err(FlowError::Gone),
        }
        let row = self.load_handle(name, raw, HandleKind::Link).await?;
        let (loaded_run, link) = self.load_link_run(&row).await?;
        Ok((row, loaded_run, link))
    }
}

fn sender_of(row: &HandleRow, link: &AnswerLinkState) -> Sender {
    Sender::Link(LinkSender::new(row.handle, link.answerer.clone(), link.is_trusted))
}

/// Returns the error for the holder of a link. It does not reveal why the link cannot be used.
fn refused(error: EngineError, now: Timestamp) -> FlowError {
    match error {
        EngineError::Refused(Refusal::NoActiveSource { .. } | Refusal::Terminal)
        | EngineError::NotAnAnswerer { .. } => FlowError::Gone,
        EngineError::Claimed { until, .. } => {
            FlowError::Busy { retry_after_ms: until.ms_since(now).max(RETRY_AFTER_MS) }
        }
        error => error.into(),
    }
}
