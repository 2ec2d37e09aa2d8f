//! Cron schedules. A schedule is itself a durable run: it sleeps until its next firing, starts the workflow and plans
//! the next, in one commit. So a firing happens once, whoever's process dies, and there is nothing else to keep.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::document::Problem;
use stepwell_core::spec::{OnSchedule, StartOn, Starter, Transition, Trigger};
use stepwell_core::{Definition, Document, Name, RunId, Spec, Timestamp};
use stepwell_store::{Page, Record, RecordQuery, RunQuery, Status, TenantScope};

use crate::action::ActionError;
use crate::actor::Permission;
use crate::cron::{Cron, CronError, Missed, Overlap};
use crate::cx::Cx;
use crate::engine::{Builder, Engine, Inner};
use crate::error::EngineError;
use crate::signal::Signal;
use crate::standing::Standing;
use crate::start::{OWN_START, Start, no_input, run_of};

/// The workflow that schedules are runs of. Names that begin with `stepwell.` are the engine's.
pub const WORKFLOW: &str = "stepwell.schedule";
const FIRE: &str = "stepwell.schedule.fire";
const PLAN: &str = "stepwell.schedule.plan";
/// A firing this late is not a missed one.
const GRACE_MS: u64 = 60_000;
/// Firings that are made up for in one commit.
const FIRED_AT_ONCE: usize = 100;
/// Schedules that are read at a time.
const READ_AT_ONCE: u32 = 200;

/// When a workflow is started by itself, and with what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Schedule {
    /// The schedule's name.
    pub name: String,
    /// Five fields, or six with seconds.
    pub cron: String,
    /// The time zone in which the fields are read.
    #[serde(default = "utc")]
    pub time_zone: String,
    /// The workflow it starts.
    pub workflow: Name,
    /// What each run begins with; an empty object if nothing is named.
    #[serde(default = "no_input")]
    pub input: Value,
    /// What happens to firings that were missed.
    #[serde(default)]
    pub missed: Missed,
    /// What happens while the last run is still going.
    #[serde(default)]
    pub overlap: Overlap,
    /// The trigger that it comes from, if nobody has put it by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<PlannedBy>,
}

/// The trigger that a schedule comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlannedBy {
    /// The trigger of the schedule's workflow.
    pub trigger: Name,
    /// The edition of the workflow.
    pub version: u32,
}

impl Schedule {
    /// A schedule in UTC.
    pub fn new(name: impl Into<String>, cron: impl Into<String>, workflow: impl Into<Name>) -> Self {
        Schedule {
            name: name.into(),
            cron: cron.into(),
            time_zone: utc(),
            workflow: workflow.into(),
            input: no_input(),
            missed: Missed::default(),
            overlap: Overlap::default(),
            by: None,
        }
    }

    /// The time zone in which its fields are read.
    #[must_use]
    pub fn time_zone(mut self, time_zone: impl Into<String>) -> Self {
        self.time_zone = time_zone.into();
        self
    }

    /// What each run begins with.
    #[must_use]
    pub fn input(mut self, input: Value) -> Self {
        self.input = input;
        self
    }

    /// What happens to firings that were missed.
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// What happens while the last run is still going.
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    fn parsed(&self) -> Result<Cron, CronError> {
        Cron::parse(&self.cron, &self.time_zone)
    }
}

/// A schedule as it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scheduled {
    /// The schedule.
    pub schedule: Schedule,
    /// When it fires next.
    pub next: Timestamp,
    /// It does not fire until it is put again.
    #[serde(default)]
    pub is_off: bool,
    /// How often it has fired.
    #[serde(default)]
    pub fired: u64,
    /// Firings that did not start a run, because the last one was still going or none could be started.
    #[serde(default)]
    pub skipped: u64,
    /// The run it started last.
    #[serde(default)]
    pub last_run: Option<RunId>,
    /// Why the last firing could not start a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
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
    /// The next firing after `put` replaces this schedule. A firing that is due is kept unless the times change.
    fn next_if_replaced(&self, put: &Scheduled) -> Timestamp {
        let times = |schedule: &Schedule| (schedule.cron.clone(), schedule.time_zone.clone());
        if !self.is_off && times(&self.schedule) == times(&put.schedule) { self.next } else { put.next }
    }
}

impl Engine {
    /// Creates a schedule, or replaces the one that has this name. Returns the run behind it and its next firing.
    /// Refused if a trigger has made that one.
    pub async fn put_schedule(&self, schedule: Schedule) -> Result<PlacedSchedule, EngineError> {
        self.permit(Permission::Publish)?;
        self.inner.by_hand(self.scope, &schedule.name).await?;
        self.inner.put_schedule(self.scope, schedule).await
    }

    /// Switches a schedule off: it does not fire until it is put again. Refused if a trigger has made it.
    pub async fn remove_schedule(&self, name: &str) -> Result<(), EngineError> {
        self.permit(Permission::Publish)?;
        self.inner.by_hand(self.scope, name).await?;
        self.inner.remove_schedule(self.scope, name).await
    }

    /// A schedule as it stands.
    pub async fn schedule(&self, name: &str) -> Result<Option<Scheduled>, EngineError> {
        self.permit(Permission::View)?;
        let Some(run) = self.inner.schedule_run(self.scope, name).await? else { return Ok(None) };
        scheduled(&self.inner.load(self.scope, run).await?).map(Some)
    }

    /// All schedules, those that are off too, newest first.
    pub async fn schedules(&self) -> Result<Vec<Scheduled>, EngineError> {
        self.permit(Permission::View)?;
        let all = self.inner.schedules(self.scope).await?;
        Ok(all.into_iter().map(|(schedule, _)| schedule).collect())
    }

    /// A part of the schedules, newest first.
    pub async fn schedules_page(
        &self,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<Scheduled>, EngineError> {
        self.permit(Permission::View)?;
        let page = self.inner.some_schedules(self.scope, limit, cursor).await?;
        Ok(page.map(|(schedule, _)| schedule))
    }
}

impl Inner {
    async fn put_schedule(
        self: &Arc<Self>,
        scope: TenantScope,
        schedule: Schedule,
    ) -> Result<PlacedSchedule, EngineError> {
        let wrong = |error: &dyn std::fmt::Display| {
            EngineError::Invalid(format!("schedule `{}`: {error}", schedule.name))
        };
        if schedule.name.is_empty() {
            return Err(EngineError::Invalid("a schedule needs a name".to_owned()));
        }
        let cron = schedule.parsed().map_err(|error| wrong(&error))?;
        match self.workflow(scope, &schedule.workflow).await {
            // It may be made startable before the schedule fires, or after it has in vain.
            Ok(_) | Err(EngineError::Inactive { .. }) => {}
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
        };
        let name = planned.schedule.name.clone();
        if let Some(run) = self.schedule_run(scope, &name).await? {
            return self.replace_schedule(scope, run, &planned).await;
        }
        let start = Start::own(WORKFLOW, key(&name)).input(&planned);
        match self.start(scope, &start, None).await {
            Ok(started) => Ok(PlacedSchedule { run: started.run.id(), next }),
            // Another request has created it at the same time.
            Err(EngineError::KeyReused { .. }) => {
                let run = self.schedule_run(scope, &name).await?;
                let run =
                    run.ok_or_else(|| EngineError::Invalid(format!("schedule `{name}` came and went")))?;
                self.replace_schedule(scope, run, &planned).await
            }
            Err(error) => Err(error),
        }
    }

    async fn replace_schedule(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        planned: &Scheduled,
    ) -> Result<PlacedSchedule, EngineError> {
        let next = match self.load(scope, run).await.and_then(|standing| scheduled(&standing)) {
            Ok(known) => known.next_if_replaced(planned),
            // The new schedule replaces a state that cannot be read.
            Err(_) => planned.next,
        };
        self.signal(scope, run, &Signal::own("PUT").with(planned)).await?;
        Ok(PlacedSchedule { run, next })
    }

    async fn remove_schedule(self: &Arc<Self>, scope: TenantScope, name: &str) -> Result<(), EngineError> {
        let run = self.schedule_run(scope, name).await?;
        let run = run.ok_or_else(|| EngineError::NoSchedule(name.to_owned()))?;
        self.signal(scope, run, &Signal::own("OFF")).await?;
        Ok(())
    }

    /// Refuses what is a trigger's: it would soon be again what that says.
    async fn by_hand(&self, scope: TenantScope, name: &str) -> Result<(), EngineError> {
        let Some(run) = self.schedule_run(scope, name).await? else { return Ok(()) };
        let known = scheduled(&self.load(scope, run).await?)?;
        let (off, workflow) = (known.is_off, known.schedule.workflow);
        match known.schedule.by.filter(|_| !off) {
            Some(PlannedBy { trigger, .. }) => {
                Err(EngineError::Planned { name: name.to_owned(), workflow, trigger })
            }
            None => Ok(()),
        }
    }

    /// All schedules, each with whether nothing is on its way to it that changes it.
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
        let query = RunQuery { workflow: Some(WORKFLOW.into()), limit, cursor, ..RunQuery::default() };
        let mut page = self.store.runs(scope, query).await?;
        let mut items = Vec::new();
        for summary in page.items.iter().filter(|summary| !summary.status.is_final()) {
            let read = self.load(scope, summary.run).await.and_then(|standing| {
                let is_settled = standing.inbox.is_empty() && standing.ledger.tries.is_empty();
                Ok((scheduled(&standing)?, is_settled))
            });
            match read {
                Ok(schedule) => items.push(schedule),
                Err(error) => page.bad.push(error.bad_row(summary.run)?),
            }
        }
        Ok(page.over(|_| items))
    }

    /// The run that is a schedule, if there is one.
    async fn schedule_run(&self, scope: TenantScope, name: &str) -> Result<Option<RunId>, EngineError> {
        let query =
            RecordQuery::Key { operation: OWN_START.to_owned(), key: key(name), now: self.host.now() };
        let known = self.store.records(scope, query).await?.items.into_iter().next();
        let Some(Record::Key(record)) = known else { return Ok(None) };
        run_of(record.answer.as_ref()).map(Some)
    }

    /// Makes the tenant's schedules what the triggers of its workflows say. It changes nothing if they are; it is asked for
    /// whenever a workflow is activated or put away, and now and then, because a process may die in between.
    pub(crate) async fn plan_triggers(self: &Arc<Self>, scope: TenantScope) -> Result<(), EngineError> {
        if !self.options.plans_triggers {
            return Ok(());
        }
        // Schedules are read first: whoever has put one has activated its workflow before, and that is seen then.
        let there = self.schedules(scope).await?;
        self.catalogues.read_again(scope.tenant());
        let mut wanted = Vec::new();
        for workflow in self.triggered(scope).await? {
            match planned(&workflow.definition) {
                Ok(schedules) => wanted.extend(schedules),
                // It was not to be published like that; the others are not to suffer for it.
                Err(error) => {
                    tracing::error!(workflow = %workflow.definition.name(), %error, "a trigger cannot be planned");
                }
            }
        }
        for schedule in &wanted {
            let known = there.iter().find(|(known, _)| known.schedule.name == schedule.name);
            let is_so = |known: &Scheduled| known.schedule == *schedule && !known.is_off;
            // Of what programs bring along the newest counts; the catalogue says itself which version does.
            let is_listed = self.is_listed(scope, &schedule.workflow).await?;
            let is_newer = |known: &Scheduled| {
                !is_listed && !known.is_off && version(&known.schedule) > version(schedule)
            };
            // What is on its way may be the end of it.
            if !known.is_some_and(|(known, is_settled)| (*is_settled && is_so(known)) || is_newer(known))
                && let Err(error) = self.put_schedule(scope, schedule.clone()).await
            {
                tracing::error!(schedule = %schedule.name, %error, "a schedule could not be put");
            }
        }
        let there = there.iter().map(|(known, _)| known);
        for known in there.filter(|known| !known.is_off && known.schedule.by.is_some()) {
            let name = &known.schedule.workflow;
            let is_wanted = wanted.iter().any(|schedule| schedule.name == known.schedule.name);
            // What another process brings along and this one does not know is not this one's to end.
            let brought = self.registry.by_name(name).map(|known| known.definition.version());
            let is_known = self.is_listed(scope, name).await? || brought >= version(&known.schedule);
            if !is_wanted
                && is_known
                && let Err(error) = self.remove_schedule(scope, &known.schedule.name).await
            {
                tracing::error!(schedule = %known.schedule.name, %error, "a schedule could not be switched off");
            }
        }
        Ok(())
    }
}

/// The schedule that a run is.
pub(crate) fn scheduled(standing: &Standing) -> Result<Scheduled, EngineError> {
    let read = Scheduled::deserialize(standing.snapshot.context());
    read.map_err(|error| EngineError::Unreadable { run: standing.run(), why: error.to_string() })
}

fn version(schedule: &Schedule) -> Option<u32> {
    schedule.by.as_ref().map(|by| by.version)
}

/// The schedules that a workflow's triggers are.
fn planned(definition: &Definition) -> Result<Vec<Schedule>, EngineError> {
    let mut all = Vec::new();
    for starter in definition.starters() {
        if let StartOn::Schedule(on) = &starter.on {
            all.push(of_trigger(definition, starter, on)?);
        }
    }
    Ok(all)
}

fn of_trigger(definition: &Definition, starter: &Starter, on: &OnSchedule) -> Result<Schedule, EngineError> {
    let (workflow, trigger) = (definition.name(), starter.id.clone());
    let wrong = |why: &dyn std::fmt::Display| EngineError::Invalid(format!("trigger `{trigger}`: {why}"));
    let mut schedule = Schedule::new(format!("{workflow}/{trigger}"), on.cron.clone(), workflow.clone());
    if let Some(time_zone) = &on.timezone {
        schedule.time_zone.clone_from(time_zone);
    }
    let word = |word: &Option<String>| word.clone().map(Value::from);
    if let Some(missed) = word(&on.missed) {
        schedule.missed = Missed::deserialize(missed).map_err(|error| wrong(&error))?;
    }
    if let Some(overlap) = word(&on.overlap) {
        schedule.overlap = Overlap::deserialize(overlap).map_err(|error| wrong(&error))?;
    }
    // A workflow that is written as a document is started with an object.
    schedule.input = starter.input.clone().unwrap_or_else(no_input);
    schedule.parsed().map_err(|error| wrong(&error))?;
    schedule.by = Some(PlannedBy { trigger: trigger.clone(), version: definition.version() });
    Ok(schedule)
}

/// What is wrong with the triggers of a workflow, as far as that is not told when its document is read: patterns of time and
/// time zones. Each with the trigger it is about.
pub fn check_triggers(definition: &Definition) -> Vec<(Name, String)> {
    let starters = definition.starters().iter();
    let wrong = starters.filter_map(|starter| match &starter.on {
        StartOn::Schedule(on) => {
            Some((starter.id.clone(), of_trigger(definition, starter, on).err()?.to_string()))
        }
        _ => None,
    });
    wrong.collect()
}

/// The same for a document, with where each trigger stands.
pub fn check_document_triggers(document: &Document) -> Vec<Problem> {
    let wrong = check_triggers(document.definition()).into_iter();
    wrong
        .map(|(trigger, why)| {
            let at = document.place_of_trigger(&trigger).unwrap_or_default();
            Problem::new("badTrigger", at, why)
        })
        .collect()
}

/// The engine's key of a schedule's start.
fn key(name: &str) -> String {
    format!("schedule:{name}")
}

fn utc() -> String {
    "UTC".to_owned()
}

/// Every engine can run schedules.
pub(crate) fn equip(builder: Builder) -> Builder {
    builder.workflow(definition()).action(FIRE, fire).action(PLAN, plan)
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
            planned("fire").on(Trigger::Until("context.next".to_owned())).action(FIRE).timeout_ms(60_000),
        )
        .transition(planned("put").on_signal("PUT").action(PLAN))
        .transition(Transition::new("again", "off", "planned").on_signal("PUT").action(PLAN))
        .transition(Transition::new("off", "planned", "off").on_signal("OFF").action(PLAN))
        // Kept until the schedule is put again, it would end that.
        .transition(Transition::new("still", "off", "off").on_signal("OFF"))
        .transition(Transition::new("end", "off", "over").on_signal("END"));
    spec.build().expect("the workflow of schedules is sound: every engine's tests build it")
}

/// Fires what is due and plans what is next.
async fn fire(cx: Cx) -> Result<u64, ActionError> {
    let mut state: Scheduled = cx.state()?;
    let cron = state.schedule.parsed().map_err(|error| ActionError::from(error).finally())?;
    let due = cron.firings(state.next, cx.now(), state.schedule.missed, GRACE_MS, FIRED_AT_ONCE);
    let mut started = 0;
    // A workflow that is archived or has no active version is not started; the schedule goes on.
    // If that cannot be read now, it is found out when the runs begin.
    let is_inactive = cx.is_inactive(&state.schedule.workflow).await.unwrap_or(false);
    for _ in &due.fire {
        if is_inactive {
            state.skipped += 1;
            continue;
        }
        let going = match state.last_run {
            Some(run) if started == 0 => cx.status_of(run).await?.is_some_and(|status| !status.is_final()),
            // One that is started in this very commit is going.
            Some(_) => true,
            None => false,
        };
        if going && state.schedule.overlap == Overlap::Skip {
            state.skipped += 1;
            continue;
        }
        let start = Start::new(state.schedule.workflow.clone()).input(&state.schedule.input);
        // A run that cannot begin as it is to is not the end of the schedule.
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

/// Another edition of the schedule, or its end until there is one.
async fn plan(cx: Cx) -> Result<(), ActionError> {
    let mut state: Scheduled = cx.state()?;
    if cx.payload().is_null() {
        state.is_off = true;
    } else {
        let put = Scheduled::deserialize(cx.payload())?;
        let next = state.next_if_replaced(&put);
        state = Scheduled { schedule: put.schedule, next, is_off: false, ..state };
    }
    cx.set_state(&state)
}

/// The runs that are schedules, whose history is kept short.
pub(crate) async fn runs(
    store: &dyn stepwell_store::Store,
    scope: TenantScope,
) -> Result<Vec<RunId>, EngineError> {
    let query = RunQuery { workflow: Some(WORKFLOW.into()), limit: 200, ..RunQuery::default() };
    let page = store.runs(scope, query).await?;
    let going = page.items.into_iter().filter(|run| run.status != Status::Completed);
    Ok(going.map(|run| run.run).collect())
}
