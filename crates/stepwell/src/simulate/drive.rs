//! Drives one simulated run: starts it, lets happen what its case says, and reads what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Map, Value, json};
use stepwell_core::document::cases::{Case, GivenKey, GivenLink, Happening, Outcome, Thing};
use stepwell_core::snapshot::Finished;
use stepwell_core::{Failure, Timestamp};
use stepwell_store::{Entity, MemoryStore, Status, TenantScope, WaitQuery};
use uuid::Uuid;

use super::read::{changes, step_of};
use super::script::Script;
use super::trace::Traced;
use super::{Coverage, Seen, Simulated, Simulation, SimulationError};
use crate::data::links::Listed;
use crate::data::{Changes, List, NewLink};
use crate::engine::Run;
use crate::error::EngineError;
use crate::host::{BoxFuture, Clock, Host, Ids};
use crate::manual_clock::ManualClock;
use crate::secrets::Secrets;
use crate::signal::Signal;
use crate::start::Start;
use crate::testing::{BEGINS, Meter, TestEngine};

/// Rows of a listing.
const PAGE: Option<u32> = Some(200);

/// Runs a case.
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
            let none = || Err(format!("no trigger starts this workflow with the event `{}`", event.name));
            made.unwrap_or_else(none).map_err(SimulationError::Case)?
        }
        (Some(input), None) => input.clone(),
        (None, None) => json!({}),
    };
    let run = match driver.engine.start(Start::new(definition.name().clone()).input(&input)).await {
        Ok(run) => run,
        Err(EngineError::Refused(refusal)) => return Ok(driver.refused(refusal.to_string())),
        Err(EngineError::Undecidable(error)) => return Ok(driver.refused(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    driver.rest(&run).await?;
    for (index, happening) in case.happens.iter().enumerate() {
        let happened = driver.happen(&run, happening).await;
        happened.map_err(|error| match error {
            SimulationError::Engine(error) => {
                SimulationError::Case(format!("number {} of what happens: {error}", index + 1))
            }
            other => other,
        })?;
        driver.rest(&run).await?;
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
                // Nothing is tidied up while somebody looks at it.
                options.retention_ms = None;
                // Nothing is started but by the case.
                options.plans_triggers = false;
                options.handles_kept_ms = None;
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

    /// Writes what the data store is to hold before.
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

    /// Lets the engine do what it can do now, within bounds.
    async fn settle(&self) -> Result<(), SimulationError> {
        let bounds = &self.simulation.bounds;
        let goes_on = || !self.meter.is_over() && self.began.elapsed() < bounds.time;
        if self.engine.settle_while(goes_on).await && !self.meter.is_over() {
            return Ok(());
        }
        let steps = self.meter.steps().min(bounds.steps);
        Err(SimulationError::Endless { steps, time: self.began.elapsed() })
    }

    /// Lets the run come to rest: time passes by itself while it only sleeps or pauses before another try, and stands
    /// still where it waits for something from outside.
    async fn rest(&self, run: &Run) -> Result<(), SimulationError> {
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

    /// Some run waits for something from outside.
    async fn is_waited(&self) -> Result<bool, SimulationError> {
        let query = WaitQuery { limit: 1_000, ..WaitQuery::default() };
        let waits = self.engine.store().waits(self.engine.scope(), query).await.map_err(EngineError::from)?;
        let takes_signals = |detail: &[u8]| {
            let detail: Value = serde_json::from_slice(detail).unwrap_or_default();
            detail["signals"].as_array().is_some_and(|signals| !signals.is_empty())
        };
        Ok(waits.items.iter().any(|row| takes_signals(&row.wait.detail)))
    }

    /// Lets time pass: whatever falls due in it happens at its time.
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
        }
        Ok(())
    }

    /// A start that was refused is a run that has failed before its first step.
    fn refused(&self, why: String) -> Simulated {
        let seen = Seen::default();
        Simulated {
            workflow: self.simulation.document.name().to_owned(),
            outcome: Outcome::Failed,
            result: None,
            error: Some(Failure::new("refused", why).finally()),
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
            Status::Completed => Outcome::Completed,
            Status::Cancelled => Outcome::Cancelled,
            Status::Failed => Outcome::Failed,
            Status::Pending | Status::Running | Status::Waiting | Status::Suspended => Outcome::Waiting,
        };
        let result = match view.snapshot.finished() {
            Some(Finished::Completed { output, .. }) => output.clone(),
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

    /// The steps that a run stands at; branches that have come to their end, and clocks, are none.
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

    /// Keys that are not what they were.
    async fn keys(&self, given: &[GivenKey]) -> Result<Vec<GivenKey>, SimulationError> {
        let broken = |error: crate::DataError| SimulationError::Broken(error.to_string());
        let mut found = Vec::new();
        let spaces = self.engine.kv_namespaces(PAGE, None).await.map_err(broken)?;
        for space in spaces.items {
            let mut cursor = None;
            loop {
                let list = List { limit: PAGE, cursor, ..List::default() };
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

    /// Links that were not there before.
    async fn links(&self, given: &[GivenLink]) -> Result<Vec<GivenLink>, SimulationError> {
        let broken = |error: crate::DataError| SimulationError::Broken(error.to_string());
        let thing = |end: &Entity| Thing { kind: end.kind().to_owned(), id: end.id().to_owned() };
        let mut found = Vec::new();
        let spaces = self.engine.link_namespaces(PAGE, None).await.map_err(broken)?;
        for space in spaces.items {
            let links = self.engine.links(space.namespace.as_str());
            let page = links.list(Listed::default(), PAGE, None).await.map_err(broken)?;
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

/// An event happens that may concern the run: it reaches it as a signal of its name. One that it does not take is somebody
/// else's.
async fn publish(run: &Run, event: &str, data: &Value) -> Result<(), EngineError> {
    match run.signal(Signal::new(event).with(data)).await {
        Ok(_) | Err(EngineError::Refused(_) | EngineError::NotNow { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Secrets of a case; any other is made up too.
struct MadeUp(BTreeMap<String, String>);

impl Secrets for MadeUp {
    fn secret(&self, _: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
        let secret = self.0.get(name).cloned().unwrap_or_else(|| format!("made-up-{name}"));
        Box::pin(async move { Ok(Some(secret)) })
    }
}

/// Ids that are the same in every simulation.
struct Counted(AtomicU64);

impl Ids for Counted {
    fn next(&self) -> Uuid {
        Uuid::from_u64_pair(0, self.0.fetch_add(1, Ordering::Relaxed))
    }
}
