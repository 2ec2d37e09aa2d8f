//! Pauses of schedules and triggers, and runs that are started from them by hand.
//!
//! A pause is a cell of its own. So it is visible at once, and survives restarts and later versions of the workflow.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepwell_core::spec::{Trigger, TriggerKind};
use stepwell_core::{Name, Timestamp};
use stepwell_store::{
    AuditRow, Cell, CellFilter, CellKey, CellOp, CellQuery, CellWrite, Commit, CommitId, Precondition, Space,
    StoreError, TenantScope, Ttl, ValueType,
};

use crate::actor::Permission;
use crate::cron::Cron;
use crate::data::kv::{one, whole_or_bad};
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::operate::Operator;
use crate::registry::Workflow;
use crate::start::{Start, Started, no_input};

/// Owner of the cells. Names with the prefix `stepwell.` are reserved for the engine.
const OWNER: &str = "stepwell.pauses";
/// Page size when all pauses are read.
const READ_AT_ONCE: u32 = 200;
/// Reason of a pause whose cell cannot be read.
const UNREADABLE: &str = "the record of the pause is unreadable; resume to replace it";

/// A pause of a schedule or trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Paused {
    pub at: Timestamp,
    /// Id of the author, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Reason that the author gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The stored pause of a schedule or trigger.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pause {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) paused: Option<Paused>,
    /// Time of the last resumption. Firings of a schedule before it are not made up for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resumed_at: Option<Timestamp>,
}

impl Pause {
    /// Returns the next firing of a schedule, without those that were due before it was resumed.
    pub(crate) fn after_resumption(&self, planned: Timestamp, cron: &Cron) -> Timestamp {
        let resumed = self.resumed_at.filter(|resumed| self.paused.is_none() && planned <= *resumed);
        resumed.and_then(|resumed| cron.next_after(resumed)).unwrap_or(planned)
    }

    fn of(cell: &Cell, now: Timestamp) -> Pause {
        let read = cell.value.as_ref().map_or_else(|| Ok(Pause::default()), Pause::deserialize);
        read.unwrap_or_else(|_| Pause::unreadable(now))
    }

    /// Returns the pause for a cell that cannot be read. It starts nothing until it is resumed.
    fn unreadable(now: Timestamp) -> Pause {
        let paused = Paused { at: now, by: None, reason: Some(UNREADABLE.to_owned()) };
        Pause { paused: Some(paused), resumed_at: None }
    }
}

/// The object of a pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PauseOf {
    /// A schedule, by name. A trigger of type `schedule` is the schedule `WORKFLOW/TRIGGER`.
    Schedule(String),
    /// A trigger of another type: workflow and id.
    Trigger(Name, Name),
}

/// Prefixes of the cells' keys.
const SCHEDULE: &str = "schedule/";
const TRIGGER: &str = "trigger/";

impl PauseOf {
    /// Returns the object whose pause stops this trigger.
    pub fn trigger(workflow: &Name, trigger: &Trigger) -> PauseOf {
        match &trigger.on {
            TriggerKind::Schedule(_) => PauseOf::Schedule(format!("{workflow}/{}", trigger.id)),
            _ => PauseOf::Trigger(workflow.clone(), trigger.id.clone()),
        }
    }

    fn key(&self) -> String {
        match self {
            PauseOf::Schedule(name) => format!("{SCHEDULE}{name}"),
            PauseOf::Trigger(workflow, trigger) => format!("{TRIGGER}{workflow}/{trigger}"),
        }
    }

    /// Returns the object of a key. The id of a trigger contains no slash.
    fn read(key: &str) -> Option<PauseOf> {
        if let Some(name) = key.strip_prefix(SCHEDULE) {
            return Some(PauseOf::Schedule(name.to_owned()));
        }
        let (workflow, trigger) = key.strip_prefix(TRIGGER)?.rsplit_once('/')?;
        Some(PauseOf::Trigger(workflow.into(), trigger.into()))
    }

    fn cell(&self) -> CellKey {
        CellKey { space: Space::Workflow, owner: OWNER.to_owned(), key: self.key() }
    }
}

/// All pauses of a tenant.
#[derive(Debug, Clone, Default)]
pub struct Pauses(BTreeMap<String, Paused>);

impl Pauses {
    /// Returns the pause of a schedule or trigger; `None` if it is not paused.
    pub fn of(&self, of: &PauseOf) -> Option<&Paused> {
        self.0.get(&of.key())
    }

    /// Returns all paused schedules and triggers.
    pub fn iter(&self) -> impl Iterator<Item = (PauseOf, &Paused)> {
        self.0.iter().filter_map(|(key, paused)| Some((PauseOf::read(key)?, paused)))
    }
}

/// A request to start a run of a schedule or trigger now.
#[derive(Debug, Clone, Default)]
pub struct RunNow {
    input: Option<Value>,
    key: Option<String>,
}

impl RunNow {
    /// Creates a request with the input of the schedule or trigger.
    pub fn new() -> Self {
        RunNow::default()
    }

    /// Sets the input of the run.
    #[must_use]
    pub fn input(mut self, input: Value) -> Self {
        self.input = Some(input);
        self
    }

    /// Sets the idempotency key. The same key returns the same run, as long as that run exists.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

impl Engine {
    /// Returns all paused schedules and triggers.
    pub async fn pauses(&self) -> Result<Pauses, EngineError> {
        self.permit(Permission::View)?;
        Ok(self.inner.pauses(self.scope).await?)
    }

    /// Pauses a schedule: its firings start nothing until it is resumed, also after it is put again. A paused schedule
    /// stays as it is.
    pub async fn pause_schedule(&self, name: &str, by: &Operator) -> Result<Paused, EngineError> {
        self.permit(Permission::Publish)?;
        self.existing(name).await?;
        let of = PauseOf::Schedule(name.to_owned());
        self.inner.pause(self.scope, &of, ("schedule.pause", name), &self.operator(by)).await
    }

    /// Resumes a schedule. Firings that were due before are not made up for.
    pub async fn resume_schedule(&self, name: &str, by: &Operator) -> Result<(), EngineError> {
        self.permit(Permission::Publish)?;
        self.existing(name).await?;
        let of = PauseOf::Schedule(name.to_owned());
        self.inner.resume(self.scope, &of, ("schedule.resume", name), &self.operator(by)).await
    }

    /// Starts a run of a schedule now, also if it is paused or off. Its firings do not change.
    pub async fn run_schedule(&self, name: &str, now: RunNow) -> Result<Started, EngineError> {
        self.permit(Permission::Manage)?;
        let schedule = self.existing(name).await?.schedule;
        let input = now.input.unwrap_or(schedule.input);
        self.start_now(schedule.workflow, format!("schedule:{name}"), &input, now.key).await
    }

    /// Pauses a trigger: it starts nothing until it is resumed, also in later versions of the workflow. Events that it
    /// receives meanwhile are in its log as `paused`. A paused trigger stays as it is.
    pub async fn pause_trigger(
        &self,
        workflow: &str,
        trigger: &str,
        by: &Operator,
    ) -> Result<Paused, EngineError> {
        self.permit(Permission::Publish)?;
        let (name, found) = self.inner.trigger(self.scope, workflow, trigger).await?;
        if matches!(found.on, TriggerKind::Manual {}) {
            let why = format!(
                "trigger `{trigger}` of `{workflow}` is manual: nothing fires it, so it cannot be paused"
            );
            return Err(EngineError::Invalid(why));
        }
        let (of, subject) = (PauseOf::trigger(&name, &found), format!("{workflow}/{trigger}"));
        self.inner.pause(self.scope, &of, ("trigger.pause", &subject), &self.operator(by)).await
    }

    /// Resumes a trigger. One that is not paused stays as it is.
    pub async fn resume_trigger(
        &self,
        workflow: &str,
        trigger: &str,
        by: &Operator,
    ) -> Result<(), EngineError> {
        self.permit(Permission::Publish)?;
        let of = match self.inner.trigger(self.scope, workflow, trigger).await {
            Ok((name, found)) => PauseOf::trigger(&name, &found),
            // The active version may lack the trigger.
            Err(error) => {
                let of = PauseOf::Trigger(workflow.into(), trigger.into());
                self.inner.pause_of(self.scope, &of).await?.paused.ok_or(error)?;
                of
            }
        };
        let subject = format!("{workflow}/{trigger}");
        self.inner.resume(self.scope, &of, ("trigger.resume", &subject), &self.operator(by)).await
    }

    /// Starts a run of a trigger's workflow now, also if the trigger is paused. Without an input, it has the trigger's
    /// own, which must not depend on an event.
    pub async fn run_trigger(
        &self,
        workflow: &str,
        trigger: &str,
        now: RunNow,
    ) -> Result<Started, EngineError> {
        self.permit(Permission::Manage)?;
        let (name, found) = self.inner.trigger(self.scope, workflow, trigger).await?;
        let needs_event = match (&found.input, &found.on) {
            (Some(input), _) => has_expression(input),
            (None, on) => matches!(on, TriggerKind::Event(_) | TriggerKind::Webhook(_)),
        };
        let input = match (now.input, found.input) {
            (Some(input), _) => input,
            _ if needs_event => {
                let why = format!(
                    "trigger `{trigger}` of `{workflow}` takes its input from an event: give `input`"
                );
                return Err(EngineError::Invalid(why));
            }
            (None, own) => own.unwrap_or_else(no_input),
        };
        self.start_now(name, format!("trigger:{workflow}/{trigger}"), &input, now.key).await
    }

    /// Returns an existing schedule.
    async fn existing(&self, name: &str) -> Result<crate::schedule::Scheduled, EngineError> {
        let found = self.inner.known_schedule(self.scope, name).await?;
        found.ok_or_else(|| EngineError::NoSchedule(name.to_owned()))
    }

    async fn start_now(
        &self,
        workflow: Name,
        of: String,
        input: &Value,
        key: Option<String>,
    ) -> Result<Started, EngineError> {
        let mut start = Start::new(workflow).input(input);
        if let Some(key) = key {
            start = start.engine_key(format!("now:{of}\u{1f}{key}"));
        }
        let start = start.by(self.actor_id()).by_default(&of);
        let started = self.inner.start(self.scope, &start, None).await?;
        Ok(Started { run: started.run.with_actor(self.shared_actor().cloned()), ..started })
    }
}

/// Returns true if a part of a value is computed.
fn has_expression(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.contains_key("$expr") || fields.values().any(has_expression),
        Value::Array(items) => items.iter().any(has_expression),
        _ => false,
    }
}

impl Inner {
    /// Reads the pause of a schedule or trigger.
    pub(crate) async fn pause_of(&self, scope: TenantScope, of: &PauseOf) -> Result<Pause, StoreError> {
        let now = self.host.now();
        let found = whole_or_bad(&*self.store, scope, one(of.cell(), now, false)).await?;
        Ok(match found {
            Ok(cell) => cell.map(|cell| Pause::of(&cell, now)).unwrap_or_default(),
            Err(_) => Pause::unreadable(now),
        })
    }

    /// Reads all pauses of a tenant.
    pub(crate) async fn pauses(&self, scope: TenantScope) -> Result<Pauses, StoreError> {
        let now = self.host.now();
        let (mut found, mut cursor) = (Pauses::default(), None);
        loop {
            let query = CellQuery {
                space: Space::Workflow,
                owner: OWNER.to_owned(),
                filter: CellFilter::Prefix(String::new()),
                now,
                include_deleted: false,
                limit: READ_AT_ONCE,
                cursor,
            };
            let page = self.store.cells(scope, query).await?;
            for cell in &page.items {
                found.0.extend(Pause::of(cell, now).paused.map(|paused| (cell.key.key.clone(), paused)));
            }
            for row in &page.bad {
                tracing::error!(%row, "the record of a pause is unreadable");
                let key =
                    [SCHEDULE, TRIGGER].iter().find_map(|prefix| Some(&row.key[row.key.find(prefix)?..]));
                let paused = Pause::unreadable(now).paused;
                found.0.extend(key.zip(paused).map(|(key, paused)| (key.to_owned(), paused)));
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(found),
            }
        }
    }

    async fn pause(
        &self,
        scope: TenantScope,
        of: &PauseOf,
        audited: (&str, &str),
        by: &Operator,
    ) -> Result<Paused, EngineError> {
        let mut pause = self.pause_of(scope, of).await?;
        if let Some(paused) = pause.paused {
            return Ok(paused);
        }
        let paused = Paused { at: self.host.now(), by: by.actor.clone(), reason: by.reason.clone() };
        pause.paused = Some(paused.clone());
        self.write_pause(scope, of, &pause, audited, by).await?;
        Ok(paused)
    }

    async fn resume(
        &self,
        scope: TenantScope,
        of: &PauseOf,
        audited: (&str, &str),
        by: &Operator,
    ) -> Result<(), EngineError> {
        if self.pause_of(scope, of).await?.paused.is_none() {
            return Ok(());
        }
        let resumed = Pause { paused: None, resumed_at: Some(self.host.now()) };
        self.write_pause(scope, of, &resumed, audited, by).await
    }

    async fn write_pause(
        &self,
        scope: TenantScope,
        of: &PauseOf,
        pause: &Pause,
        (operation, subject): (&str, &str),
        by: &Operator,
    ) -> Result<(), EngineError> {
        let mut commit = Commit::new(CommitId(self.host.ids.next()), self.host.now());
        let (value, value_type, ttl) = (json!(pause), ValueType::Json, Ttl::Forever);
        let op = CellOp::Set { value, value_type, ttl };
        let expect = Precondition::Anything;
        commit.cells.push(CellWrite { key: of.cell(), op, expect, initial: None, by: None });
        commit.actor = by.actor.clone();
        commit.audit.push(AuditRow {
            operation: operation.to_owned(),
            subject: subject.to_owned(),
            actor: by.actor.clone(),
            run: None,
            detail: json!({"reason": by.reason}).to_string().into(),
        });
        self.store.commit(scope, commit).await?;
        Ok(())
    }

    /// Finds a trigger of the version of a workflow that new runs use.
    async fn trigger(
        &self,
        scope: TenantScope,
        workflow: &str,
        trigger: &str,
    ) -> Result<(Name, Trigger), EngineError> {
        self.catalogues.read_again(scope.tenant());
        let all = self.triggered(scope).await?;
        let is_it = |known: &&Arc<Workflow>| known.definition.name().as_str() == workflow;
        let found = all.items.iter().find(is_it).and_then(|known| {
            let found = known.definition.triggers().iter().find(|found| found.id.as_str() == trigger)?;
            Some((known.definition.name().clone(), found.clone()))
        });
        found.ok_or_else(|| EngineError::NoTrigger { workflow: workflow.into(), trigger: trigger.into() })
    }
}
