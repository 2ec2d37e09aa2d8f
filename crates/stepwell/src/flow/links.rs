//! Answer links: tokens that answer one wait of a durable run, created on request or by a step.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{Failure, Name, RunId, Snapshot, Timestamp};
use stepwell_store::{
    AuditRow, HandleChange, HandleHash, HandleKind, HandleRow, HandleWrite, Refused, Status, TenantScope,
};

use super::answer::{Answer, FlowError, Pause, pauses};
use super::commit::{AnswerLinkState, NextPause, StoredAnswer, message_of};
use super::flows::{Flows, Shared};
use super::outbox;
use super::outlet::{Message, Outgoing, QueuedMessage};
use super::resume::IdempotentRequest;
use super::token::Secret;
use crate::action::ActionError;
use crate::actor::Permission;
use crate::answering::names;
use crate::commit_cycle::CommitFailure;
use crate::error::EngineError;
use crate::loaded_run::{CommitExtras, LoadedRun};
use crate::waits::WaitId;

/// A request for an answer link to a wait of a durable run.
#[derive(Debug, Clone)]
pub struct CreateAnswerLink {
    run: RunId,
    place: Option<Name>,
    wait: Option<ActivationId>,
    outcomes: Vec<Name>,
    ttl_ms: Option<u64>,
    send: Option<Outgoing>,
    answerer: Option<String>,
    reason: Option<String>,
    key: Option<String>,
}

impl CreateAnswerLink {
    /// Selects the only wait of this run.
    pub fn new(run: RunId) -> Self {
        let (place, wait, outcomes, ttl_ms, send) = (None, None, Vec::new(), None, None);
        CreateAnswerLink { run, place, wait, outcomes, ttl_ms, send, answerer: None, reason: None, key: None }
    }

    /// Sets the answerer that the link is for: one of those that the wait names. Default: the only one.
    #[must_use]
    pub fn answerer(mut self, answerer: impl Into<String>) -> Self {
        self.answerer = Some(answerer.into());
        self
    }

    /// Sets the reason for creating a link for another person, which needs `workflow:admin`.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Selects the wait in this place.
    #[must_use]
    pub fn place(mut self, place: impl Into<Name>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// Selects the wait with this activation, for places that wait several times at once.
    #[must_use]
    pub fn wait(mut self, wait: ActivationId) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Allows this outcome. Default: every outcome that the place accepts.
    #[must_use]
    pub fn outcome(mut self, outcome: impl Into<Name>) -> Self {
        self.outcomes.push(outcome.into());
        self
    }

    /// Sets the lifetime of the link. Default: the strategy's.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = Some(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sends the link through an outlet. The caller then gets no token. The message's own outcomes and lifetime are
    /// ignored.
    #[must_use]
    pub fn send(mut self, message: Outgoing) -> Self {
        self.send = Some(message);
        self
    }

    /// Sets an idempotency key. A repeated request gets the same link.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Rejects a lifetime of zero and a message without a recipient.
    fn check(&self) -> Result<(), FlowError> {
        if self.ttl_ms == Some(0) {
            let why = "the TTL of the link must be greater than 0";
            return Err(FlowError::Engine(EngineError::Invalid(why.to_owned())));
        }
        let message = self.send.as_ref().map_or(Ok(()), Outgoing::check);
        let invalid = |error: ActionError| EngineError::Invalid(error.failure().message.clone());
        message.map_err(|error| FlowError::Engine(invalid(error)))
    }

    fn asked(&self) -> Option<IdempotentRequest> {
        let CreateAnswerLink { run, place, wait, outcomes, ttl_ms, send, answerer, reason, key } = self;
        let request = json!(["link", run, place, wait, outcomes, ttl_ms, send, answerer, reason]);
        IdempotentRequest::new(key.clone(), &request)
    }
}

/// An answer link to a wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AnswerLink {
    /// Token that answers the wait once. `None` if an outlet sends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Expiry of the link; `None` if it never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    pub place: Name,
    /// The activation that waits.
    pub wait: ActivationId,
    /// The outcomes that the link accepts.
    pub outcomes: Vec<Name>,
    /// Name of the outlet that sends the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<String>,
    /// This link was created by an earlier request with the same idempotency key.
    #[serde(skip)]
    pub is_replayed: bool,
}

impl Flows {
    /// Creates an answer link to a wait of a durable run: a token that answers it once.
    pub async fn create_answer_link(&self, to: CreateAnswerLink) -> Result<AnswerLink, FlowError> {
        self.engine.permit(Permission::Manage)?;
        to.check()?;
        if let Some(message) = &to.send {
            self.outlet(&message.outlet)?;
        }
        let asked = to.asked();
        let _answering = self.answering(asked.as_ref())?;
        if let Some(asked) = &asked
            && let Some(sealed) = self.recorded(asked).await?
        {
            return self.created_before(asked, &sealed);
        }
        let (inner, scope) = (&self.engine.inner, self.engine.scope);
        let loaded_run = inner.load(scope, to.run).await?;
        let workflow = loaded_run.definition().name();
        if !self.shared.is_allowed(workflow) {
            return Err(FlowError::NotAllowed(workflow.clone()));
        }
        let pause = selected(&to, &loaded_run)?;
        let id = WaitId { run: to.run, activation: pause.activation };
        let answerer = self.link_answerer(&to, id, &pause.answerers)?;
        let (link, row) = self.new_link(&to, &loaded_run, pause, answerer.clone())?;
        let now = inner.host.now();
        let audit = self.link_audit(&to, &link, &row, answerer.as_deref());
        let mut extras =
            CommitExtras { handles: vec![put_link(row)], audit: vec![audit], ..CommitExtras::default() };
        if let Some(asked) = &asked {
            let kept = StoredAnswer::Created(Box::new(link.clone()));
            extras.keys.push(self.keep(asked, &kept, to.run, now)?);
        }
        match (inner.apply(scope, inner.commit_of(scope, extras, now)).await, &asked) {
            (Ok(_), _) => Ok(link),
            (Err(CommitFailure::Refused(Refused::Done { answer, .. })), Some(asked)) => {
                self.created_before(asked, &answer)
            }
            (Err(failure), _) => Err(EngineError::from(failure).into()),
        }
    }

    /// Returns the link of an earlier request with the same key.
    fn created_before(&self, asked: &IdempotentRequest, sealed: &[u8]) -> Result<AnswerLink, FlowError> {
        match self.unsealed(&asked.key, sealed)? {
            StoredAnswer::Created(link) => Ok(AnswerLink { is_replayed: true, ..*link }),
            StoredAnswer::Answer(_) | StoredAnswer::Link { .. } => {
                Err(FlowError::KeyReused { key: asked.key.clone() })
            }
        }
    }

    /// Builds the link and its row, with the message if it is sent.
    fn new_link(
        &self,
        to: &CreateAnswerLink,
        loaded_run: &LoadedRun,
        pause: Pause,
        answerer: Option<String>,
    ) -> Result<(AnswerLink, HandleRow), FlowError> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope);
        let Some((name, durable)) = self.shared.strategies.durable(loaded_run.definition()) else {
            let why = "no durable strategy is registered, and answer links need one";
            return Err(FlowError::Engine(EngineError::Invalid(why.to_owned())));
        };
        let now = inner.host.now();
        let expires_at = to.ttl_ms.or(durable.ttl_ms).map(|ttl| now.plus_ms(ttl));
        let by = self.engine.actor_id();
        let created_by = by.clone();
        let next_pause =
            NextPause { name, created_at: now, created_by, now, expires_at, latest: None, outgoing: None };
        let secret = Secret::new(scope.tenant())?;
        let (handle, token) = (secret.hash(name), secret.token(name));
        let mut row = next_pause.row(handle, HandleKind::Link, loaded_run, by);
        let (activation, outcomes) = (pause.activation, to.outcomes.clone());
        let is_trusted = self.engine.actor().is_none();
        row.state = AnswerLinkState { activation, outcomes, answerer, is_trusted }.written();
        let mut link = AnswerLink {
            token: Some(token.clone()),
            expires_at,
            place: pause.place.clone(),
            wait: pause.activation,
            outcomes: if to.outcomes.is_empty() { pause.outcomes.clone() } else { to.outcomes.clone() },
            sent: None,
            is_replayed: false,
        };
        if let Some(send) = &to.send {
            let outgoing = Outgoing { outcomes: to.outcomes.clone(), ..send.clone() };
            let mut answer = Answer::of(loaded_run.definition(), &loaded_run.snapshot, Status::Waiting);
            answer.waits = vec![pause];
            let message = message_of(scope.tenant(), &outgoing, &answer, token, expires_at);
            // A wait can have several links, each with a message of its own.
            let message = Message { id: format!("{}-{handle}", message.id), ..message };
            self.shared.queue(scope, &mut row, &outgoing.outlet, message, now);
            (link.token, link.sent) = (None, Some(outgoing.outlet));
        }
        Ok((link, row))
    }

    /// Returns the answerer that a new link is for. Only that answerer may create it, or an administrator who gives a
    /// reason: the caller also chooses the recipient of a link that an outlet sends.
    fn link_answerer(
        &self,
        to: &CreateAnswerLink,
        wait: WaitId,
        answerers: &[String],
    ) -> Result<Option<String>, EngineError> {
        let answerer = match (&to.answerer, answerers) {
            (None, []) => return Ok(None),
            (None, [only]) => only.clone(),
            (Some(asked), all) if all.contains(asked) => asked.clone(),
            (None, _) if self.engine.actor().is_none() => return Ok(None),
            (asked, all) => {
                let asked = asked.as_deref().unwrap_or("none");
                let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
                let why =
                    format!("`answerer` must be one of the answerers of wait {wait}: {all} (got {asked})");
                return Err(EngineError::Invalid(why));
            }
        };
        match self.engine.actor() {
            Some(actor) if !names(actor, std::slice::from_ref(&answerer)) => {
                let has_reason = to.reason.as_ref().is_some_and(|reason| !reason.trim().is_empty());
                if !actor.may(Permission::Admin) || !has_reason {
                    let (actor, answerers) = (actor.id.clone(), vec![answerer]);
                    return Err(EngineError::NotAnAnswerer { actor, wait, answerers });
                }
            }
            _ => {}
        }
        Ok(Some(answerer))
    }

    fn link_audit(
        &self,
        to: &CreateAnswerLink,
        link: &AnswerLink,
        row: &HandleRow,
        answerer: Option<&str>,
    ) -> AuditRow {
        let AnswerLink { expires_at, place, wait, outcomes, sent, .. } = link;
        let detail = json!({
            "place": place, "wait": wait, "outcomes": outcomes, "expiresAt": expires_at, "outlet": sent,
            "answerer": answerer, "reason": to.reason,
        });
        AuditRow {
            operation: "answerLink.create".to_owned(),
            subject: format!("handle/{}", row.handle),
            actor: self.engine.actor_id(),
            run: Some(to.run),
            detail: detail.to_string().into(),
        }
    }
}

/// Returns the wait that a request selects.
fn selected(to: &CreateAnswerLink, loaded_run: &LoadedRun) -> Result<Pause, FlowError> {
    let waits = pauses(loaded_run.definition(), &loaded_run.snapshot);
    let fits = |pause: &Pause| {
        to.place.as_ref().is_none_or(|place| *place == pause.place)
            && to.wait.is_none_or(|wait| wait == pause.activation)
            && !pause.outcomes.is_empty()
    };
    let mut fitting: Vec<Pause> = waits.into_iter().filter(fits).collect();
    let is_over = loaded_run.snapshot.is_terminal();
    let pause = match (fitting.pop(), fitting.is_empty()) {
        (Some(pause), true) if !is_over => pause,
        (Some(pause), false) if !is_over => {
            fitting.push(pause);
            let waits = fitting.into_iter().map(|pause| (pause.activation, pause.place)).collect();
            return Err(FlowError::AmbiguousWait { run: to.run, waits });
        }
        _ => {
            let place = to.place.as_ref().map(|place| format!("at `{place}` ")).unwrap_or_default();
            return Err(FlowError::NoWait { run: to.run, place });
        }
    };
    if let Some(unknown) = to.outcomes.iter().find(|outcome| !pause.outcomes.contains(outcome)) {
        let given = Some(unknown.to_string());
        return Err(FlowError::Outcome { given, outcomes: pause.outcomes });
    }
    Ok(pause)
}

/// Builds the write that creates a link.
pub(super) fn put_link(row: HandleRow) -> HandleWrite {
    HandleWrite { handle: row.handle, expected: None, then: HandleChange::Put(Box::new(row), Vec::new()) }
}

/// Local variable of an activation that marks that its link was sent out. Its value is the activation's id.
const SENT: &str = "__sent";

/// Returns true if a link to this activation was sent out.
///
/// Later activations inherit the mark, so its value must equal the id.
pub(super) fn is_sent_out(snapshot: &Snapshot, id: ActivationId) -> bool {
    let mark = snapshot.activation(id).and_then(|activation| activation.locals.get(SENT));
    mark.and_then(serde_json::Value::as_u64) == Some(id)
}

/// Returns the first wait that `after` has and `before` has not.
fn newly_asked(before: &LoadedRun, after: &Snapshot) -> Option<Pause> {
    let is_new = |pause: &Pause| before.snapshot.activation(pause.activation).is_none();
    pauses(before.definition(), after).into_iter().find(is_new)
}

impl Shared {
    /// Stores a message with the row of its link until it is sent.
    fn queue(&self, scope: TenantScope, row: &mut HandleRow, outlet: &str, message: Message, now: Timestamp) {
        let queued = QueuedMessage { outlet: outlet.to_owned(), message, attempts: 0 };
        let handle: HandleHash = row.handle;
        row.deliver_at = Some(self.deliver_at(now));
        row.delivery = Some(outbox::sealed(self, scope, &handle, &queued));
    }

    /// Creates the link that an action of a durable run sends out.
    ///
    /// It leads to the wait that the transition opens. The row keeps the sealed message until it is sent.
    pub(crate) fn sent_out(
        self: &Arc<Self>,
        scope: TenantScope,
        outgoing: &Outgoing,
        before: &LoadedRun,
        after: &Snapshot,
        now: Timestamp,
    ) -> Result<HandleWrite, Failure> {
        let wrong = |why: String| Failure::new("cannotSend", why).non_retryable();
        self.outlet(&outgoing.outlet).map_err(|error| wrong(error.to_string()))?;
        if !self.is_allowed(before.definition().name()) {
            let why = format!("workflow `{}` is not allowed as a flow here", before.definition().name());
            return Err(wrong(why));
        }
        let Some((name, durable)) = self.strategies.durable(before.definition()) else {
            return Err(wrong("no durable strategy is registered, and answer links need one".to_owned()));
        };
        let Some(pause) = newly_asked(before, after) else {
            return Err(wrong("its transition leads to no place that accepts an answer".to_owned()));
        };
        if let Some(unknown) = outgoing.outcomes.iter().find(|outcome| !pause.outcomes.contains(outcome)) {
            return Err(wrong(format!("`{unknown}` is not accepted at `{}`", pause.place)));
        }
        let expires_at = outgoing.ttl_ms.or(durable.ttl_ms).map(|ttl| now.plus_ms(ttl));
        let secret = Secret::new(scope.tenant()).map_err(|error| wrong(error.to_string()))?;
        let mut answer = Answer::of(before.definition(), after, Status::Waiting);
        answer.waits = vec![pause.clone()];
        let message = message_of(scope.tenant(), outgoing, &answer, secret.token(name), expires_at);
        let by = before.workflow.publisher().map(|actor| actor.id.clone());
        let created_by = by.clone();
        let next_pause =
            NextPause { name, created_at: now, created_by, now, expires_at, latest: None, outgoing: None };
        let mut row = next_pause.row(secret.hash(name), HandleKind::Link, before, by);
        row.state =
            // The author of the workflow has chosen the recipient.
            AnswerLinkState::trusted(pause.activation, outgoing.outcomes.clone()).written();
        self.queue(scope, &mut row, &outgoing.outlet, message, now);
        Ok(put_link(row))
    }
}

/// Returns the local variable that marks the next wait as sent out, if the transition opens one.
pub(crate) fn sent_mark(before: &LoadedRun, after: &Snapshot) -> Option<(&'static str, serde_json::Value)> {
    newly_asked(before, after).map(|pause| (SENT, pause.activation.into()))
}
