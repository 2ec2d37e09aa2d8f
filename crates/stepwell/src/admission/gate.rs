//! The gate of a limit for one key: a durable run that admits other runs.
//!
//! The state of a gate is in its ledger: the runs that it has admitted, and the times at which they began. So a gate
//! writes no versions and has no history. The waiting runs are not in its state but in the table of waits, so a queue
//! may be of any length.
//!
//! A gate without admitted runs and without a queue is stored as completed, so that retention removes it. The next run
//! creates it or opens it again.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use stepwell_core::admission::{LimitKind, WhenFull};
use stepwell_core::shadow::ShadowValue;
use stepwell_core::{Definition, Limits, Name, RunId, Spec, Timestamp, start};
use stepwell_store::{
    NewRun, NextState, OnMissingRun, SendMessage, ShadowWrite, Status, StoreError, TenantScope,
};

use super::queue::QueuedRun;
use super::{KeyedLimit, Verdict};
use crate::engine::{Builder, Inner};
use crate::error::EngineError;
use crate::inbox::MessageBody;
use crate::ledger::Ledger;
use crate::loaded_run::{LoadedRun, PendingCommit};
use crate::planner::{Idle, NextStep};
use crate::registry::Workflow;

/// The workflow of gates.
pub(crate) const WORKFLOW: &str = "stepwell.gate";
/// The shadow column with the name of the limited workflow.
pub(super) const OF: &str = "workflow";
/// Maximum number of runs that one commit admits, refuses or cancels.
const BATCH: usize = 200;
/// Maximum number of messages that one commit takes.
const MOST_MESSAGES: usize = 2_000;
/// First and longest pause, in milliseconds, after which a gate with a queue checks that its admitted runs still exist.
/// They tell it when they end; only a run that was deleted or became unreadable does not. The pause grows with the time
/// for which the gate has been full.
const CHECK_MS: (u64, u64) = (10_000, 300_000);
/// Maximum number of admitted runs that one check reads.
const CHECKED_AT_ONCE: usize = 50;

/// The state of a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GateState {
    /// The limited workflow. All its versions share the gate.
    pub(crate) workflow: Name,
    pub(crate) limit: KeyedLimit,
    /// The numbers of the workflow's active version when the gate last acted.
    pub(crate) rule: Rule,
    /// The runs that count, oldest first, and those whose confirmation is under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) runs: Vec<GateEntry>,
    /// Rate limit: the times at which runs began within the window, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) begun: Vec<Timestamp>,
    /// Time since which runs wait without a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) full_since: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wake: Option<Timestamp>,
}

/// The numbers of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rule {
    /// Maximum number of runs; `None` = the active version has no such limit.
    pub(crate) limit: Option<u32>,
    /// Rate limit: the window in milliseconds.
    #[serde(default)]
    pub(crate) window_ms: u64,
    #[serde(default)]
    pub(crate) when_full: WhenFull,
}

/// A run that a gate has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GateEntry {
    pub(crate) run: RunId,
    pub(crate) request: u32,
    pub(crate) since: Timestamp,
    #[serde(default)]
    pub(crate) is: EntryState,
}

/// The answer that a run got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum EntryState {
    /// The run was admitted and counts.
    #[default]
    Active,
    /// It was admitted and then cancelled in favour of a newer run. It counts until it has ended.
    Ending,
    /// It was refused and never counted.
    Refused,
}

impl Rule {
    /// Returns the numbers that a definition sets.
    fn of(definition: &Definition, kind: LimitKind) -> Self {
        let spec = definition.spec();
        let none = Rule { limit: None, window_ms: 0, when_full: WhenFull::Wait };
        match kind {
            LimitKind::Concurrency => spec.concurrency.as_ref().map_or(none, |one| Rule {
                limit: Some(one.limit),
                when_full: one.when_full,
                ..none
            }),
            LimitKind::Rate => spec.rate_limit.as_ref().map_or(none, |one| {
                let (limit, window_ms) = one.window();
                Rule { limit: Some(limit), window_ms, ..none }
            }),
        }
    }
}

impl GateState {
    /// Returns the number of runs that count.
    pub(crate) fn count(&self) -> usize {
        self.runs.iter().filter(|entry| entry.is != EntryState::Refused).count()
    }

    fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.begun.is_empty() && self.wake.is_none()
    }

    /// Returns the time of the next check of the admitted runs.
    fn next_check(&self, now: Timestamp) -> Timestamp {
        let full_ms = self.full_since.map_or(0, |since| now.ms_since(since));
        now.plus_ms(full_ms.clamp(CHECK_MS.0, CHECK_MS.1))
    }

    fn enter(&mut self, queued: &QueuedRun, now: Timestamp, is: EntryState) {
        self.runs.push(GateEntry { run: queued.run, request: queued.request, since: now, is });
    }
}

/// Returns the id of the gate of a limit. The name of the workflow identifies it, so all versions share it.
pub(crate) fn id(workflow: &Name, limit: &KeyedLimit) -> RunId {
    let hash = Sha256::digest(json!([workflow, limit.kind, limit.key]).to_string().as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    RunId::new(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

/// Returns the message of a run that has joined the queue of a gate. It creates the gate if necessary.
pub(crate) fn joined(workflow: &Workflow, limit: &KeyedLimit, now: Timestamp) -> SendMessage {
    let name = workflow.definition.name();
    let state = GateState {
        workflow: name.clone(),
        limit: limit.clone(),
        rule: Rule::of(&workflow.definition, limit.kind),
        runs: Vec::new(),
        begun: Vec::new(),
        full_since: None,
        wake: None,
    };
    let gate = id(name, limit);
    let mut send = MessageBody::JoinedQueue.to(gate);
    send.missing = OnMissingRun::Create(Box::new(new_run(gate, state, now)));
    send
}

fn new_run(gate: RunId, state: GateState, now: Timestamp) -> NewRun {
    let definition = definition();
    let shadow = ShadowWrite {
        workflow: definition.name().clone(),
        name: OF.into(),
        value: Some(ShadowValue::Text(state.workflow.to_string())),
    };
    let change = start(definition, gate, json!({}), now).expect("a gate starts with any input");
    let encoded = change.snapshot.encode_without_long_lists(&Limits::default());
    let entry = serde_json::to_vec(&change.entry).expect("a history entry is plain data");
    let first = NextState {
        state: encoded.expect("the state of a gate is small").into(),
        entry: entry.into(),
        places: change.snapshot.current_places(),
    };
    NewRun {
        run: gate,
        workflow: definition.name().clone(),
        definition: definition.hash(),
        version: change.snapshot.version(),
        first,
        status: Status::Running,
        error: None,
        wake: Some(now),
        owner: None,
        parent: None,
        root: gate,
        ledger: Ledger { gate: Some(Box::new(state)), ..Ledger::default() }.write(),
        open: Vec::new(),
        shadows: vec![shadow],
    }
}

/// Returns the definition of gates. Its only place is never left: the state of a gate is in its ledger.
pub(super) fn definition() -> &'static Definition {
    static DEFINITION: OnceLock<Definition> = OnceLock::new();
    DEFINITION.get_or_init(|| {
        let spec = Spec::new(WORKFLOW).initial("open").step("open").end("closed").signal("CLOSE");
        let spec = spec.on_signal("close", "open", "CLOSE", "closed");
        spec.build().expect("the workflow of gates is sound: every engine's tests build it")
    })
}

/// Registers the workflow of gates.
pub(crate) fn equip(builder: Builder) -> Builder {
    builder.own_workflow(definition().clone())
}

/// Returns true if the run is a gate that is stored as completed. Its commit must come after every message in its inbox,
/// because a message that arrives later opens it again.
pub(crate) fn closes(loaded_run: &LoadedRun) -> bool {
    loaded_run.ledger.gate.as_ref().is_some_and(|gate| gate.is_idle())
}

/// Returns the next step of a gate.
pub(crate) fn next_step(loaded_run: &LoadedRun, gate: &GateState, now: Timestamp) -> NextStep {
    if loaded_run.ledger.stopped.is_some() {
        return NextStep::Sleep(Idle { status: Status::Failed, wake: None });
    }
    if !loaded_run.inbox.is_empty() || gate.wake.is_some_and(|wake| wake <= now) {
        return NextStep::Admit;
    }
    let status = if gate.is_idle() { Status::Completed } else { Status::Waiting };
    NextStep::Sleep(Idle { status, wake: gate.wake })
}

/// The answers of a gate to runs.
struct Answers {
    gate: GateState,
    send: Vec<SendMessage>,
}

impl Answers {
    fn tell(&mut self, run: RunId, request: u32, verdict: Verdict) {
        let limit = self.gate.limit.kind;
        self.send.push(MessageBody::Admission { limit, request, verdict }.to(run));
    }

    fn admit(&mut self, queued: &QueuedRun, now: Timestamp) {
        self.gate.enter(queued, now, EntryState::Active);
        if self.gate.limit.kind == LimitKind::Rate {
            self.gate.begun.push(now);
        }
        self.tell(queued.run, queued.request, Verdict::Admitted);
    }

    fn refuse(&mut self, queued: &QueuedRun, now: Timestamp, verdict: Verdict) {
        self.gate.enter(queued, now, EntryState::Refused);
        self.tell(queued.run, queued.request, verdict);
    }

    /// Cancels the oldest runs until `excess` of them are told so: first admitted ones, then waiting ones. Returns the
    /// waiting runs that remain.
    fn supersede<'q>(
        &mut self,
        mut excess: usize,
        waiting: &'q [QueuedRun],
        now: Timestamp,
    ) -> &'q [QueuedRun] {
        let mut told = Vec::new();
        for entry in self.gate.runs.iter_mut().filter(|entry| entry.is == EntryState::Active) {
            if excess == 0 {
                break;
            }
            entry.is = EntryState::Ending;
            told.push((entry.run, entry.request));
            excess -= 1;
        }
        for (run, request) in told {
            self.tell(run, request, Verdict::Superseded);
        }
        let (over, rest) = waiting.split_at(excess.min(waiting.len()));
        over.iter().for_each(|queued| self.refuse(queued, now, Verdict::Superseded));
        rest
    }
}

impl Inner {
    /// Returns the change of a gate: handles its messages and admits the runs that are next.
    pub(crate) async fn admit(
        &self,
        scope: TenantScope,
        loaded_run: &LoadedRun,
    ) -> Result<PendingCommit, EngineError> {
        let now = self.host.now();
        let mut ledger = loaded_run.ledger.clone();
        let Some(state) = ledger.gate.take() else { return Ok(PendingCommit::note(ledger)) };
        let mut gate = *state;
        gate.rule = self.current_rule(scope, &gate).await?;
        let messages = &loaded_run.inbox[..loaded_run.inbox.len().min(MOST_MESSAGES)];
        let gone: BTreeSet<_> = messages.iter().filter_map(|message| left(&message.body)).collect();
        gate.runs.retain(|entry| !gone.contains(&(entry.run, entry.request)));
        if gate.wake.is_some_and(|wake| wake <= now) {
            self.check_runs(scope, &mut gate, now).await?;
        }
        let mut answers = Answers { gate, send: Vec::new() };
        let has_queue = match answers.gate.limit.kind {
            LimitKind::Concurrency => self.admit_by_count(scope, loaded_run.run(), &mut answers, now).await?,
            LimitKind::Rate => self.admit_by_rate(scope, loaded_run.run(), &mut answers, now).await?,
        };
        let Answers { mut gate, send } = answers;
        gate.full_since = has_queue.then(|| gate.full_since.unwrap_or(now));
        ledger.gate = Some(Box::new(gate));
        let mut next = PendingCommit::note(ledger);
        next.takes = messages.iter().map(|message| message.seq).collect();
        next.extras.send = send;
        Ok(next)
    }

    /// Returns the numbers of the workflow's active version, or the last known ones.
    async fn current_rule(&self, scope: TenantScope, gate: &GateState) -> Result<Rule, EngineError> {
        match self.active_or_newest_version(scope, &gate.workflow).await {
            Ok(workflow) => Ok(Rule::of(&workflow.definition, gate.limit.kind)),
            Err(EngineError::Store(error)) if !matches!(error, StoreError::Bad(_)) => Err(error.into()),
            Err(_) => Ok(gate.rule),
        }
    }

    /// Admits runs while fewer than `limit` are active. Returns true if runs wait.
    async fn admit_by_count(
        &self,
        scope: TenantScope,
        id: RunId,
        answers: &mut Answers,
        now: Timestamp,
    ) -> Result<bool, EngineError> {
        let Rule { limit, when_full, .. } = answers.gate.rule;
        let limit = limit.map_or(usize::MAX, |limit| limit as usize);
        let free = limit.saturating_sub(answers.gate.count());
        let most = if when_full == WhenFull::Wait { free.min(BATCH) } else { BATCH };
        let (queued, has_more) = self.queued_runs(scope, id, most, &answers.gate.runs).await?;
        let mut waiting = &queued[..];
        if when_full == WhenFull::CancelOldest {
            let active = answers.gate.runs.iter().filter(|entry| entry.is == EntryState::Active).count();
            let excess = (active + waiting.len()).saturating_sub(limit);
            waiting = answers.supersede(excess, waiting, now);
        }
        let (first, rest) = waiting.split_at(free.min(waiting.len()));
        first.iter().for_each(|queued| answers.admit(queued, now));
        let refuses = when_full == WhenFull::Refuse;
        if refuses {
            rest.iter().for_each(|queued| answers.refuse(queued, now, Verdict::Refused));
        }
        let has_queue = has_more || (!refuses && !rest.is_empty());
        let gate = &mut answers.gate;
        let is_cut = has_more && (when_full != WhenFull::Wait || gate.count() < limit);
        let must_check = has_queue || gate.runs.iter().any(|entry| entry.is != EntryState::Active);
        gate.wake = match is_cut {
            true => Some(now),
            false => must_check.then(|| gate.next_check(now)),
        };
        Ok(has_queue)
    }

    /// Admits runs while fewer than `limit` began within the window. Returns true if runs wait.
    async fn admit_by_rate(
        &self,
        scope: TenantScope,
        id: RunId,
        answers: &mut Answers,
        now: Timestamp,
    ) -> Result<bool, EngineError> {
        let Rule { limit, window_ms, .. } = answers.gate.rule;
        let gate = &mut answers.gate;
        gate.begun.retain(|begun| begun.plus_ms(window_ms) > now);
        let free = limit.map_or(BATCH, |limit| (limit as usize).saturating_sub(gate.begun.len()));
        let most = free.min(BATCH);
        let (queued, has_more) = self.queued_runs(scope, id, most, &answers.gate.runs).await?;
        queued.iter().for_each(|queued| answers.admit(queued, now));
        let gate = &mut answers.gate;
        if limit.is_none() {
            gate.begun.clear();
        }
        // The oldest start that counts decides when the next run may begin, the newest when the gate is idle.
        let counted = limit.map_or(0, |limit| gate.begun.len().saturating_sub(limit as usize));
        let deciding = if has_more { gate.begun.get(counted) } else { gate.begun.last() };
        let window = deciding.map(|begun| begun.plus_ms(window_ms));
        let window = if has_more && free > most { Some(now) } else { window };
        let check = (has_more || !gate.runs.is_empty()).then(|| gate.next_check(now));
        gate.wake = window.into_iter().chain(check).min().or(has_more.then_some(now));
        Ok(has_more)
    }

    /// Removes runs that no longer exist, or that no longer count without having said so.
    async fn check_runs(
        &self,
        scope: TenantScope,
        gate: &mut GateState,
        now: Timestamp,
    ) -> Result<(), EngineError> {
        let all = gate.runs.len();
        // A gate with many runs checks another part of them each time.
        let rounds = usize::try_from(now.micros() / 1_000 / CHECK_MS.0 as i64).unwrap_or_default();
        let from = if all > CHECKED_AT_ONCE { rounds.wrapping_mul(CHECKED_AT_ONCE) % all } else { 0 };
        let checked: Vec<_> =
            gate.runs.iter().cycle().skip(from).take(all.min(CHECKED_AT_ONCE)).copied().collect();
        for entry in checked {
            let found = self.checked(scope, entry).await?;
            if found == Some(entry.is) {
                continue;
            }
            tracing::warn!(run = %entry.run, workflow = %gate.workflow, "a run left its limit without a message");
            match found {
                Some(is) => {
                    gate.runs.iter_mut().filter(|other| **other == entry).for_each(|other| other.is = is);
                }
                None => gate.runs.retain(|other| *other != entry),
            }
        }
        Ok(())
    }

    /// Returns the state of an entry as its run shows it; `None` if the run is gone. A run that cannot be read does not
    /// count, but stays known, because it may still be in the queue.
    async fn checked(&self, scope: TenantScope, entry: GateEntry) -> Result<Option<EntryState>, EngineError> {
        let loaded = match self.store.load(scope, entry.run).await {
            Err(StoreError::Bad(_)) => return Ok(Some(EntryState::Refused)),
            loaded => loaded?,
        };
        let Some(loaded) = loaded else { return Ok(None) };
        match Ledger::read(loaded.ledger.as_ref()).ok().and_then(|ledger| ledger.admission) {
            Some(admission) => Ok(admission.holds(entry.request).then_some(entry.is)),
            None => Ok(Some(EntryState::Refused)),
        }
    }

    /// Returns the limit if a concurrency limit is reached and the workflow refuses further runs.
    pub(super) async fn full_limit(
        &self,
        scope: TenantScope,
        definition: &Definition,
        limit: &KeyedLimit,
    ) -> Result<Option<u32>, EngineError> {
        let rule = Rule::of(definition, limit.kind);
        let Some(most) = rule.limit.filter(|_| rule.when_full == WhenFull::Refuse) else { return Ok(None) };
        let id = id(definition.name(), limit);
        let loaded_run = match self.load(scope, id).await {
            Err(EngineError::NoRun(_)) => return Ok(None),
            loaded => loaded?,
        };
        let Some(gate) = &loaded_run.ledger.gate else { return Ok(None) };
        let gone: BTreeSet<_> = loaded_run.inbox.iter().filter_map(|message| left(&message.body)).collect();
        let counts = |entry: &&GateEntry| {
            entry.is != EntryState::Refused && !gone.contains(&(entry.run, entry.request))
        };
        let active = gate.runs.iter().filter(counts).count();
        let left = (most as usize).saturating_sub(active);
        let (queued, _) = self.queued_runs(scope, id, left, &gate.runs).await?;
        Ok((queued.len() >= left).then_some(most))
    }
}

/// Returns the run that a message says has left.
fn left(body: &MessageBody) -> Option<(RunId, u32)> {
    match body {
        MessageBody::LeftGate { run, request } => Some((*run, *request)),
        _ => None,
    }
}
