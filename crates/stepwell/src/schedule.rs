//! Cron schedules. A schedule is a durable run: it sleeps until its next firing, starts the workflow and plans the
//! next firing, in one commit. A firing therefore happens exactly once even if processes crash, and no other state is
//! needed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::document::SourceProblem;
use stepwell_core::spec::{OnSchedule, Transition, TransitionTrigger, Trigger, TriggerKind};
use stepwell_core::{Definition, Name, RunId, Spec, Timestamp, WorkflowSource};
use stepwell_store::{Page, Record, RecordQuery, RunFilter, RunQuery, Status, StoreError, TenantScope};

use crate::action::ActionError;
use crate::actor::Permission;
use crate::cron::{Cron, CronError, MissedFirings, Overlap};
use crate::cx::Cx;
use crate::engine::{Builder, Engine, Inner};
use crate::error::EngineError;
use crate::inbox::MessageBody;
use crate::loaded_run::LoadedRun;
use crate::operate::Operator;
use crate::pause::{PauseOf, Paused, Pauses};
use crate::signal::Signal;
use crate::start::{OWN_START, Start, no_input, run_of};

/// The workflow of schedules. Names with the prefix `stepwell.` are reserved for the engine.
pub const WORKFLOW: &str = "stepwell.schedule";
const FIRE: &str = "stepwell.schedule.fire";
const PLAN: &str = "stepwell.schedule.plan";
/// Maximum delay, in milliseconds, of a firing that does not count as missed.
const GRACE_MS: u64 = 60_000;
/// Maximum number of firings in one commit.
const FIRED_AT_ONCE: usize = 100;
/// Number of schedules per page.
const READ_AT_ONCE: u32 = 200;

/// A cron schedule that starts a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Schedule {
    /// Unique name within the tenant.
    pub name: String,
    /// Cron pattern with five fields, or six with seconds.
    pub cron: String,
    /// IANA time zone of the pattern. Default: `UTC`.
    #[serde(default = "utc")]
    pub time_zone: String,
    /// The workflow to start.
    pub workflow: Name,
    /// Input of each run. Default: an empty object.
    #[serde(default = "no_input")]
    pub input: Value,
    /// Policy for missed firings. Default: once.
    #[serde(default)]
    pub missed: MissedFirings,
    /// Policy while the previous run is still active. Default: start another run.
    #[serde(default)]
    pub overlap: Overlap,
    /// The trigger that defines the schedule; `None` if it was created by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<PlannedBy>,
}

/// The trigger that defines a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlannedBy {
    /// Id of the trigger in the schedule's workflow.
    pub trigger: Name,
    /// Version of the workflow that contains it.
    pub version: u32,
}

impl Schedule {
    /// Creates a schedule in UTC.
    pub fn new(name: impl Into<String>, cron: impl Into<String>, workflow: impl Into<Name>) -> Self {
        Schedule {
            name: name.into(),
            cron: cron.into(),
            time_zone: utc(),
            workflow: workflow.into(),
            input: no_input(),
            missed: MissedFirings::default(),
            overlap: Overlap::default(),
            by: None,
        }
    }

    /// Sets the IANA time zone of the pattern.
    #[must_use]
    pub fn time_zone(mut self, time_zone: impl Into<String>) -> Self {
        self.time_zone = time_zone.into();
        self
    }

    /// Sets the input of each run.
    #[must_use]
    pub fn input(mut self, input: Value) -> Self {
        self.input = input;
        self
    }

    /// Sets the policy for missed firings.
    #[must_use]
    pub fn missed(mut self, missed: MissedFirings) -> Self {
        self.missed = missed;
        self
    }

    /// Sets the policy for a firing while the previous run is still active.
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    fn parsed(&self) -> Result<Cron, CronError> {
        Cron::parse(&self.cron, &self.time_zone)
    }
}

/// The current state of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scheduled {
    pub schedule: Schedule,
    /// Time of the next firing.
    pub next: Timestamp,
    /// The schedule is switched off and does not fire until it is put again.
    #[serde(default)]
    pub is_off: bool,
    /// Number of runs started so far.
    #[serde(default)]
    pub fired: u64,
    /// Number of firings without a run, because the previous run was still active or no run could be started.
    #[serde(default)]
    pub skipped: u64,
    /// The last run that was started.
    #[serde(default)]
    pub last_run: Option<RunId>,
    /// The reason why the last firing could not start a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The pause of the schedule; `None` if it is not paused. It is not part of the schedule's own state.
    #[serde(skip)]
    pub paused: Option<Paused>,
}

/// The result of putting a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedSchedule {
    /// The run behind the schedule.
    pub run: RunId,
    /// The next firing. A schedule whose pattern and time zone did not change keeps a firing that is already due.
    pub next: Timestamp,
}

impl Scheduled {
    /// Returns the next firing after `put` replaces this schedule. A due firing is kept unless the pattern or time
    /// zone changes.
    fn next_if_replaced(&self, put: &Scheduled) -> Timestamp {
        let times = |schedule: &Schedule| (schedule.cron.clone(), schedule.time_zone.clone());
        if !self.is_off && times(&self.schedule) == times(&put.schedule) { self.next } else { put.next }
    }

    fn with_pause(mut self, pauses: &Pauses) -> Self {
        self.paused = pauses.of(&PauseOf::Schedule(self.schedule.name.clone())).cloned();
        self
    }

    /// Returns the state after a change: a schedule that is put, or `None` to switch it off.
    fn changed(self, put: Option<Scheduled>) -> Scheduled {
        match put {
            Some(put) => {
                let next = self.next_if_replaced(&put);
                Scheduled { schedule: put.schedule, next, is_off: false, ..self }
            }
            None => Scheduled { is_off: true, ..self },
        }
    }
}

impl Engine {
    /// Creates a schedule, or replaces the one with this name. Returns the run behind it and its next firing. Fails if
    /// a trigger defines the existing schedule. An existing schedule that cannot be read is deleted first.
    pub async fn put_schedule(&self, schedule: Schedule) -> Result<PlacedSchedule, EngineError> {
        self.permit(Permission::Publish)?;
        self.inner.manual(self.scope, &schedule.name).await?;
        self.inner.put_schedule(self.scope, schedule, self.actor_id()).await
    }

    /// Switches a schedule off until it is put again. Fails if a trigger defines it. Deletes the run behind a schedule
    /// that cannot be read.
    pub async fn remove_schedule(&self, name: &str) -> Result<(), EngineError> {
        self.permit(Permission::Publish)?;
        self.inner.manual(self.scope, name).await?;
        self.inner.remove_schedule(self.scope, name, self.actor_id()).await
    }

    /// Returns the current state of a schedule; `None` if it does not exist.
    pub async fn schedule(&self, name: &str) -> Result<Option<Scheduled>, EngineError> {
        self.permit(Permission::View)?;
        self.inner.known_schedule(self.scope, name).await
    }

    /// Returns all schedules, including those that are switched off, newest first.
    pub async fn schedules(&self) -> Result<Vec<Scheduled>, EngineError> {
        self.permit(Permission::View)?;
        let all = self.inner.schedules(self.scope).await?;
        let pauses = self.inner.pauses(self.scope).await?;
        Ok(all.into_iter().map(|(schedule, _)| schedule.with_pause(&pauses)).collect())
    }

    /// Returns one page of the schedules, newest first.
    pub async fn schedules_page(
        &self,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<Scheduled>, EngineError> {
        self.permit(Permission::View)?;
        let page = self.inner.some_schedules(self.scope, limit, cursor).await?;
        let pauses = self.inner.pauses(self.scope).await?;
        Ok(page.map(|(schedule, _)| schedule.with_pause(&pauses)))
    }
}

impl Inner {
    async fn put_schedule(
        self: &Arc<Self>,
        scope: TenantScope,
        schedule: Schedule,
        by: Option<String>,
    ) -> Result<PlacedSchedule, EngineError> {
        let wrong = |error: &dyn std::fmt::Display| {
            EngineError::Invalid(format!("schedule `{}`: {error}", schedule.name))
        };
        if schedule.name.is_empty() {
            return Err(EngineError::Invalid("a schedule needs a name".to_owned()));
        }
        let cron = schedule.parsed().map_err(|error| wrong(&error))?;
        match self.workflow(scope, &schedule.workflow).await {
            // The workflow may be activated later. Until then firings are skipped.
            Ok(workflow) => self.refuse_flow(&workflow)?,
            Err(EngineError::Inactive { .. }) => {}
            Err(error) => return Err(wrong(&error)),
        }
        let next = cron.next_after(self.host.now()).unwrap_or(Timestamp::MAX);
        let planned = Scheduled {
            schedule,
            next,
            is_off: false,
            fired: 0,
            skipped: 0,
            last_run: None,
            last_error: None,
            paused: None,
        };
        let name = planned.schedule.name.clone();
        if let Some(run) = self.schedule_run(scope, &name).await?
            && let Some(placed) = self.replace_schedule(scope, run, &planned, by).await?
        {
            return Ok(placed);
        }
        let start = Start::own(WORKFLOW, key(&name)).input(&planned);
        match self.start(scope, &start, None).await {
            Ok(started) => Ok(PlacedSchedule { run: started.run.id(), next }),
            // Another request has created it at the same time.
            Err(EngineError::KeyReused { .. }) => {
                let run = self.schedule_run(scope, &name).await?;
                let placed = match run {
                    Some(run) => self.replace_schedule(scope, run, &planned, None).await?,
                    None => None,
                };
                placed.ok_or_else(|| EngineError::Invalid(format!("schedule `{name}` is gone: retry")))
            }
            Err(error) => Err(error),
        }
    }

    /// Replaces the schedule behind a run. An unreadable one is deleted instead: then the result is `None`.
    async fn replace_schedule(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        planned: &Scheduled,
        by: Option<String>,
    ) -> Result<Option<PlacedSchedule>, EngineError> {
        match self.load(scope, run).await.and_then(|loaded_run| scheduled(&loaded_run)) {
            Ok(known) => {
                self.signal(scope, run, &Signal::own("PUT").with(planned)).await?;
                Ok(Some(PlacedSchedule { run, next: known.next_if_replaced(planned) }))
            }
            Err(error) => {
                self.delete_unreadable(scope, run, &Operator { actor: by, ..Operator::default() }, error)
                    .await?;
                Ok(None)
            }
        }
    }

    async fn remove_schedule(
        self: &Arc<Self>,
        scope: TenantScope,
        name: &str,
        by: Option<String>,
    ) -> Result<(), EngineError> {
        let run = self.schedule_run(scope, name).await?;
        let run = run.ok_or_else(|| EngineError::NoSchedule(name.to_owned()))?;
        match self.load(scope, run).await.and_then(|loaded_run| scheduled(&loaded_run)) {
            Ok(_) => self.signal(scope, run, &Signal::own("OFF")).await.map(drop),
            Err(error) => {
                let by = Operator { actor: by, ..Operator::default() };
                self.delete_unreadable(scope, run, &by, error).await
            }
        }
    }

    /// Rejects a manual change of a schedule that a trigger defines, because the trigger would soon restore it. An
    /// unreadable schedule can be changed.
    async fn manual(&self, scope: TenantScope, name: &str) -> Result<(), EngineError> {
        let Some(run) = self.schedule_run(scope, name).await? else { return Ok(()) };
        let known = match self.load(scope, run).await.and_then(|loaded_run| scheduled(&loaded_run)) {
            Ok(known) => known,
            Err(EngineError::NoRun(_)) => return Ok(()),
            Err(error) => return error.bad_row(run).map(drop),
        };
        let (off, workflow) = (known.is_off, known.schedule.workflow);
        match known.schedule.by.filter(|_| !off) {
            Some(PlannedBy { trigger, .. }) => {
                Err(EngineError::ManagedByTrigger { name: name.to_owned(), workflow, trigger })
            }
            None => Ok(()),
        }
    }

    /// Returns the current state of a schedule with its pause.
    pub(crate) async fn known_schedule(
        &self,
        scope: TenantScope,
        name: &str,
    ) -> Result<Option<Scheduled>, EngineError> {
        let Some(run) = self.schedule_run(scope, name).await? else { return Ok(None) };
        let known = match self.load(scope, run).await {
            Err(EngineError::NoRun(_)) => return Ok(None),
            loaded => scheduled(&loaded?)?,
        };
        let paused = self.pause_of(scope, &PauseOf::Schedule(name.to_owned())).await?.paused;
        Ok(Some(Scheduled { paused, ..known }))
    }

    /// Returns all schedules. The flag is true if no message that changes the schedule is pending.
    async fn schedules(&self, scope: TenantScope) -> Result<Vec<(Scheduled, bool)>, EngineError> {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.some_schedules(scope, READ_AT_ONCE, cursor).await?;
            found.extend(page.items);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(found),
            }
        }
    }

    async fn some_schedules(
        &self,
        scope: TenantScope,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<(Scheduled, bool)>, EngineError> {
        let query = RunQuery { filter: RunFilter::of(WORKFLOW), limit, cursor, ..RunQuery::default() };
        let mut page = self.store.runs(scope, query).await?;
        let mut items = Vec::new();
        for summary in page.items.iter().filter(|summary| !summary.status.is_final()) {
            let read = self.load(scope, summary.run).await.and_then(|loaded_run| {
                let is_settled = loaded_run.inbox.is_empty() && loaded_run.ledger.attempts.is_empty();
                Ok((scheduled(&loaded_run)?, is_settled))
            });
            match read {
                Ok(schedule) => items.push(schedule),
                // It was deleted after it was listed.
                Err(EngineError::NoRun(_)) => {}
                Err(error) => page.bad.push(error.bad_row(summary.run)?),
            }
        }
        Ok(page.over(|_| items))
    }

    /// Returns the run behind a schedule. If the record of its name is unreadable, searches all schedules.
    async fn schedule_run(&self, scope: TenantScope, name: &str) -> Result<Option<RunId>, EngineError> {
        let query =
            RecordQuery::Key { operation: OWN_START.to_owned(), key: key(name), now: self.host.now() };
        let known = match self.store.records(scope, query).await {
            Err(StoreError::Bad(row)) => {
                tracing::error!(tenant = %scope.tenant(), %row, "the record of a schedule's name is unreadable");
                return self.listed_schedule(scope, name).await;
            }
            known => known?.items.into_iter().next(),
        };
        let Some(Record::Key(record)) = known else { return Ok(None) };
        run_of(record.answer.as_ref()).map(Some)
    }

    /// Searches all schedules for the one with this name.
    async fn listed_schedule(&self, scope: TenantScope, name: &str) -> Result<Option<RunId>, EngineError> {
        let mut cursor = None;
        loop {
            let query = RunQuery {
                filter: RunFilter::of(WORKFLOW),
                limit: READ_AT_ONCE,
                cursor,
                ..RunQuery::default()
            };
            let page = self.store.runs(scope, query).await?;
            for summary in page.items.iter().filter(|summary| !summary.status.is_final()) {
                let read = self.load(scope, summary.run).await;
                let read = read.and_then(|loaded_run| scheduled(&loaded_run));
                if read.is_ok_and(|known| known.schedule.name == name) {
                    return Ok(Some(summary.run));
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(None),
            }
        }
    }

    /// Updates the tenant's schedules from the triggers of its workflows. Changes nothing if they already match.
    /// Called whenever a workflow is activated or archived, and periodically, because a process may crash in between.
    pub(crate) async fn plan_triggers(self: &Arc<Self>, scope: TenantScope) -> Result<(), EngineError> {
        if !self.options.plans_triggers {
            return Ok(());
        }
        // Read the schedules before the workflows. The workflow of every schedule that is read was activated earlier,
        // so its activation is visible then.
        let there = self.schedules(scope).await?;
        self.catalogues.read_again(scope.tenant());
        let (mut wanted, triggered) = (Vec::new(), self.triggered(scope).await?);
        for workflow in &triggered.items {
            match planned(&workflow.definition) {
                Ok(schedules) => wanted.extend(schedules),
                // Publishing should have rejected this trigger. It must not affect the others.
                Err(error) => {
                    tracing::error!(workflow = %workflow.definition.name(), %error, "a schedule trigger is invalid");
                }
            }
        }
        for schedule in &wanted {
            let known = there.iter().find(|(known, _)| known.schedule.name == schedule.name);
            let is_so = |known: &Scheduled| known.schedule == *schedule && !known.is_off;
            // Among versions registered by programs the newest counts. The catalogue itself selects the active
            // version.
            let is_listed = self.is_listed(scope, &schedule.workflow).await?;
            let is_newer = |known: &Scheduled| {
                !is_listed && !known.is_off && version(&known.schedule) > version(schedule)
            };
            // A pending message may switch the schedule off.
            if !known.is_some_and(|(known, is_settled)| (*is_settled && is_so(known)) || is_newer(known))
                && let Err(error) = self.put_schedule(scope, schedule.clone(), None).await
            {
                tracing::error!(schedule = %schedule.name, %error, "a schedule could not be created or replaced");
            }
        }
        let there = there.iter().map(|(known, _)| known);
        for known in there.filter(|known| !known.is_off && known.schedule.by.is_some()) {
            let name = &known.schedule.workflow;
            let is_wanted = wanted.iter().any(|schedule| schedule.name == known.schedule.name);
            // Do not remove the schedules of a workflow that only another process knows.
            let brought = self.registry.by_name(name).map(|known| known.definition.version());
            let is_known = self.is_listed(scope, name).await? || brought >= version(&known.schedule);
            // The triggers of an unreadable workflow are unknown, so its schedules stay.
            if !is_wanted
                && is_known
                && !triggered.is_unreadable(name)
                && let Err(error) = self.remove_schedule(scope, &known.schedule.name, None).await
            {
                tracing::error!(schedule = %known.schedule.name, %error, "a schedule could not be switched off");
            }
        }
        Ok(())
    }
}

/// Returns the state of a schedule from its run. Changes that are accepted but not applied yet count, so that every read
/// shows the last accepted change.
pub(crate) fn scheduled(loaded_run: &LoadedRun) -> Result<Scheduled, EngineError> {
    let unreadable =
        |error: serde_json::Error| EngineError::Unreadable { run: loaded_run.run(), why: error.to_string() };
    let mut state = Scheduled::deserialize(loaded_run.snapshot.context()).map_err(unreadable)?;
    // A change that arrives while the schedule is idle is in the ledger, any other one in the inbox.
    for attempts in loaded_run.ledger.attempts.iter().filter(|attempts| attempts.message.is_none()) {
        state = match attempts.transition.as_str() {
            "put" | "again" => {
                state.changed(Some(Scheduled::deserialize(&attempts.payload).map_err(unreadable)?))
            }
            "off" => state.changed(None),
            _ => state,
        };
    }
    for message in &loaded_run.inbox {
        let MessageBody::Signal { name, payload, .. } = &message.body else { continue };
        state = match name.as_str() {
            "PUT" => state.changed(Some(Scheduled::deserialize(payload).map_err(unreadable)?)),
            "OFF" => state.changed(None),
            _ => state,
        };
    }
    Ok(state)
}

fn version(schedule: &Schedule) -> Option<u32> {
    schedule.by.as_ref().map(|by| by.version)
}

/// Returns the schedules that a workflow's triggers define.
fn planned(definition: &Definition) -> Result<Vec<Schedule>, EngineError> {
    let mut all = Vec::new();
    for trigger in definition.triggers() {
        if let TriggerKind::Schedule(on) = &trigger.on {
            all.push(of_trigger(definition, trigger, on)?);
        }
    }
    Ok(all)
}

fn of_trigger(definition: &Definition, trigger: &Trigger, on: &OnSchedule) -> Result<Schedule, EngineError> {
    let (workflow, id) = (definition.name(), trigger.id.clone());
    let wrong = |why: &dyn std::fmt::Display| EngineError::Invalid(format!("trigger `{id}`: {why}"));
    let mut schedule = Schedule::new(format!("{workflow}/{id}"), on.cron.clone(), workflow.clone());
    if let Some(time_zone) = &on.timezone {
        schedule.time_zone.clone_from(time_zone);
    }
    let word = |word: &Option<String>| word.clone().map(Value::from);
    if let Some(missed) = word(&on.missed) {
        schedule.missed = MissedFirings::deserialize(missed).map_err(|error| wrong(&error))?;
    }
    if let Some(overlap) = word(&on.overlap) {
        schedule.overlap = Overlap::deserialize(overlap).map_err(|error| wrong(&error))?;
    }
    // A workflow document expects an object as its input.
    schedule.input = trigger.input.clone().unwrap_or_else(no_input);
    schedule.parsed().map_err(|error| wrong(&error))?;
    schedule.by = Some(PlannedBy { trigger: id.clone(), version: definition.version() });
    Ok(schedule)
}

/// Returns the problems in a workflow's schedule triggers that parsing the document does not find: cron patterns, time
/// zones and policies. Each comes with the id of its trigger.
pub fn check_triggers(definition: &Definition) -> Vec<(Name, String)> {
    let triggers = definition.triggers().iter();
    let wrong = triggers.filter_map(|trigger| match &trigger.on {
        TriggerKind::Schedule(on) => {
            Some((trigger.id.clone(), of_trigger(definition, trigger, on).err()?.to_string()))
        }
        _ => None,
    });
    wrong.collect()
}

/// Returns the problems in the schedule triggers of a workflow document, with their positions.
pub fn check_document_triggers(document: &WorkflowSource) -> Vec<SourceProblem> {
    let wrong = check_triggers(document.definition()).into_iter();
    wrong
        .map(|(trigger, why)| {
            let at = document.place_of_trigger(&trigger).unwrap_or_default();
            SourceProblem::new("badTrigger", at, why)
        })
        .collect()
}

/// Returns the engine's idempotency key of a schedule.
fn key(name: &str) -> String {
    format!("schedule:{name}")
}

fn utc() -> String {
    "UTC".to_owned()
}

/// Registers the workflow and the actions of schedules.
pub(crate) fn equip(builder: Builder) -> Builder {
    builder.own_workflow(definition()).action(FIRE, fire).action(PLAN, plan)
}

fn definition() -> Definition {
    let planned = |id: &str| Transition::new(id, "planned", "planned");
    let spec = Spec::new(WORKFLOW)
        .initial("planned")
        .step("planned")
        .step("off")
        .end("over")
        .signal("PUT")
        .signal("OFF")
        .signal("END")
        .transition(
            planned("fire")
                .on(TransitionTrigger::Until("context.next".to_owned()))
                .action(FIRE)
                .timeout_ms(60_000),
        )
        .transition(planned("put").on_signal("PUT").action(PLAN))
        .transition(Transition::new("again", "off", "planned").on_signal("PUT").action(PLAN))
        .transition(Transition::new("off", "planned", "off").on_signal("OFF").action(PLAN))
        // A buffered `OFF` would switch the schedule off right after it is put again.
        .transition(Transition::new("still", "off", "off").on_signal("OFF"))
        .transition(Transition::new("end", "off", "over").on_signal("END"));
    spec.build().expect("the workflow of schedules is sound: every engine's tests build it")
}

/// Starts the due runs and plans the next firing.
async fn fire(cx: Cx) -> Result<u64, ActionError> {
    let mut state: Scheduled = cx.state()?;
    let cron = state.schedule.parsed().map_err(|error| ActionError::from(error).non_retryable())?;
    let pause = cx.inner().pause_of(cx.scope(), &PauseOf::Schedule(state.schedule.name.clone())).await?;
    let planned = pause.after_resumption(state.next, &cron);
    let due = cron.firings(planned, cx.now(), state.schedule.missed, GRACE_MS, FIRED_AT_ONCE);
    let mut started = 0;
    // Skip the firing if the workflow is archived or has no active version; the schedule continues. If that cannot be
    // read now, starting the runs detects it.
    let is_inactive = cx.is_inactive(&state.schedule.workflow).await.unwrap_or(false);
    for _ in &due.fire {
        if is_inactive || pause.paused.is_some() {
            state.skipped += 1;
            continue;
        }
        let going = match state.last_run {
            Some(run) if started == 0 => cx.status_of(run).await?.is_some_and(|status| !status.is_final()),
            // A run that is started in this commit is active.
            Some(_) => true,
            None => false,
        };
        if going && state.schedule.overlap == Overlap::Skip {
            state.skipped += 1;
            continue;
        }
        let start = Start::new(state.schedule.workflow.clone()).input(&state.schedule.input);
        let start = start.by(Some(format!("schedule:{}", state.schedule.name)));
        // A run that cannot start must not stop the schedule.
        let run = RunId::new(cx.new_id());
        match cx.inner().fresh(cx.scope(), &start, run, None).await {
            Err(EngineError::Store(error)) => return Err(error.into()),
            Err(error) => {
                state.skipped += 1;
                state.last_error = Some(error.to_string());
                continue;
            }
            Ok(_) => cx.stage_start(run, start)?,
        }
        (state.last_run, state.last_error) = (Some(run), None);
        started += 1;
    }
    state.fired += started;
    state.next = due.next.unwrap_or(Timestamp::MAX);
    cx.set_state(&state)?;
    Ok(started)
}

/// Replaces the schedule, or switches it off if there is no payload.
async fn plan(cx: Cx) -> Result<(), ActionError> {
    let state: Scheduled = cx.state()?;
    let put = Option::<Scheduled>::deserialize(cx.payload())?;
    cx.set_state(&state.changed(put))
}

/// Returns the runs of schedules, whose history is truncated. Reads at most 200 runs.
pub(crate) async fn runs(
    store: &dyn stepwell_store::Store,
    scope: TenantScope,
) -> Result<Vec<RunId>, EngineError> {
    let query = RunQuery { filter: RunFilter::of(WORKFLOW), limit: 200, ..RunQuery::default() };
    let page = store.runs(scope, query).await?;
    let going = page.items.into_iter().filter(|run| run.status != Status::Completed);
    Ok(going.map(|run| run.run).collect())
}
