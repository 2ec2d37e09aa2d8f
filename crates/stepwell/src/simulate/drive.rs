//! Drives one simulated run: starts it, applies the inputs of its case, and reads the result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Map, Value, json};
use stepwell_core::document::cases::{Case, CaseOutcome, GivenKey, GivenLink, Happening, Thing};
use stepwell_core::graph::open_waits;
use stepwell_core::snapshot::RunEnd;
use stepwell_core::{Failure, Timestamp};
use stepwell_store::{Entity, MemoryStore, Status, TenantScope, WaitQuery};
use uuid::Uuid;

use super::read::{changes, step_of};
use super::script::Script;
use super::trace::Traced;
use super::{Coverage, Seen, Simulated, Simulation, SimulationError};
use crate::data::links::LinkListing;
use crate::data::{Changes, KeyList, NewLink};
use crate::engine::Run;
use crate::error::EngineError;
use crate::host::{BoxFuture, Clock, Host, Ids};
use crate::manual_clock::ManualClock;
use crate::secrets::Secrets;
use crate::signal::Signal;
use crate::start::Start;
use crate::testing::{BEGINS, Meter, TestEngine};
use crate::waits::{FailWait, WaitId};

/// Page size of listings.
const PAGE: Option<u32> = Some(200);

/// Runs a case in a fresh engine.
pub(super) async fn simulate(
    simulation: &Simulation,
    case: &Case,
    is_strict: bool,
) -> Result<Simulated, SimulationError> {
    let definition = simulation.document.definition();
    let script = Arc::new(Script::new(definition, &simulation.others, case, is_strict)?);
    let driver = Driver::new(simulation, case, &script).await?;
    driver.give(case).await?;
    let input = match (&case.input, &case.event) {
        (_, Some(event)) => {
            let made = simulation.document.input_of_event(&event.name, &event.data, driver.engine.now());
            let none = || Err(format!("no trigger of this workflow accepts the event `{}`", event.name));
            made.unwrap_or_else(none).map_err(SimulationError::Case)?
        }
        (Some(input), None) => input.clone(),
        (None, None) => json!({}),
    };
    let start = Start::new(definition.name().clone()).input(&input).any_strategy();
    let run = match driver.engine.start(start).await {
        Ok(run) => run,
        Err(EngineError::Refused(refusal)) => return Ok(driver.refused(refusal.to_string())),
        Err(EngineError::Undecidable(error)) => return Ok(driver.refused(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    driver.run_until_idle(&run).await?;
    for (index, happening) in case.happens.iter().enumerate() {
        let happened = driver.happen(&run, happening).await;
        happened.map_err(|error| match error {
            SimulationError::Engine(error) => {
                SimulationError::Case(format!("`happens` entry {}: {error}", index + 1))
            }
            other => other,
        })?;
        driver.run_until_idle(&run).await?;
    }
    driver.finish(&run, case, &script).await
}

struct Driver<'a> {
    simulation: &'a Simulation,
    engine: TestEngine,
    meter: Arc<Meter>,
    began: Instant,
}

impl<'a> Driver<'a> {
    async fn new(
        simulation: &'a Simulation,
        case: &Case,
        script: &Arc<Script>,
    ) -> Result<Self, SimulationError> {
        let clock = ManualClock::new(case.now.unwrap_or(BEGINS));
        let meter = Arc::new(Meter::new(simulation.bounds.steps));
        let ids = Arc::new(Counted(AtomicU64::new(1)));
        let host = Host { ids, ..Host::system().with_clock(Arc::new(clock.clone())) };
        let mut workflows = vec![simulation.document.definition().clone()];
        workflows.extend(simulation.others.iter().cloned());
        let secrets = MadeUp(case.secrets.clone());
        let store = Arc::new(MemoryStore::new());
        let engine = TestEngine::start_metered(store, clock, Some(meter.clone()), |builder| {
            let mut builder = builder.host(host).secrets(secrets).with(|options| {
                // Keep all data until the result is read.
                options.retention_ms = None;
                let names = workflows.iter().map(|workflow| (workflow.name().clone(), None));
                options.workflow_retention_ms = names.collect();
                // Only the case starts runs.
                options.plans_triggers = false;
                options.handle_retention_ms = None;
                options.limits = simulation.limits.clone();
            });
            for workflow in &workflows {
                builder = builder.workflow(workflow.clone());
            }
            script.equip(builder, &workflows)
        })
        .await?;
        Ok(Driver { simulation, engine, meter, began: Instant::now() })
    }

    /// Writes the initial content of the data store.
    async fn give(&self, case: &Case) -> Result<(), SimulationError> {
        let mut changes = Changes::new();
        for key in &case.given.store {
            changes = changes.set(key.namespace.as_str(), key.key.as_str(), &key.value);
        }
        for link in &case.given.links {
            let end = |thing: &Thing| Entity::new(thing.kind.as_str(), thing.id.as_str());
            let mut new = NewLink::new(end(&link.from), end(&link.to));
            if let Some(relation) = &link.relation {
                new = new.relation(relation.as_str());
            }
            if let Some(attributes) = &link.attributes {
                new = new.attributes(attributes);
            }
            changes = changes.link(&link.namespace, new);
        }
        if changes.is_empty() {
            return Ok(());
        }
        let given = self.engine.write(changes).await;
        given.map(drop).map_err(|error| SimulationError::Case(format!("`given`: {error}")))
    }

    /// Lets the engine do everything that is due now, within the limits.
    async fn settle(&self) -> Result<(), SimulationError> {
        let bounds = &self.simulation.bounds;
        let goes_on = || !self.meter.is_over() && self.began.elapsed() < bounds.time;
        if self.engine.settle_while(goes_on).await && !self.meter.is_over() {
            return Ok(());
        }
        let steps = self.meter.steps().min(bounds.steps);
        Err(SimulationError::Endless { steps, time: self.began.elapsed() })
    }

    /// Runs until the run ends, fails or waits for an external input. The clock advances automatically while the run
    /// only sleeps or pauses before a retry. It stops where the run waits for an external input.
    async fn run_until_idle(&self, run: &Run) -> Result<(), SimulationError> {
        loop {
            self.settle().await?;
            let status = run.view().await?.status;
            if status.is_final() || status == Status::Failed || self.is_waited().await? {
                return Ok(());
            }
            let due = self.engine.store().due(Vec::new()).await.map_err(EngineError::from)?;
            let Some(at) = due.iter().map(|due| due.at).min() else { return Ok(()) };
            if at <= self.engine.clock().now() {
                return Ok(());
            }
            self.pass_until(at).await?;
        }
    }

    /// Returns `true` if a run waits for a signal.
    async fn is_waited(&self) -> Result<bool, SimulationError> {
        let query = WaitQuery { limit: 1_000, ..WaitQuery::default() };
        let waits = self.engine.store().waits(self.engine.scope(), query).await.map_err(EngineError::from)?;
        let takes_signals = |detail: &[u8]| {
            let detail: Value = serde_json::from_slice(detail).unwrap_or_default();
            detail["signals"].as_array().is_some_and(|signals| !signals.is_empty())
        };
        Ok(waits.items.iter().any(|row| takes_signals(&row.wait.detail)))
    }

    /// Advances the clock step by step, so that each timer fires at its own time.
    async fn pass_until(&self, until: Timestamp) -> Result<(), SimulationError> {
        let clock = self.engine.clock();
        while let Some(at) = clock.next_sleeper().filter(|at| *at <= until) {
            clock.set(at);
            self.settle().await?;
        }
        clock.set(until);
        self.settle().await
    }

    async fn happen(&self, run: &Run, happening: &Happening) -> Result<(), SimulationError> {
        match happening {
            Happening::After { ms } => return self.pass_until(self.engine.clock().now().plus_ms(*ms)).await,
            Happening::Signal { signal, payload } => {
                run.signal(Signal::new(signal.as_str()).with(payload)).await?;
            }
            Happening::Event { event, data } => publish(run, event, data).await?,
            Happening::Cancel { .. } => self.engine.cancel(run.id()).await?,
            Happening::Fail { fail, error } => {
                let wait = self.wait_of(run, fail).await?;
                self.engine.fail_wait(wait, FailWait::new(error.clone())).await?;
            }
            Happening::Heartbeat { heartbeat } => {
                let wait = self.wait_of(run, heartbeat).await?;
                self.engine.heartbeat_wait(wait, None).await?;
            }
        }
        Ok(())
    }

    /// Returns the open wait of a step.
    async fn wait_of(&self, run: &Run, step: &str) -> Result<WaitId, SimulationError> {
        let view = run.view().await?;
        let open = open_waits(self.simulation.document.definition(), &view.snapshot);
        let wait = open.iter().find(|wait| wait.place.as_str() == step);
        let why = || EngineError::Invalid(format!("the run does not wait at step `{step}`"));
        let wait = wait.ok_or_else(why)?;
        Ok(WaitId { run: run.id(), activation: wait.activation })
    }

    /// Builds the result for a refused start: a run that failed before its first step.
    fn refused(&self, why: String) -> Simulated {
        let seen = Seen::default();
        Simulated {
            workflow: self.simulation.document.name().to_owned(),
            outcome: CaseOutcome::Failed,
            result: None,
            error: Some(Failure::new("refused", why).non_retryable()),
            waits: Vec::new(),
            now: self.engine.clock().now(),
            vars: Map::new(),
            steps: Vec::new(),
            store: Vec::new(),
            links: Vec::new(),
            coverage: Coverage::of(&self.simulation.outline, &seen),
            seen,
        }
    }

    async fn finish(&self, run: &Run, case: &Case, script: &Script) -> Result<Simulated, SimulationError> {
        let (definition, outline) = (self.simulation.document.definition(), &self.simulation.outline);
        let store = self.engine.store();
        let changes = changes(store.as_ref(), self.engine.scope(), definition, run.id()).await?;
        let view = run.view().await?;
        let mut seen = Seen::default();
        for change in &changes {
            seen.entered.extend(change.entry.entered.iter().cloned());
            seen.fired.extend(change.entry.transitions.iter().cloned());
        }
        let outcome = match view.status {
            Status::Completed => CaseOutcome::Completed,
            Status::Cancelled => CaseOutcome::Cancelled,
            Status::Failed => CaseOutcome::Failed,
            Status::Pending | Status::Running | Status::Waiting | Status::Suspended => CaseOutcome::Waiting,
        };
        let result = match view.snapshot.finished() {
            Some(RunEnd::Completed { output, .. }) => output.clone(),
            _ => None,
        };
        let context = view.snapshot.context();
        let vars = if definition.spec().envelope { &context["vars"] } else { context };
        let calls = script.calls();
        let (ledger, id) = (&view.ledger, run.id());
        let traced = Traced { definition, outline, run: id, changes: &changes, calls: &calls, ledger };
        Ok(Simulated {
            workflow: self.simulation.document.name().to_owned(),
            outcome,
            result,
            error: view.ledger.stopped.as_ref().map(|stopped| stopped.error.clone()),
            waits: self.waits(&view.snapshot.current_places()),
            now: self.engine.clock().now(),
            vars: vars.as_object().cloned().unwrap_or_default(),
            steps: traced.steps(),
            store: self.keys(&case.given.store).await?,
            links: self.links(&case.given.links).await?,
            coverage: Coverage::of(outline, &seen),
            seen,
        })
    }

    /// Returns the steps that a run is at, without completed branches and timers.
    fn waits(&self, places: &[stepwell_core::Name]) -> Vec<String> {
        let is_step = |name: &str| self.simulation.outline.steps.iter().any(|step| step.id == name);
        let stands_at = |place: &stepwell_core::Name| match place.split_once('.') {
            _ if is_step(place) => Some(place.to_string()),
            Some((_, "child" | "again")) => Some(step_of(place).to_owned()),
            _ => None,
        };
        let steps: BTreeSet<_> = places.iter().filter_map(stands_at).collect();
        steps.into_iter().collect()
    }

    /// Returns the keys that were added or changed.
    async fn keys(&self, given: &[GivenKey]) -> Result<Vec<GivenKey>, SimulationError> {
        let broken = |error: crate::DataError| SimulationError::Broken(error.to_string());
        let mut found = Vec::new();
        let spaces = self.engine.kv_namespaces(PAGE, None).await.map_err(broken)?;
        for space in spaces.items {
            let mut cursor = None;
            loop {
                let list = KeyList { limit: PAGE, cursor, ..KeyList::default() };
                let page = self.engine.kv(space.namespace.as_str()).list(list).await.map_err(broken)?;
                let namespace = &space.namespace;
                found.extend(page.items.into_iter().map(|entry| GivenKey {
                    namespace: namespace.clone(),
                    key: entry.key,
                    value: entry.value,
                }));
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        found.retain(|key| !given.contains(key));
        Ok(found)
    }

    /// Returns the links that were added.
    async fn links(&self, given: &[GivenLink]) -> Result<Vec<GivenLink>, SimulationError> {
        let broken = |error: crate::DataError| SimulationError::Broken(error.to_string());
        let thing = |end: &Entity| Thing { kind: end.kind().to_owned(), id: end.id().to_owned() };
        let mut found = Vec::new();
        let spaces = self.engine.link_namespaces(PAGE, None).await.map_err(broken)?;
        for space in spaces.items {
            let links = self.engine.links(space.namespace.as_str());
            let page = links.list(LinkListing::default(), PAGE, None).await.map_err(broken)?;
            found.extend(page.items.into_iter().map(|link| GivenLink {
                namespace: space.namespace.clone(),
                from: thing(link.edge.from()),
                to: thing(link.edge.to()),
                relation: Some(link.edge.relation().to_owned()),
                attributes: Some(link.attributes),
            }));
        }
        let is_same =
            |a: &GivenLink, b: &GivenLink| (&a.namespace, &a.from, &a.to) == (&b.namespace, &b.from, &b.to);
        found.retain(|link| !given.iter().any(|one| is_same(one, link)));
        Ok(found)
    }
}

/// Delivers an event to the run, as a signal of the same name. An event that the run does not accept is ignored.
async fn publish(run: &Run, event: &str, data: &Value) -> Result<(), EngineError> {
    match run.signal(Signal::new(event).with(data)).await {
        Ok(_) | Err(EngineError::Refused(_) | EngineError::WrongStatus { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The secrets of a case. Other secrets get made-up values.
struct MadeUp(BTreeMap<String, String>);

impl Secrets for MadeUp {
    fn secret(&self, _: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
        let secret = self.0.get(name).cloned().unwrap_or_else(|| format!("made-up-{name}"));
        Box::pin(async move { Ok(Some(secret)) })
    }
}

/// Consecutive ids, which are the same in every simulation.
struct Counted(AtomicU64);

impl Ids for Counted {
    fn next(&self) -> Uuid {
        Uuid::from_u64_pair(0, self.0.fetch_add(1, Ordering::Relaxed))
    }
}
