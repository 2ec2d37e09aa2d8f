//! What this process can run: definitions by hash, and actions and guards by name.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use futures_util::future::FutureExt;
use serde_json::Value;
use stepwell_core::snapshot::Activation;
use stepwell_core::spec::{Place, StartOn};
use stepwell_core::{
    Answers, DecideError, Definition, DefinitionHash, Event, Name, RunId, Snapshot, questions,
};
use stepwell_store::{StoredDefinition, TenantId};

use crate::action::{ActionInfo, BoxAction};
use crate::actor::Actor;
use crate::error::EngineError;
use crate::host::BoxFuture;

/// What names begin with that are the engine's own.
pub const OWN: &str = "stepwell.";

/// A start of one of the engine's own workflows.
pub(crate) fn reserved_workflow(name: &Name) -> EngineError {
    let instead = "start a schedule by putting it, and an event by emitting it";
    EngineError::Reserved { what: format!("workflow `{name}`"), instead }
}

/// Refuses to touch a run of one of the engine's own workflows.
pub(crate) fn refuse_own(workflow: &Name, run: RunId) -> Result<(), EngineError> {
    if !workflow.starts_with(OWN) {
        return Ok(());
    }
    let instead = "put or remove the schedule that it is; an event that it is can be retried";
    Err(EngineError::Reserved { what: format!("run {run} of workflow `{workflow}`"), instead })
}

/// What a named guard is shown.
#[derive(Debug, Clone)]
pub struct GuardInput {
    /// The run's state.
    pub snapshot: Arc<Snapshot>,
    /// The activation that would move.
    pub activation: Activation,
    /// The payload of the event.
    pub payload: Value,
}

pub(crate) type BoxGuard = Arc<dyn Fn(GuardInput) -> BoxFuture<bool> + Send + Sync>;

/// A definition this process knows.
pub(crate) struct Workflow {
    pub(crate) definition: Definition,
    pub(crate) stored: StoredDefinition,
    /// It asks guards that are functions.
    asks: bool,
    /// It has places that wait for something from outside.
    pub(crate) has_waits: bool,
    /// It has places that wait for events.
    pub(crate) has_events: bool,
    /// Its shadow columns that have met something they cannot hold.
    pub(crate) unfit: Box<[AtomicBool]>,
    /// Who has made it known, if it was not the embedding program itself: what its runs do to the data is theirs to be
    /// allowed.
    publisher: OnceLock<Option<Arc<Actor>>>,
    /// What it needs and this process does not have; found out when first asked.
    lacks: OnceLock<Lacks>,
}

/// What a definition needs and a process does not have.
#[derive(Debug, Default)]
pub(crate) struct Lacks {
    /// Actions of which nothing is registered, which workers elsewhere may do, each with the edition that is asked for.
    pub(crate) actions: Vec<(Name, Option<u32>)>,
    /// Something that nobody elsewhere can do.
    pub(crate) others: bool,
}

impl Lacks {
    /// Workers elsewhere may do what this process cannot.
    pub(crate) fn only_actions(&self) -> bool {
        !self.others && !self.actions.is_empty()
    }
}

impl Workflow {
    fn new(definition: Definition) -> Self {
        let stored = kept_by(&definition, None);
        let asks = !definition.named_guards().is_empty();
        let spec = definition.spec();
        let waits = |place: &Place| matches!(place, Place::Wait(_));
        let has_waits = !spec.signals.is_empty() || spec.places.values().any(waits);
        let has_events =
            spec.places.values().any(|place| matches!(place, Place::Wait(wait) if wait.event.is_some()));
        let unfit = definition.shadows().iter().map(|_| AtomicBool::new(false)).collect();
        Workflow {
            definition,
            stored,
            asks,
            has_waits,
            has_events,
            unfit,
            publisher: OnceLock::new(),
            lacks: OnceLock::new(),
        }
    }

    pub(crate) fn publisher(&self) -> Option<&Actor> {
        self.publisher.get()?.as_deref()
    }

    /// The definition as it is kept, with who has made it known.
    pub(crate) fn kept(&self) -> StoredDefinition {
        StoredDefinition { publisher: written(self.publisher()), ..self.stored.clone() }
    }

    /// It was made known in another process, by whoever is on record with it; nothing is allowed to somebody who cannot be
    /// read.
    pub(crate) fn published_elsewhere(&self, publisher: Option<&str>) {
        let unreadable = || Actor::new("unreadable", []);
        let actor = publisher.map(|text| serde_json::from_str(text).unwrap_or_else(|_| unreadable()));
        self.published_by(actor.map(Arc::new));
    }

    /// Whoever made it known first has.
    pub(crate) fn published_by(&self, actor: Option<Arc<Actor>>) {
        let _ = self.publisher.set(actor);
    }
}

/// A definition as it is kept, made known by somebody.
pub(crate) fn kept_by(definition: &Definition, publisher: Option<&Actor>) -> StoredDefinition {
    StoredDefinition {
        hash: definition.hash(),
        workflow: definition.name().clone(),
        version: definition.version(),
        body: definition.canonical().into(),
        publisher: written(publisher),
    }
}

fn written(publisher: Option<&Actor>) -> Option<String> {
    publisher.map(|actor| serde_json::to_string(actor).expect("an actor is plain data"))
}

/// What somebody said who panicked.
pub(crate) fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a word".to_owned())
}

/// What a tenant's runs are pinned to.
type Learned = BTreeMap<DefinitionHash, Arc<Workflow>>;

/// Definitions, actions and guards.
#[derive(Default)]
pub(crate) struct Registry {
    /// Those that this program brings along, for all tenants.
    workflows: RwLock<BTreeMap<DefinitionHash, Arc<Workflow>>>,
    /// Those that were learned from the store, each for the tenant whose it is: who has made it known there is told with it.
    learned: RwLock<BTreeMap<TenantId, Learned>>,
    /// The edition that a start by name gets.
    newest: RwLock<BTreeMap<Name, DefinitionHash>>,
    /// Some definition has shadow columns.
    has_shadows: AtomicBool,
    /// How often other shadow columns may have been declared.
    shadings: AtomicU64,
    pub(crate) actions: BTreeMap<Name, BoxAction>,
    pub(crate) guards: BTreeMap<Name, BoxGuard>,
    /// Where secrets come from.
    pub(crate) secrets: Option<Arc<dyn crate::secrets::Secrets>>,
    /// Where in the inputs of actions only lists are taken.
    pub(crate) lists: BTreeMap<Name, Vec<String>>,
    /// What is to be said of actions.
    pub(crate) described: BTreeMap<Name, ActionInfo>,
    /// Where in the input of an action secrets may stand.
    pub(crate) secret_fields: BTreeMap<Name, Vec<String>>,
    /// Names of events that this process has described.
    pub(crate) events: BTreeMap<Name, crate::events::EventType>,
}

impl Registry {
    /// Makes a definition known; starts by its name get it unless a higher version is known.
    pub(crate) fn add(&self, definition: Definition) -> Arc<Workflow> {
        if !definition.shadows().is_empty() {
            self.has_shadows.store(true, Ordering::Relaxed);
        }
        let mut workflows = self.workflows.write().unwrap_or_else(PoisonError::into_inner);
        let entry = workflows.entry(definition.hash());
        let workflow = entry.or_insert_with(|| Arc::new(Workflow::new(definition))).clone();
        drop(workflows);
        let definition = &workflow.definition;
        let mut newest = self.newest.write().unwrap_or_else(PoisonError::into_inner);
        let older = newest
            .get(definition.name())
            .and_then(|hash| self.brought(*hash))
            .is_none_or(|known| known.definition.version() <= definition.version());
        if older {
            newest.insert(definition.name().clone(), definition.hash());
        }
        drop(newest);
        self.shadings.fetch_add(1, Ordering::Release);
        workflow
    }

    /// Makes a definition known for a tenant's runs that are pinned to it, and for new ones only if the tenant's catalogue
    /// says so.
    pub(crate) fn learn(&self, tenant: TenantId, definition: Definition) -> Arc<Workflow> {
        if !definition.shadows().is_empty() {
            self.has_shadows.store(true, Ordering::Relaxed);
        }
        let mut learned = self.learned.write().unwrap_or_else(PoisonError::into_inner);
        let entry = learned.entry(tenant).or_default().entry(definition.hash());
        entry.or_insert_with(|| Arc::new(Workflow::new(definition))).clone()
    }

    /// A definition that is known of any tenant: what has the same hash is the same, and need not be built again.
    pub(crate) fn built(&self, hash: DefinitionHash) -> Option<Definition> {
        let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
        learned.values().find_map(|known| known.get(&hash)).map(|workflow| workflow.definition.clone())
    }

    /// Another number than before: other shadow columns may have been declared since.
    pub(crate) fn shadings(&self) -> u64 {
        self.shadings.load(Ordering::Acquire)
    }

    /// What a tenant's run with this hash is pinned to.
    pub(crate) fn by_hash(&self, tenant: TenantId, hash: DefinitionHash) -> Option<Arc<Workflow>> {
        self.brought(hash).or_else(|| {
            let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
            learned.get(&tenant)?.get(&hash).cloned()
        })
    }

    /// One that this program has brought along.
    fn brought(&self, hash: DefinitionHash) -> Option<Arc<Workflow>> {
        self.workflows.read().unwrap_or_else(PoisonError::into_inner).get(&hash).cloned()
    }

    /// What a start by name gets where the tenant's catalogue says nothing of that name.
    pub(crate) fn by_name(&self, name: &str) -> Option<Arc<Workflow>> {
        let hash = *self.newest.read().unwrap_or_else(PoisonError::into_inner).get(name)?;
        self.brought(hash)
    }

    /// The edition that says what shadow columns a run has: the one that new runs get, unless its own is higher. `None` if
    /// there are no columns.
    pub(crate) fn shading(&self, own: &Arc<Workflow>) -> Option<Arc<Workflow>> {
        if !self.has_shadows.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.declaring(own)).filter(|known| !known.definition.shadows().is_empty())
    }

    /// The same, also if there are none.
    pub(crate) fn declaring(&self, own: &Arc<Workflow>) -> Arc<Workflow> {
        let newest = self.by_name(own.definition.name());
        let newest = newest.filter(|newest| newest.definition.version() >= own.definition.version());
        newest.unwrap_or_else(|| own.clone())
    }

    /// The edition of a tenant's workflow with this number.
    pub(crate) fn edition(&self, tenant: TenantId, name: &Name, version: u32) -> Option<Arc<Workflow>> {
        let is_it =
            |known: &Arc<Workflow>| known.definition.name() == name && known.definition.version() == version;
        self.of(tenant).into_iter().find(is_it)
    }

    /// Everything that a tenant's runs may be pinned to, as far as it is known here.
    pub(crate) fn of(&self, tenant: TenantId) -> Vec<Arc<Workflow>> {
        let workflows = self.workflows.read().unwrap_or_else(PoisonError::into_inner);
        let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
        let learned = learned.get(&tenant).into_iter().flat_map(Learned::values);
        // What is learned and brought along is one.
        let learned = learned.filter(|known| !workflows.contains_key(&known.definition.hash()));
        workflows.values().chain(learned).cloned().collect()
    }

    /// The workflows that can be started by name, but for the engine's own.
    pub(crate) fn names(&self) -> Vec<Name> {
        let newest = self.newest.read().unwrap_or_else(PoisonError::into_inner);
        newest.keys().filter(|name| !name.starts_with(OWN)).cloned().collect()
    }

    /// The editions that new runs get of workflows that this program brings along and that something starts by itself.
    pub(crate) fn triggered(&self) -> Vec<Arc<Workflow>> {
        let newest: Vec<_> =
            self.newest.read().unwrap_or_else(PoisonError::into_inner).values().copied().collect();
        let known = newest.into_iter().filter_map(|hash| self.brought(hash));
        known.filter(|workflow| !workflow.definition.starters().is_empty()).collect()
    }

    /// A workflow that this program brings along is started by the clock.
    pub(crate) fn has_schedules(&self) -> bool {
        let by_clock = |workflow: &Arc<Workflow>| {
            workflow.definition.starters().iter().any(|starter| matches!(starter.on, StartOn::Schedule(_)))
        };
        self.triggered().iter().any(by_clock)
    }

    /// Where in the input of an action secrets may stand.
    pub(crate) fn secret_fields(&self, action: &Name) -> &[String] {
        let said = self.secret_fields.get(action).map(Vec::as_slice);
        let described = || self.described.get(action).map(|info| info.secret_fields.as_slice());
        said.or_else(described).unwrap_or_default()
    }

    /// What a workflow needs and this process does not have.
    pub(crate) fn lacks<'a>(&self, workflow: &'a Workflow) -> &'a Lacks {
        workflow.lacks.get_or_init(|| self.lacking(&workflow.definition))
    }

    fn lacking(&self, definition: &Definition) -> Lacks {
        let calls = definition.spec().transitions.iter().filter_map(|transition| transition.action.as_ref());
        let is_own = definition.name().starts_with(OWN);
        // The engine's own actions do only what its own workflows ask for.
        let is_known = |name: &Name| self.actions.contains_key(name) && (is_own || !name.starts_with(OWN));
        let unknown = calls.filter(|call| !is_known(&call.name));
        let mut actions: Vec<_> = unknown.map(|call| (call.name.clone(), call.version)).collect();
        actions.sort();
        actions.dedup();
        let has_guards = definition.named_guards().into_iter().all(|name| self.guards.contains_key(name));
        Lacks { actions, others: !has_guards || !self.other_editions(definition).is_empty() }
    }

    /// What is known to be wrong with the calls of a definition that was written as a document.
    pub(crate) fn miscalls(&self, definition: &Definition) -> Option<String> {
        let triggers = crate::schedule::check_triggers(definition);
        if !triggers.is_empty() {
            let wrong: Vec<_> = triggers.into_iter().map(|(_, why)| why).collect();
            return Some(format!("workflow `{}`: {}", definition.name(), wrong.join("; ")));
        }
        definition.spec().document.as_ref()?;
        let known: Vec<_> = self.described.values().cloned().collect();
        let wrong = crate::fit::check_calls(definition, &known);
        let mut wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
        wrong.extend(self.misplaced_secrets(definition));
        (!wrong.is_empty()).then(|| format!("workflow `{}`: {}", definition.name(), wrong.join("; ")))
    }

    /// Secrets that stand where an action of this program's does not take them, as far as it does not describe itself.
    fn misplaced_secrets(&self, definition: &Definition) -> Vec<String> {
        let mut wrong = Vec::new();
        for transition in &definition.spec().transitions {
            let Some(call) = &transition.action else { continue };
            if self.described.contains_key(&call.name) || !self.actions.contains_key(&call.name) {
                continue;
            }
            let fields = self.secret_fields(&call.name);
            for (pointer, secret) in crate::secrets::found(&call.input) {
                if let Err(why) = crate::secrets::admitted(&call.name, fields, &pointer) {
                    wrong.push(format!("step `{}`: secret `{secret}`: {why}", transition.id));
                }
            }
        }
        wrong
    }

    /// What a definition needs and neither this process has nor workers elsewhere do.
    pub(crate) fn missing(
        &self,
        definition: &Definition,
        is_elsewhere: impl Fn(&Name, Option<u32>) -> bool,
    ) -> Vec<String> {
        let actions = self.lacking(definition).actions.into_iter();
        let actions = actions.filter(|(name, version)| !is_elsewhere(name, *version));
        let mut actions: Vec<_> = actions.map(|(name, _)| format!("action `{name}`")).collect();
        actions.dedup();
        let guards = definition.named_guards().into_iter().filter(|name| !self.guards.contains_key(*name));
        let others = self.other_editions(definition);
        actions.into_iter().chain(others).chain(guards.map(|name| format!("guard `{name}`"))).collect()
    }

    /// The actions of which a definition needs another edition than this process has.
    fn other_editions(&self, definition: &Definition) -> BTreeSet<String> {
        let calls = definition.spec().transitions.iter().filter_map(|transition| transition.action.as_ref());
        calls
            .filter_map(|call| {
                let wanted = call.version?;
                let has = self.described.get(&call.name).map_or(1, |info| info.version);
                let other = self.actions.contains_key(&call.name) && has != wanted;
                other.then(|| format!("action `{}` in version {wanted} (there is version {has})", call.name))
            })
            .collect()
    }

    /// Asks the named guards that deciding this event needs.
    pub(crate) async fn answer(
        &self,
        workflow: &Workflow,
        snapshot: &Arc<Snapshot>,
        event: &Event,
    ) -> Result<Answers, DecideError> {
        let mut answers = Answers::none();
        if !workflow.asks {
            return Ok(answers);
        }
        for question in questions(&workflow.definition, snapshot, event) {
            let (Some(guard), Some(activation)) =
                (self.guards.get(&question.guard), snapshot.activation(question.activation))
            else {
                continue;
            };
            let payload = event.payload().clone();
            let input = GuardInput { snapshot: snapshot.clone(), activation: activation.clone(), payload };
            let guard = guard.clone();
            let asked = AssertUnwindSafe(async move { guard(input).await }).catch_unwind().await;
            match asked {
                Ok(says) => answers.put(question, says),
                Err(panic) => {
                    let why = format!("it panicked: {}", said(&*panic));
                    return Err(DecideError::GuardFailed { guard: question.guard, why });
                }
            }
        }
        Ok(answers)
    }
}
