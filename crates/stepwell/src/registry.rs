//! The registry of a process: definitions by hash, actions and guards by name.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use futures_util::future::FutureExt;
use serde_json::Value;
use stepwell_core::snapshot::Activation;
use stepwell_core::spec::{Place, TriggerKind};
use stepwell_core::{
    Answers, DecideError, Definition, DefinitionHash, Input, Name, Question, RunId, Snapshot, questions,
    questions_of_available,
};
use stepwell_store::{StoredDefinition, TenantId};

use crate::action::{ActionInfo, BoxAction};
use crate::actor::Actor;
use crate::error::EngineError;
use crate::host::BoxFuture;

/// Prefix of names that are reserved for the engine.
pub const OWN: &str = "stepwell.";

/// Returns the error for a start of one of the engine's own workflows.
pub(crate) fn reserved_workflow(name: &Name) -> EngineError {
    let instead = "put a schedule or emit an event instead";
    EngineError::Reserved { what: format!("workflow `{name}`"), instead }
}

/// Returns the error for a registered workflow whose name is reserved for the engine.
pub(crate) fn reserved_name(name: &Name) -> EngineError {
    let instead = "choose a name that does not begin with `stepwell.`";
    EngineError::Reserved { what: format!("workflow `{name}`"), instead }
}

/// Rejects an operation on a run of one of the engine's own workflows.
pub(crate) fn refuse_own(workflow: &Name, run: RunId) -> Result<(), EngineError> {
    if !workflow.starts_with(OWN) {
        return Ok(());
    }
    let instead =
        "put or remove the schedule, or cancel the bulk command; the run of an event can only be retried";
    Err(EngineError::Reserved { what: format!("run {run} of workflow `{workflow}`"), instead })
}

/// The input of a named guard.
#[derive(Debug, Clone)]
pub struct GuardInput {
    /// The current state of the run.
    pub snapshot: Arc<Snapshot>,
    /// The activation that the transition would move.
    pub activation: Activation,
    /// The payload of the signal, timer or other input being decided.
    pub payload: Value,
}

pub(crate) type BoxGuard = Arc<dyn Fn(GuardInput) -> BoxFuture<bool> + Send + Sync>;

/// A definition that this process knows.
pub(crate) struct Workflow {
    pub(crate) definition: Definition,
    pub(crate) stored: StoredDefinition,
    /// The definition uses named guards.
    has_named_guards: bool,
    /// The definition has signals or places that wait for input from outside.
    pub(crate) has_waits: bool,
    /// The definition has places that wait for events.
    pub(crate) has_events: bool,
    /// One flag per shadow column: a value of the wrong type has been logged.
    pub(crate) warned: Box<[AtomicBool]>,
    /// The publisher; `None` if the embedding program registered it. The publisher's permissions apply to what its
    /// runs do.
    publisher: OnceLock<Option<Arc<Actor>>>,
    /// The missing parts, computed on first use.
    missing_parts: OnceLock<MissingParts>,
}

/// The parts that a definition needs and this process does not have.
#[derive(Debug, Default)]
pub(crate) struct MissingParts {
    /// Actions that are not registered here, each with the requested version. Remote workers may execute them.
    pub(crate) actions: Vec<(Name, Option<u32>)>,
    /// Something is missing that remote workers cannot provide: a guard, or another version of a registered action.
    pub(crate) others: bool,
}

impl MissingParts {
    /// Returns true if remote workers may provide everything that is missing.
    pub(crate) fn only_actions(&self) -> bool {
        !self.others && !self.actions.is_empty()
    }
}

impl Workflow {
    fn new(definition: Definition) -> Self {
        let stored = stored_definition(&definition, None);
        let has_named_guards = !definition.named_guards().is_empty();
        let spec = definition.spec();
        let waits = |place: &Place| matches!(place, Place::Wait(_));
        let has_waits = !spec.signals.is_empty() || spec.places.values().any(waits);
        let has_events =
            spec.places.values().any(|place| matches!(place, Place::Wait(wait) if wait.event.is_some()));
        let warned = definition.shadows().iter().map(|_| AtomicBool::new(false)).collect();
        Workflow {
            definition,
            stored,
            has_named_guards,
            has_waits,
            has_events,
            warned,
            publisher: OnceLock::new(),
            missing_parts: OnceLock::new(),
        }
    }

    pub(crate) fn publisher(&self) -> Option<&Actor> {
        self.publisher.get()?.as_deref()
    }

    /// Returns the definition as stored, with its publisher.
    pub(crate) fn kept(&self) -> StoredDefinition {
        StoredDefinition { publisher: written(self.publisher()), ..self.stored.clone() }
    }

    /// Sets the publisher that the store has recorded. An unreadable publisher gets no permissions.
    pub(crate) fn set_stored_publisher(&self, publisher: Option<&str>) {
        let unreadable = || Actor::new("unreadable", []);
        let actor = publisher.map(|text| serde_json::from_str(text).unwrap_or_else(|_| unreadable()));
        self.set_publisher(actor.map(Arc::new));
    }

    /// Sets the publisher, unless one is already set.
    pub(crate) fn set_publisher(&self, actor: Option<Arc<Actor>>) {
        let _ = self.publisher.set(actor);
    }
}

/// Returns a definition in its stored form, with this publisher.
pub(crate) fn stored_definition(definition: &Definition, publisher: Option<&Actor>) -> StoredDefinition {
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

/// Returns the message of a panic.
pub(crate) fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// The definitions that one tenant's runs are pinned to.
type Learned = BTreeMap<DefinitionHash, Arc<Workflow>>;

/// The definitions, actions and guards of a process.
#[derive(Default)]
pub(crate) struct Registry {
    /// Definitions registered by this program, for all tenants.
    workflows: RwLock<BTreeMap<DefinitionHash, Arc<Workflow>>>,
    /// Definitions loaded from the store, by tenant. Each tenant has a separate entry, because the publisher may
    /// differ.
    learned: RwLock<BTreeMap<TenantId, Learned>>,
    /// The version that a start by name uses.
    newest: RwLock<BTreeMap<Name, DefinitionHash>>,
    /// At least one definition has shadow columns.
    has_shadows: AtomicBool,
    /// Incremented whenever the declared shadow columns may have changed.
    shadow_revision: AtomicU64,
    pub(crate) actions: BTreeMap<Name, BoxAction>,
    pub(crate) guards: BTreeMap<Name, BoxGuard>,
    /// The source of secrets.
    pub(crate) secrets: Option<Arc<dyn crate::secrets::Secrets>>,
    /// JSON pointers to input fields that must be lists, by action.
    pub(crate) lists: BTreeMap<Name, Vec<String>>,
    /// Descriptions of registered actions.
    pub(crate) described: BTreeMap<Name, ActionInfo>,
    /// JSON pointers to input fields where secrets are allowed, by action.
    pub(crate) secret_fields: BTreeMap<Name, Vec<String>>,
    /// Event types described by this program.
    pub(crate) events: BTreeMap<Name, crate::events::EventType>,
}

impl Registry {
    /// Registers a definition. Starts by name use it unless a higher version is registered.
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
            .and_then(|hash| self.registered(*hash))
            .is_none_or(|known| known.definition.version() <= definition.version());
        if older {
            newest.insert(definition.name().clone(), definition.hash());
        }
        drop(newest);
        self.shadow_revision.fetch_add(1, Ordering::Release);
        workflow
    }

    /// Adds a definition for the runs of a tenant that are pinned to it. New runs use it only if the tenant's
    /// catalogue selects it.
    pub(crate) fn learn(&self, tenant: TenantId, definition: Definition) -> Arc<Workflow> {
        if !definition.shadows().is_empty() {
            self.has_shadows.store(true, Ordering::Relaxed);
        }
        let mut learned = self.learned.write().unwrap_or_else(PoisonError::into_inner);
        let entry = learned.entry(tenant).or_default().entry(definition.hash());
        entry
            .or_insert_with(|| {
                if !definition.shadows().is_empty() {
                    self.shadow_revision.fetch_add(1, Ordering::Release);
                }
                Arc::new(Workflow::new(definition))
            })
            .clone()
    }

    /// Returns a definition that was loaded for any tenant. Definitions with the same hash are equal and need not be
    /// built again.
    pub(crate) fn built(&self, hash: DefinitionHash) -> Option<Definition> {
        let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
        learned.values().find_map(|known| known.get(&hash)).map(|workflow| workflow.definition.clone())
    }

    /// Returns a counter that changes whenever the declared shadow columns may have changed.
    pub(crate) fn shadow_revision(&self) -> u64 {
        self.shadow_revision.load(Ordering::Acquire)
    }

    /// Returns true if at least one definition that this process knows has shadow columns.
    pub(crate) fn has_shadows(&self) -> bool {
        self.has_shadows.load(Ordering::Relaxed)
    }

    /// Returns true if this program has registered the definition with this hash.
    pub(crate) fn is_registered(&self, hash: DefinitionHash) -> bool {
        self.registered(hash).is_some()
    }

    /// Returns the definition with this hash, as visible to a tenant's runs.
    pub(crate) fn by_hash(&self, tenant: TenantId, hash: DefinitionHash) -> Option<Arc<Workflow>> {
        self.registered(hash).or_else(|| {
            let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
            learned.get(&tenant)?.get(&hash).cloned()
        })
    }

    /// Returns a definition registered by this program.
    fn registered(&self, hash: DefinitionHash) -> Option<Arc<Workflow>> {
        self.workflows.read().unwrap_or_else(PoisonError::into_inner).get(&hash).cloned()
    }

    /// Returns the definition for a start by name, if the tenant's catalogue does not contain the name.
    pub(crate) fn by_name(&self, name: &str) -> Option<Arc<Workflow>> {
        let hash = *self.newest.read().unwrap_or_else(PoisonError::into_inner).get(name)?;
        self.registered(hash)
    }

    /// Returns the version that declares the shadow columns of a run, if the tenant's catalogue does not contain the
    /// workflow: the version for new runs, unless the run's own is higher.
    pub(crate) fn declaring(&self, own: &Arc<Workflow>) -> Arc<Workflow> {
        let newest = self.by_name(own.definition.name());
        let newest = newest.filter(|newest| newest.definition.version() >= own.definition.version());
        newest.unwrap_or_else(|| own.clone())
    }

    /// Returns a version of a tenant's workflow.
    pub(crate) fn workflow_version(
        &self,
        tenant: TenantId,
        name: &Name,
        version: u32,
    ) -> Option<Arc<Workflow>> {
        let is_it =
            |known: &Arc<Workflow>| known.definition.name() == name && known.definition.version() == version;
        self.of(tenant).into_iter().find(is_it)
    }

    /// Returns all known definitions that a tenant's runs may be pinned to.
    pub(crate) fn of(&self, tenant: TenantId) -> Vec<Arc<Workflow>> {
        let workflows = self.workflows.read().unwrap_or_else(PoisonError::into_inner);
        let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
        let learned = learned.get(&tenant).into_iter().flat_map(Learned::values);
        // A definition may be both loaded and registered: return it once.
        let learned = learned.filter(|known| !workflows.contains_key(&known.definition.hash()));
        workflows.values().chain(learned).cloned().collect()
    }

    /// Returns the names of the workflows that can be started, without the engine's own.
    pub(crate) fn names(&self) -> Vec<Name> {
        let newest = self.newest.read().unwrap_or_else(PoisonError::into_inner);
        newest.keys().filter(|name| !name.starts_with(OWN)).cloned().collect()
    }

    /// Returns the newest versions of the workflows registered by this program that have triggers.
    pub(crate) fn triggered(&self) -> Vec<Arc<Workflow>> {
        let newest: Vec<_> =
            self.newest.read().unwrap_or_else(PoisonError::into_inner).values().copied().collect();
        let known = newest.into_iter().filter_map(|hash| self.registered(hash));
        known.filter(|workflow| !workflow.definition.triggers().is_empty()).collect()
    }

    /// Returns true if a workflow registered by this program has a schedule trigger.
    pub(crate) fn has_schedules(&self) -> bool {
        let by_clock = |workflow: &Arc<Workflow>| {
            workflow
                .definition
                .triggers()
                .iter()
                .any(|trigger| matches!(trigger.on, TriggerKind::Schedule(_)))
        };
        self.triggered().iter().any(by_clock)
    }

    /// Returns the JSON pointers where secrets are allowed in the input of an action.
    pub(crate) fn secret_fields(&self, action: &Name) -> &[String] {
        let said = self.secret_fields.get(action).map(Vec::as_slice);
        let described = || self.described.get(action).map(|info| info.secret_fields.as_slice());
        said.or_else(described).unwrap_or_default()
    }

    /// Returns the parts that a workflow needs and this process does not have.
    pub(crate) fn missing_parts<'a>(&self, workflow: &'a Workflow) -> &'a MissingParts {
        workflow.missing_parts.get_or_init(|| self.find_missing_parts(&workflow.definition))
    }

    fn find_missing_parts(&self, definition: &Definition) -> MissingParts {
        let calls = definition.spec().transitions.iter().filter_map(|transition| transition.action.as_ref());
        let is_own = definition.name().starts_with(OWN);
        // Only the engine's own workflows may call the engine's own actions.
        let is_known = |name: &Name| self.actions.contains_key(name) && (is_own || !name.starts_with(OWN));
        let unknown = calls.filter(|call| !is_known(&call.name));
        let mut actions: Vec<_> = unknown.map(|call| (call.name.clone(), call.version)).collect();
        actions.sort();
        actions.dedup();
        let has_guards = definition.named_guards().into_iter().all(|name| self.guards.contains_key(name));
        MissingParts { actions, others: !has_guards || !self.other_versions(definition).is_empty() }
    }

    /// Returns the known problems in the calls and triggers of a definition, as one text. Calls are checked only for
    /// workflow documents.
    pub(crate) fn miscalls(&self, definition: &Definition) -> Option<String> {
        let triggers = crate::schedule::check_triggers(definition);
        if !triggers.is_empty() {
            let wrong: Vec<_> = triggers.into_iter().map(|(_, why)| why).collect();
            return Some(format!("workflow `{}`: {}", definition.name(), wrong.join("; ")));
        }
        definition.spec().document.as_ref()?;
        let known: Vec<_> = self.described.values().cloned().collect();
        let wrong = crate::call_check::check_calls(definition, &known);
        let mut wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
        wrong.extend(self.misplaced_secrets(definition));
        (!wrong.is_empty()).then(|| format!("workflow `{}`: {}", definition.name(), wrong.join("; ")))
    }

    /// Returns secrets at places where an action does not allow them. Covers registered actions without a description.
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

    /// Returns the parts that a definition needs and that neither this process nor a remote worker provides.
    pub(crate) fn missing(
        &self,
        definition: &Definition,
        is_elsewhere: impl Fn(&Name, Option<u32>) -> bool,
    ) -> Vec<String> {
        let actions = self.find_missing_parts(definition).actions.into_iter();
        let actions = actions.filter(|(name, version)| !is_elsewhere(name, *version));
        let mut actions: Vec<_> = actions.map(|(name, _)| format!("action `{name}`")).collect();
        actions.dedup();
        let guards = definition.named_guards().into_iter().filter(|name| !self.guards.contains_key(*name));
        let others = self.other_versions(definition);
        actions.into_iter().chain(others).chain(guards.map(|name| format!("guard `{name}`"))).collect()
    }

    /// Returns the registered actions of which a definition needs another version.
    fn other_versions(&self, definition: &Definition) -> BTreeSet<String> {
        let calls = definition.spec().transitions.iter().filter_map(|transition| transition.action.as_ref());
        calls
            .filter_map(|call| {
                let wanted = call.version?;
                let has = self.described.get(&call.name).map_or(1, |info| info.version);
                let other = self.actions.contains_key(&call.name) && has != wanted;
                other.then(|| {
                    format!("action `{}` in version {wanted} (version {has} is registered)", call.name)
                })
            })
            .collect()
    }

    /// Evaluates the named guards that the decision on this input needs.
    pub(crate) async fn answer(
        &self,
        workflow: &Workflow,
        snapshot: &Arc<Snapshot>,
        event: &Input,
    ) -> Result<Answers, DecideError> {
        if !workflow.has_named_guards {
            return Ok(Answers::none());
        }
        let questions = questions(&workflow.definition, snapshot, event);
        self.answer_all(snapshot, questions, event.payload()).await
    }

    /// Evaluates the named guards of every transition that leaves a place of the run. Their payload is null.
    pub(crate) async fn answer_for_available(
        &self,
        workflow: &Workflow,
        snapshot: &Arc<Snapshot>,
    ) -> Result<Answers, DecideError> {
        let questions = questions_of_available(&workflow.definition, snapshot);
        self.answer_all(snapshot, questions, &Value::Null).await
    }

    async fn answer_all(
        &self,
        snapshot: &Arc<Snapshot>,
        questions: Vec<Question>,
        payload: &Value,
    ) -> Result<Answers, DecideError> {
        let mut answers = Answers::none();
        for question in questions {
            let (Some(guard), Some(activation)) =
                (self.guards.get(&question.guard), snapshot.activation(question.activation))
            else {
                continue;
            };
            let (activation, payload) = (activation.clone(), payload.clone());
            let input = GuardInput { snapshot: snapshot.clone(), activation, payload };
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
