//! The waits that people answer: list and show them, claim and release them, answer them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};
use stepwell_core::graph::{OpenWait, WaitKind, open_waits};
use stepwell_core::schema::Schema;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{Answerer, Failure, Name, Refusal, RunId, Timestamp};
use stepwell_store::{
    BadRow, Page, Record, RecordQuery, Recorded, StoredWait, TenantScope, WaitFilter, WaitQuery, WaitRow,
};

use crate::actor::{Actor, Permission};
use crate::admission::queue::QueuedRun;
use crate::answering::{self, Sender, may_answer, names};
use crate::commit_cycle::{CommitFailure, MAX_ATTEMPTS};
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::idempotent::Idempotent;
use crate::ledger::WaitClaim;
use crate::loaded_run::{LoadedRun, PendingCommit};
use crate::registry::OWN;
use crate::registry::refuse_own;
use crate::remote::TaskRow;
use crate::signal::{FirstAnswer, Signal, Signalled};

/// Default duration of a claim.
pub const DEFAULT_CLAIM: Duration = Duration::from_secs(3_600);
/// Minimum and maximum duration of a claim, in milliseconds.
const CLAIMS_MS: (u64, u64) = (1_000, 7 * 24 * 3_600_000);
/// Maximum number of waits that one listing examines. A page may be short, and its cursor continues the search.
const EXAMINED: usize = 5_000;
/// Number of rows per read while a listing examines waits.
const READ_AT_ONCE: u32 = 500;
/// Key of the claim in the stored detail of a wait.
const CLAIM: &str = "claim";
/// Operations of audit rows.
const CLAIMED: &str = "wait.claim";
const RELEASED: &str = "wait.release";

/// The id of a wait: a run and the activation that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId {
    pub run: RunId,
    pub activation: ActivationId,
}

impl fmt::Display for WaitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.run, self.activation)
    }
}

impl FromStr for WaitId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('.').and_then(|(run, activation)| {
            Some(WaitId { run: run.parse().ok()?, activation: activation.parse().ok()? })
        });
        parts.ok_or_else(|| format!("`{text}` is not a wait id: it must be a run id, a dot and a number"))
    }
}

impl Serialize for WaitId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WaitId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An open wait in a listing.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenWaitRow {
    pub id: WaitId,
    pub workflow: Name,
    pub kind: WaitKind,
    pub place: Name,
    /// Title of the prompt.
    pub title: Option<String>,
    /// The prompt for the person who answers.
    pub prompt: Option<Value>,
    /// The outcomes that an answer can have.
    pub outcomes: Vec<Name>,
    /// JSON Schema of the answer.
    pub form: Option<Value>,
    /// The users and roles that may answer; empty = every caller who may signal the run.
    pub answerers: Vec<String>,
    /// Time at which the wait opened.
    pub since: Timestamp,
    /// Time at which the wait times out.
    pub due: Option<Timestamp>,
    /// The actor who has claimed the wait, and the end of the claim.
    pub claim: Option<(String, Timestamp)>,
    /// Number of children that have not ended yet.
    pub children: Option<u64>,
    /// Name of the awaited event.
    pub event: Option<Name>,
}

/// The claim in the stored detail of a wait.
#[derive(Debug, Serialize, Deserialize)]
struct StoredClaim {
    by: String,
    until: Timestamp,
}

impl OpenWaitRow {
    /// Reads a wait from its stored row. `None` if the row is the task of a remote worker.
    fn of(row: &WaitRow, now: Timestamp) -> Option<Self> {
        if TaskRow::of(row).is_some() {
            return None;
        }
        let WaitRow { run, wait } = row;
        let detail: Map<String, Value> = serde_json::from_slice(&wait.detail).ok()?;
        let read = |name: &str| detail.get(name).cloned();
        let claim: Option<StoredClaim> = read(CLAIM).and_then(|claim| serde_json::from_value(claim).ok());
        let event = detail.get("event").and_then(|event| event.get("name")?.as_str().map(Name::from));
        Some(OpenWaitRow {
            id: WaitId { run: *run, activation: wait.activation },
            workflow: Name::from(detail.get("workflow")?.as_str()?),
            kind: WaitKind::deserialize(detail.get("kind")?).ok()?,
            place: wait.place.clone(),
            title: read("title").and_then(|title| title.as_str().map(str::to_owned)),
            prompt: read("prompt"),
            outcomes: serde_json::from_value(read("signals")?).ok()?,
            form: read("form"),
            answerers: read("answerers").and_then(|all| serde_json::from_value(all).ok()).unwrap_or_default(),
            since: wait.since,
            due: wait.until,
            claim: claim.filter(|claim| claim.until > now).map(|claim| (claim.by, claim.until)),
            children: read("children").and_then(|children| children.as_u64()),
            event,
        })
    }
}

/// Reports a wait whose stored detail cannot be read.
fn unreadable_wait(row: &WaitRow) -> BadRow {
    let key = format!("{}:{}", row.run, row.wait.activation);
    let why = "the detail of the wait is unreadable".to_owned();
    BadRow { table: "waits", key, run: Some(row.run), why }
}

/// A query for open waits.
#[derive(Debug, Clone, Default)]
pub struct ListWaits {
    /// Only waits that one of these answerers may answer; `None` = no restriction.
    pub answerers: Option<Vec<Answerer>>,
    pub kind: Option<WaitKind>,
    pub workflow: Option<Name>,
    /// Only waits that time out before this time.
    pub due_before: Option<Timestamp>,
    /// Only waits of this run, in the order of their activations.
    pub run: Option<RunId>,
    /// Maximum number of waits.
    pub limit: u32,
    pub cursor: Option<String>,
}

impl ListWaits {
    fn has(&self, wait: &OpenWaitRow) -> bool {
        let is_for = |answerers: &Vec<Answerer>| {
            answerers.iter().any(|answerer| wait.answerers.contains(&answerer.to_string()))
        };
        // The waits of schedules and events are of no use to callers: they cannot be answered.
        !wait.workflow.starts_with(OWN)
            && self.answerers.as_ref().is_none_or(is_for)
            && self.kind.is_none_or(|kind| wait.kind == kind)
            && self.workflow.as_ref().is_none_or(|workflow| wait.workflow == *workflow)
            && self.due_before.is_none_or(|before| wait.due.is_some_and(|due| due < before))
    }

    /// Returns true if neither this wait nor any later one in the order of due times matches.
    fn is_past(&self, row: &WaitRow) -> bool {
        let due = row.wait.due.unwrap_or(Timestamp::MAX);
        self.run.is_none() && self.due_before.is_some_and(|before| due >= before)
    }

    /// Returns the cursor after this wait.
    fn cursor_after(&self, row: &WaitRow) -> String {
        let (run, activation) = (row.run, row.wait.activation);
        match self.run {
            Some(_) => format!("{run}:{activation}"),
            None => {
                stepwell_store::store::due_cursor(row.wait.due.unwrap_or(Timestamp::MAX), run, activation)
            }
        }
    }
}

/// An answer to a wait.
#[derive(Debug, Clone, Default)]
pub struct AnswerWait {
    /// Default: the only outcome that the wait accepts.
    pub outcome: Option<Name>,
    pub input: Value,
    /// The reason for answering for others, which needs `workflow:admin`.
    pub reason: Option<String>,
    /// Idempotency key, valid for the life of the run.
    pub key: Option<String>,
}

/// The failure of a wait, instead of an answer.
#[derive(Debug, Clone)]
pub struct FailWait {
    /// The error with which the step fails.
    pub failure: Failure,
    /// The reason for failing the wait of others, which needs `workflow:admin`.
    pub reason: Option<String>,
    /// Idempotency key, valid for the life of the run.
    pub key: Option<String>,
}

impl FailWait {
    /// Creates the failure of a wait.
    pub fn new(failure: Failure) -> Self {
        FailWait { failure, reason: None, key: None }
    }
}

impl Engine {
    /// Lists open waits in the order of their due time. With `workflow:answer` alone, callers see only the waits that
    /// name them or one of their roles.
    pub async fn list_waits(&self, query: ListWaits) -> Result<Page<OpenWaitRow>, EngineError> {
        let query = self.visible(query)?;
        let limit = stepwell_store::store::page_rows(query.limit);
        let (now, mut cursor) = (self.now(), query.cursor.clone());
        let (mut items, mut bad, mut examined) = (Vec::new(), Vec::new(), 0);
        loop {
            let of = query.run.map_or(WaitFilter::Due, WaitFilter::Run);
            let asked = WaitQuery { of, limit: READ_AT_ONCE, cursor };
            let page = self.store().waits(self.scope(), asked).await?;
            bad.extend(page.bad);
            for (at, row) in page.items.iter().enumerate() {
                if query.is_past(row) {
                    return Ok(Page { items, next: None, bad });
                }
                match OpenWaitRow::of(row, now) {
                    Some(wait) => items.extend(Some(wait).filter(|wait| query.has(wait))),
                    None if TaskRow::of(row).is_none() && QueuedRun::of(row).is_none() => {
                        bad.push(unreadable_wait(row));
                    }
                    None => {}
                }
                examined += 1;
                let has_more = at + 1 < page.items.len() || page.next.is_some();
                if items.len() >= limit || examined >= EXAMINED {
                    return Ok(Page { items, next: has_more.then(|| query.cursor_after(row)), bad });
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(Page { items, next: None, bad });
            }
        }
    }

    /// Restricts a listing to what the caller may see.
    fn visible(&self, query: ListWaits) -> Result<ListWaits, EngineError> {
        let Some(actor) = self.actor().filter(|actor| !actor.may(Permission::View)) else { return Ok(query) };
        self.permit(Permission::Answer)?;
        let own = actor.answerers();
        let answerers = match &query.answerers {
            Some(asked) if asked.iter().all(|one| own.contains(one)) => asked.clone(),
            Some(_) => self.permit(Permission::View).map(|()| own)?,
            None => own,
        };
        Ok(ListWaits { answerers: Some(answerers), ..query })
    }

    /// Returns an open wait.
    pub async fn show_wait(&self, id: WaitId) -> Result<OpenWaitRow, EngineError> {
        if self.permit(Permission::View).is_err() {
            self.permit(Permission::Answer)?;
        }
        let wait = self.inner.open_wait_row(self.scope(), id).await?;
        match self.actor() {
            Some(actor) if !actor.may(Permission::View) => may_see(actor, &wait)?,
            _ => {}
        }
        Ok(wait)
    }

    /// Answers a wait. A second answer is refused, and the error names the first.
    pub async fn answer_wait(&self, id: WaitId, answer: AnswerWait) -> Result<Idempotent<()>, EngineError> {
        let Some((_, wait)) = self.answerable(id, answer.reason.as_deref()).await? else {
            return self.answered_before(id, answer).await;
        };
        let outcome = chosen_outcome(id, &wait, answer.outcome.as_ref())?;
        let form = wait.form.as_ref().and_then(|form| Schema::compile(form).ok());
        let violations = form.map(|form| form.check(&answer.input)).unwrap_or_default();
        if !violations.is_empty() {
            return Err(Refusal::InvalidPayload { signal: outcome, violations }.into());
        }
        let signal = self.answer_signal(id, &answer, outcome);
        let done = match self.inner.signal(self.scope(), id.run, &signal).await {
            // Another answer was taken meanwhile, and the wait has no record of it.
            Err(EngineError::Refused(Refusal::NoActiveSource { .. } | Refusal::Terminal)) => {
                Err(EngineError::NoWait(id))
            }
            done => done,
        };
        Ok(done?.map(|_: Signalled| ()))
    }

    fn answer_signal(&self, id: WaitId, answer: &AnswerWait, outcome: Name) -> Signal {
        let signal = Signal::new(outcome).with(&answer.input).answering(id.activation);
        let signal = answer.reason.iter().fold(signal, Signal::reason);
        answer.key.iter().fold(signal, Signal::id).by(self.shared_actor())
    }

    /// Reports an answer to a wait that is no longer open: the same request is repeated, or it is the second.
    async fn answered_before(&self, id: WaitId, answer: AnswerWait) -> Result<Idempotent<()>, EngineError> {
        let first = self.inner.first_answer(self.scope(), id).await?.ok_or(EngineError::NoWait(id))?;
        let outcome = answer.outcome.clone().unwrap_or(first.signal);
        self.repeated(id, &self.answer_signal(id, &answer, outcome)).await
    }

    /// Returns the result of the same request if it was made before.
    async fn repeated(&self, id: WaitId, signal: &Signal) -> Result<Idempotent<()>, EngineError> {
        let payload = signal.payload()?;
        let key = signal.key(id.run, &payload, Signalled::Consumed);
        let refused = EngineError::NoWait(id);
        let done = self.inner.resolve_refusal(self.scope(), id.run, signal, &payload, key.as_ref(), refused);
        Ok(done.await?.map(|_: Signalled| ()))
    }

    /// Rejects an answer to a wait without answerers from a caller who may not signal the run.
    fn permit_answer(
        &self,
        loaded_run: &LoadedRun,
        wait: &OpenWait,
        reason: Option<&str>,
    ) -> Result<(), EngineError> {
        let sender = Sender::of(self.shared_actor(), reason.map(str::to_owned), None);
        may_answer(loaded_run, wait.activation, &sender, self.now())?;
        if wait.answerers.is_empty() { self.permit(Permission::Manage) } else { Ok(()) }
    }

    fn permit_any(&self, permissions: &[Permission]) -> Result<(), EngineError> {
        match permissions.iter().any(|permission| self.permit(*permission).is_ok()) {
            true => Ok(()),
            false => self.permit(permissions[0]),
        }
    }

    /// Fails a wait: its step fails with this error, which its `retry` and error handlers see. It needs the permission
    /// to answer the wait. The failure counts as the answer, so that a later answer is refused. If nothing handles the
    /// error, the run stops with it, and the wait can be answered after the run was retried.
    pub async fn fail_wait(&self, id: WaitId, fail: FailWait) -> Result<Idempotent<()>, EngineError> {
        check_failure(&fail.failure)?;
        let reason = fail.reason.as_deref();
        let open = self.answerable(id, reason).await?;
        let signal = Signal::failing(id.activation, fail.failure);
        let signal = fail.reason.into_iter().fold(signal, Signal::reason);
        let signal = fail.key.into_iter().fold(signal, Signal::id).by(self.shared_actor());
        if open.is_none() {
            return self.repeated(id, &signal).await;
        }
        let done = match self.inner.signal(self.scope(), id.run, &signal).await {
            Err(EngineError::Refused(Refusal::NoActiveSource { .. } | Refusal::Terminal)) => {
                Err(EngineError::NoWait(id))
            }
            done => done,
        };
        Ok(done?.map(|_: Signalled| ()))
    }

    /// Records a heartbeat of a wait, and returns the time at which the next one is due. The timeout of the whole wait
    /// stays. It needs the permission to answer the wait.
    pub async fn heartbeat_wait(&self, id: WaitId, reason: Option<String>) -> Result<Timestamp, EngineError> {
        for _ in 0..MAX_ATTEMPTS {
            let Some((loaded_run, _)) = self.answerable(id, reason.as_deref()).await? else {
                return Err(self.closed(id).await?);
            };
            if let Some(due) = self.inner.beat(self.scope(), &loaded_run, id).await? {
                return Ok(due);
            }
        }
        Err(EngineError::Contended { run: id.run, attempts: MAX_ATTEMPTS })
    }

    /// Loads the run of a wait that the caller may answer. `None`: the wait is no longer open.
    async fn answerable(
        &self,
        id: WaitId,
        reason: Option<&str>,
    ) -> Result<Option<(LoadedRun, OpenWait)>, EngineError> {
        self.permit_any(&[Permission::Answer, Permission::Manage, Permission::Admin])?;
        let loaded_run = match self.inner.load(self.scope(), id.run).await {
            Err(EngineError::NoRun(_)) => return Err(EngineError::NoWait(id)),
            loaded => loaded?,
        };
        refuse_own(loaded_run.definition().name(), id.run)?;
        let open = open_waits(loaded_run.definition(), &loaded_run.snapshot);
        let Some(wait) = open.into_iter().find(|wait| wait.activation == id.activation) else {
            return Ok(None);
        };
        if !matches!(wait.kind, WaitKind::Task | WaitKind::Signal) {
            return Err(not_for_people(id));
        }
        self.permit_answer(&loaded_run, &wait, reason)?;
        Ok(Some((loaded_run, wait)))
    }

    /// Returns the error for a wait that is no longer open. It names the answer.
    async fn closed(&self, id: WaitId) -> Result<EngineError, EngineError> {
        let first = self.inner.first_answer(self.scope(), id).await?;
        let answered = |first| EngineError::AlreadyAnswered { run: id.run, wait: id.activation, first };
        Ok(first.map_or(EngineError::NoWait(id), answered))
    }

    /// Claims a wait: until the claim lapses or is released, only the caller may answer. Claiming it again extends the
    /// claim.
    pub async fn claim_wait(
        &self,
        id: WaitId,
        lease: Duration,
        reason: Option<String>,
    ) -> Result<WaitClaimed, EngineError> {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let (least, most) = CLAIMS_MS;
        if !(least..=most).contains(&lease_ms) {
            let why = format!("a claim must be {least} to {most} ms long (got {lease_ms} ms)");
            return Err(EngineError::Invalid(why));
        }
        let Some(actor) = self.actor() else {
            let why = "only a caller can claim a wait: use `Engine::acting`";
            return Err(EngineError::Invalid(why.to_owned()));
        };
        let (by, user) = (actor.id.clone(), actor.user.clone());
        let claim = |now: Timestamp| WaitClaim {
            by: by.clone(),
            user: user.clone(),
            at: now,
            until: now.plus_ms(lease_ms),
        };
        let claim = self.change_claim(id, reason, |now| Some(claim(now))).await?;
        let claim = claim.unwrap_or_else(|| unreachable!("a claim was made"));
        Ok(WaitClaimed { by: claim.by, until: claim.until })
    }

    /// Releases a claim. A wait without a claim stays as it is.
    pub async fn release_wait(&self, id: WaitId, reason: Option<String>) -> Result<(), EngineError> {
        self.change_claim(id, reason, |_| None).await.map(drop)
    }

    async fn change_claim(
        &self,
        id: WaitId,
        reason: Option<String>,
        claim: impl Fn(Timestamp) -> Option<WaitClaim>,
    ) -> Result<Option<WaitClaim>, EngineError> {
        let (inner, scope) = (&self.inner, self.scope());
        for _ in 0..MAX_ATTEMPTS {
            let Some((loaded_run, _)) = self.answerable(id, reason.as_deref()).await? else {
                return Err(self.closed(id).await?);
            };
            let (now, mut ledger) = (self.now(), loaded_run.ledger.clone());
            let claim = claim(now);
            let had = match &claim {
                Some(claim) => ledger.claims.insert(id.activation, claim.clone()),
                None => ledger.claims.remove(&id.activation),
            };
            if claim.is_none() && had.is_none() {
                return Ok(None);
            }
            let mut next = PendingCommit::note(ledger);
            next.extras.audit.extend(self.actor_id().map(|actor| {
                let operation = if claim.is_some() { CLAIMED } else { RELEASED };
                let until = claim.as_ref().map(|claim| claim.until);
                let from = had.as_ref().map(|had| &had.by).filter(|by| **by != actor).cloned();
                let detail = json!({"wait": id, "until": until, "from": from, "reason": reason});
                answering::row(operation, id.run, actor, &detail)
            }));
            match inner.commit_and_drive(scope, &loaded_run, next).await {
                Ok(()) => return Ok(claim),
                Err(CommitFailure::Moved) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(EngineError::Contended { run: id.run, attempts: MAX_ATTEMPTS })
    }
}

/// A claim on a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitClaimed {
    /// Id of the actor.
    pub by: String,
    pub until: Timestamp,
}

impl Inner {
    /// Commits a heartbeat of a wait, and returns the time at which the next one is due. `None`: the run has changed
    /// since it was loaded.
    pub(crate) async fn beat(
        self: &Arc<Self>,
        scope: TenantScope,
        loaded_run: &LoadedRun,
        id: WaitId,
    ) -> Result<Option<Timestamp>, EngineError> {
        let now = self.host.now();
        let Some(due) = loaded_run.snapshot.heartbeat_due(loaded_run.definition(), id.activation) else {
            let why = format!("wait {id} takes no heartbeats: set `heartbeat` of its step");
            return Err(EngineError::Invalid(why));
        };
        if loaded_run.is_stopped() || due <= now {
            let why = match due <= now {
                true => format!("the heartbeat of wait {id} was due at {due}"),
                false => "a run that has stopped takes no heartbeats".to_owned(),
            };
            return Err(EngineError::WrongStatus { run: id.run, status: loaded_run.head.status, why });
        }
        let mut after = loaded_run.clone();
        after.ledger.heartbeats.insert(id.activation, now);
        after.apply_heartbeats();
        let due = after.snapshot.heartbeat_due(after.definition(), id.activation).unwrap_or(due);
        match self.commit_and_drive(scope, loaded_run, PendingCommit::note(after.ledger)).await {
            Ok(()) => Ok(Some(due)),
            Err(CommitFailure::Moved) => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Reads an open wait of a run.
    async fn open_wait_row(&self, scope: TenantScope, id: WaitId) -> Result<OpenWaitRow, EngineError> {
        let cursor = id.activation.checked_sub(1).map(|before| format!("{}:{before}", id.run));
        let query = WaitQuery { of: WaitFilter::Run(id.run), limit: 1, cursor };
        let row = self.store.waits(scope, query).await?.items.pop();
        let row = row.filter(|row| row.wait.activation == id.activation);
        match row.and_then(|row| OpenWaitRow::of(&row, self.host.now())) {
            Some(wait) => Ok(wait),
            None => match self.first_answer(scope, id).await? {
                Some(first) => Err(EngineError::AlreadyAnswered { run: id.run, wait: id.activation, first }),
                None => Err(EngineError::NoWait(id)),
            },
        }
    }

    /// Returns the recorded answer to a wait.
    async fn first_answer(&self, scope: TenantScope, id: WaitId) -> Result<Option<FirstAnswer>, EngineError> {
        let (operation, key) = (format!("answer:{}", id.run), id.activation.to_string());
        let query = RecordQuery::Key { operation, key, now: self.host.now() };
        match self.store.records(scope, query).await?.items.pop() {
            Some(Record::Key(Recorded { answer: Some(first), .. })) => {
                let first = serde_json::from_slice(&first);
                first
                    .map(Some)
                    .map_err(|error| EngineError::Unreadable { run: id.run, why: error.to_string() })
            }
            _ => Ok(None),
        }
    }
}

/// Rejects a caller whom the wait does not name.
fn may_see(actor: &Actor, wait: &OpenWaitRow) -> Result<(), EngineError> {
    if names(actor, &wait.answerers) {
        return Ok(());
    }
    let (actor, answerers) = (actor.id.clone(), wait.answerers.clone());
    Err(EngineError::NotAnAnswerer { actor, wait: wait.id, answerers })
}

/// Maximum length of the code and the message of a failed wait, in characters.
const MAX_CODE: usize = 100;
const MAX_MESSAGE: usize = 2_000;

/// Checks the error with which a wait fails.
pub(crate) fn check_failure(failure: &Failure) -> Result<(), EngineError> {
    let (code, message) = (failure.code.chars().count(), failure.message.chars().count());
    let why = if code == 0 || code > MAX_CODE {
        format!("`code` must have 1 to {MAX_CODE} characters (got {code})")
    } else if message > MAX_MESSAGE {
        format!("`message` must have at most {MAX_MESSAGE} characters (got {message})")
    } else {
        return Ok(());
    };
    Err(EngineError::Invalid(why))
}

fn not_for_people(id: WaitId) -> EngineError {
    EngineError::Invalid(format!(
        "wait {id} is for an event or for children: it cannot be claimed or answered"
    ))
}

/// Chooses the outcome of an answer: the given one, or the only one.
fn chosen_outcome(id: WaitId, wait: &OpenWait, outcome: Option<&Name>) -> Result<Name, EngineError> {
    if !matches!(wait.kind, WaitKind::Task | WaitKind::Signal) {
        return Err(not_for_people(id));
    }
    match (outcome, &wait.signals[..]) {
        (None, [only]) => Ok(only.clone()),
        (Some(outcome), all) if all.contains(outcome) => Ok(outcome.clone()),
        (outcome, all) => {
            let given = outcome.map_or("none", |outcome| outcome.as_str());
            let all: Vec<_> = all.iter().map(|one| format!("`{one}`")).collect();
            let why = format!("`outcome` must be one of {} (got {given})", all.join(", "));
            Err(EngineError::Invalid(why))
        }
    }
}

/// Adds the claims of a run to the stored details of its waits.
pub(crate) fn with_claims(loaded_run: &LoadedRun, mut waits: Vec<StoredWait>) -> Vec<StoredWait> {
    for (activation, claim) in &loaded_run.ledger.claims {
        let Some(wait) = waits.iter_mut().find(|wait| wait.activation == *activation) else { continue };
        let Ok(mut detail) = serde_json::from_slice::<Map<String, Value>>(&wait.detail) else { continue };
        let claim = StoredClaim { by: claim.by.clone(), until: claim.until };
        detail.insert(CLAIM.to_owned(), serde_json::to_value(claim).expect("a claim is plain data"));
        wait.detail = Value::Object(detail).to_string().into();
    }
    waits
}
