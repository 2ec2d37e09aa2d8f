//! Reads limits: the gates of a workflow with their active and waiting runs, and the position of a run in its queue.

use stepwell_core::admission::LimitKind;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{Page, RunFilter, RunQuery, ShadowFilter, TenantScope};

use super::gate::{self, EntryState, GateState};
use crate::actor::Permission;
use crate::engine::{Engine, Inner, Run, RunView};
use crate::error::EngineError;
use crate::inbox::MessageBody;
use crate::loaded_run::CommitExtras;

/// Maximum number of waiting runs that are counted.
const MOST_COUNTED: usize = 1_000;
/// Number of gates per page when all of them are woken.
const PAGE: u32 = 200;
/// Maximum number of active runs that a row names.
const NAMED_RUNS: usize = 10;

/// A key of a limit that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRow {
    pub kind: LimitKind,
    /// `None` = one limit for the workflow.
    pub key: Option<String>,
    /// Maximum number of runs when the limit was last applied; `None` = the active version has no such limit.
    pub limit: Option<u32>,
    /// Concurrency limit: number of active runs. Rate limit: number of runs that began within the window.
    pub active: u64,
    /// The oldest active runs, at most 10.
    pub runs: Vec<GateRun>,
    /// Number of runs in the queue, at most 1,000.
    pub waiting: u64,
    /// Time since which runs wait without a pause.
    pub waiting_since: Option<Timestamp>,
    /// Rate limit: time at which the next run may begin, if runs wait.
    pub next_at: Option<Timestamp>,
}

/// An active run of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRun {
    pub run: RunId,
    /// Time at which it was admitted.
    pub since: Timestamp,
}

/// The limit that a run waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunLimit {
    pub kind: LimitKind,
    /// `None` = one limit for the workflow.
    pub key: Option<String>,
    /// Time at which the run joined the queue.
    pub since: Timestamp,
    /// Position in the queue, from 1. 1,001 stands for all later positions.
    pub position: u64,
}

impl Engine {
    /// Returns one page of the keys of a workflow's limits that are in use, newest first.
    pub async fn limits_of(
        &self,
        workflow: &Name,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<GateRow>, EngineError> {
        self.permit(Permission::View)?;
        self.inner.active_or_newest_version(self.scope(), workflow).await?;
        self.inner.gates(self.scope(), workflow, limit, cursor).await
    }
}

impl Run {
    /// Returns the limit that the run waits for; `None` if it does not wait for one.
    pub async fn limit_waited_for(&self, view: &RunView) -> Result<Option<RunLimit>, EngineError> {
        let Some((limit, since)) = view.ledger.admission.as_ref().and_then(|admission| admission.queued())
        else {
            return Ok(None);
        };
        let gate = gate::id(view.snapshot.workflow(), limit);
        let ahead = self.inner().count_queued(self.scope(), gate, (since, self.id()), MOST_COUNTED).await?;
        Ok(Some(RunLimit { kind: limit.kind, key: limit.key.clone(), since, position: ahead as u64 + 1 }))
    }
}

impl Inner {
    /// Lets the gates of a workflow apply its numbers again: another version may be active.
    pub(crate) async fn wake_gates(&self, scope: TenantScope, workflow: &Name) -> Result<(), EngineError> {
        let mut cursor = None;
        loop {
            let page = self.store.runs(scope, gates_of(workflow, PAGE, cursor)).await?;
            let open = page.items.iter().filter(|summary| !summary.status.is_final());
            let send: Vec<_> = open.map(|summary| MessageBody::JoinedQueue.to(summary.run)).collect();
            if !send.is_empty() {
                let extras = CommitExtras { send, ..CommitExtras::default() };
                let now = self.host.now();
                self.apply(scope, self.commit_of(scope, extras, now)).await?;
                self.wake_at(Some(now));
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(());
            }
        }
    }

    async fn gates(
        &self,
        scope: TenantScope,
        workflow: &Name,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<GateRow>, EngineError> {
        let page = self.store.runs(scope, gates_of(workflow, limit, cursor)).await?;
        let mut items = Vec::new();
        for summary in page.items.iter().filter(|summary| !summary.status.is_final()) {
            let loaded_run = match self.load(scope, summary.run).await {
                Err(EngineError::NoRun(_)) => continue,
                loaded => loaded?,
            };
            if let Some(gate) = loaded_run.ledger.gate {
                items.push(self.gate_row(scope, summary.run, &gate).await?);
            }
        }
        Ok(page.over(|_| items))
    }

    pub(crate) async fn gate_row(
        &self,
        scope: TenantScope,
        id: RunId,
        gate: &GateState,
    ) -> Result<GateRow, EngineError> {
        let waiting = self.queued_runs(scope, id, MOST_COUNTED, &gate.runs).await?.0.len();
        let is_rate = gate.limit.kind == LimitKind::Rate;
        let active = if is_rate { gate.begun.len() } else { gate.count() };
        let counted = gate.runs.iter().filter(|entry| !is_rate && entry.is != EntryState::Refused);
        let runs = counted.take(NAMED_RUNS).map(|entry| GateRun { run: entry.run, since: entry.since });
        let next = gate.begun.first().map(|begun| begun.plus_ms(gate.rule.window_ms));
        Ok(GateRow {
            kind: gate.limit.kind,
            key: gate.limit.key.clone(),
            limit: gate.rule.limit,
            active: active as u64,
            runs: runs.collect(),
            waiting: waiting as u64,
            waiting_since: gate.full_since.filter(|_| waiting > 0),
            next_at: next.filter(|_| is_rate && waiting > 0),
        })
    }
}

/// Returns the query for the gates of a workflow.
fn gates_of(workflow: &Name, limit: u32, cursor: Option<String>) -> RunQuery {
    let shadows = vec![ShadowFilter::equals(gate::OF, workflow.as_str())];
    let filter = RunFilter { workflow: Some(gate::WORKFLOW.into()), shadows, ..RunFilter::default() };
    RunQuery { filter, limit, cursor, ..RunQuery::default() }
}
