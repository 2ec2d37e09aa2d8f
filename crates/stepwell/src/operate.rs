//! What an operator does to a run: each command is one audited commit, with the version they saw as its precondition.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stepwell_core::branch_off::branch_off;
use stepwell_core::migrate::{CannotMigrate, Mapping, migrate};
use stepwell_core::patch::Patch;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{Cause, Decision, Event, Name, RunId, Snapshot, dispatch};
use stepwell_store::{
    AuditRow, DocumentOp, DocumentQuery, DocumentWrite, HistoryQuery, KeyWrite, Lives, NewRun, Status,
    TenantScope,
};

use crate::actor::Permission;
use crate::engine::{Engine, Inner, Run, UnlessDropped};
use crate::error::EngineError;
use crate::ledger::{Ledger, Stopped, Tries};
use crate::lists;
use crate::look::Next;
use crate::once::Done;
use crate::registry::{Workflow, refuse_own};
use crate::room::Pass;
use crate::runner;
use crate::standing::{Along, Flying, Move, Standing};
use crate::turn::{By, MAX_TRIES, Turned, Turnless, open_waits_of};

/// What these are called in the audit trail and in records of keys.
const FORK: &str = "run.fork";
const MIGRATE: &str = "run.migrate";

/// Something an operator does to a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "command")]
pub enum Command {
    /// Runs the failed transition again at once, with its original payload.
    Retry,
    /// Gives the signal up whose transition failed.
    Dismiss,
    /// Ends the run and everything below it.
    Cancel,
    /// Puts the run aside: nothing happens to it until it is resumed.
    Suspend,
    /// Takes it up again.
    Resume,
    /// Changes its data: fields are put in, those that are null are taken out (RFC 7386).
    Patch {
        /// The fields.
        fields: Value,
    },
    /// Moves it, or one activation, to a place.
    Move {
        /// Only this activation; without it everything that is going on ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        activation: Option<ActivationId>,
        /// Where to.
        to: Name,
    },
}

impl Command {
    /// What whoever asks for it needs.
    fn permission(&self) -> Permission {
        match self {
            Command::Retry | Command::Dismiss | Command::Cancel | Command::Suspend | Command::Resume => {
                Permission::Manage
            }
            Command::Patch { .. } | Command::Move { .. } => Permission::Admin,
        }
    }

    /// What it is called in the audit trail and in records of keys.
    fn operation(&self) -> String {
        let word = match self {
            Command::Retry => "retry",
            Command::Dismiss => "dismiss",
            Command::Cancel => "cancel",
            Command::Suspend => "suspend",
            Command::Resume => "resume",
            Command::Patch { .. } => "patch",
            Command::Move { .. } => "move",
        };
        format!("run.{word}")
    }
}

/// Who does it, what they saw, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operator {
    /// Who.
    pub actor: Option<String>,
    /// The version they saw; if the run has moved since, nothing happens.
    pub seen: Option<u64>,
    /// Why, for the audit trail.
    pub reason: Option<String>,
    /// The same key is the same command, for the life of the run: it is done once, and comes to the same every time.
    pub key: Option<String>,
}

impl Operator {
    /// Somebody with a name.
    pub fn named(actor: impl Into<String>) -> Self {
        Operator { actor: Some(actor.into()), ..Operator::default() }
    }

    /// Only if the run is at this version.
    #[must_use]
    pub fn seen(mut self, version: u64) -> Self {
        self.seen = Some(version);
        self
    }

    /// The same key is the same command, for the life of the run.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The record that makes a command happen once. `of` is the run it lives with: the one that it makes, if it makes one.
    fn once(
        &self,
        run: RunId,
        operation: &str,
        asked: &Value,
        came_to: &impl Serialize,
        of: RunId,
    ) -> Option<KeyWrite> {
        let request = json!([asked, self.seen, self.reason]).to_string();
        Some(KeyWrite {
            operation: format!("{operation}:{run}"),
            key: self.key.clone()?,
            request: Sha256::digest(request.as_bytes()).into(),
            answer: serde_json::to_vec(came_to).expect("what a command comes to is plain data").into(),
            lives: Lives::WithRun(of),
        })
    }

    fn check(&self, standing: &Standing) -> Result<(), EngineError> {
        let actual = standing.snapshot.version();
        match self.seen {
            Some(seen) if seen != actual => {
                Err(EngineError::VersionMoved { run: standing.run(), seen, actual })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn audit(&self, run: RunId, operation: &str, detail: &Value) -> AuditRow {
        AuditRow {
            operation: operation.to_owned(),
            subject: run.to_string(),
            actor: self.actor.clone(),
            run: Some(run),
            detail: json!({"seen": self.seen, "reason": self.reason, "detail": detail}).to_string().into(),
        }
    }
}

/// What a migration would come to, or has come to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Migrated {
    /// The version before.
    pub version: u64,
    /// The places it was in.
    pub from: Vec<Name>,
    /// The places it is in.
    pub to: Vec<Name>,
    /// It was only tried out.
    pub is_dry: bool,
}

impl Engine {
    /// Does something to a run, as one audited commit.
    pub async fn operate(&self, run: RunId, command: Command, by: &Operator) -> Result<Run, EngineError> {
        Ok(self.operate_once(run, command, by).await?.came_to)
    }

    /// Does something to a run and says whether it was done now: the same key is the same command.
    pub async fn operate_once(
        &self,
        run: RunId,
        command: Command,
        by: &Operator,
    ) -> Result<Done<Run>, EngineError> {
        self.permit(command.permission())?;
        let done = self.inner.operate(self.scope, run, &command, &self.operator(by)).await?;
        Ok(done.map(|()| self.run(run)))
    }

    /// Ends a run and everything below it.
    pub async fn cancel(&self, run: RunId) -> Result<(), EngineError> {
        self.operate(run, Command::Cancel, &Operator::default()).await.map(drop)
    }

    /// Whoever asks is on record by their own name.
    pub(crate) fn operator(&self, by: &Operator) -> Operator {
        let actor = self.actor().map(|actor| actor.id.clone());
        Operator { actor: actor.or_else(|| by.actor.clone()), ..by.clone() }
    }

    /// Begins a new run with the state that a run had at a version, and the documents that were visible then.
    pub async fn fork(&self, run: RunId, version: u64, by: &Operator) -> Result<Run, EngineError> {
        Ok(self.fork_once(run, version, by).await?.came_to)
    }

    /// Begins a new run with the state that a run had at a version and says whether it is new: the same key gives the same
    /// run.
    pub async fn fork_once(&self, run: RunId, version: u64, by: &Operator) -> Result<Done<Run>, EngineError> {
        self.permit(Permission::Admin)?;
        let done = self.inner.fork(self.scope, run, version, &self.operator(by)).await?;
        Ok(done.map(|id| self.run(id)))
    }

    /// Moves a run to another edition of its workflow, which has to be registered. With `dry` it is only tried out.
    pub async fn migrate(
        &self,
        run: RunId,
        version: u32,
        mapping: &Mapping,
        by: &Operator,
        dry: bool,
    ) -> Result<Migrated, EngineError> {
        Ok(self.migrate_once(run, version, mapping, by, dry).await?.came_to)
    }

    /// Moves a run to another edition of its workflow and says whether that was done now: the same key is the same command.
    /// What is only tried out has no key.
    pub async fn migrate_once(
        &self,
        run: RunId,
        version: u32,
        mapping: &Mapping,
        by: &Operator,
        dry: bool,
    ) -> Result<Done<Migrated>, EngineError> {
        self.permit(Permission::Admin)?;
        let mut by = self.operator(by);
        by.key = by.key.filter(|_| !dry);
        self.inner.migrate(self.scope, run, version, mapping, &by, dry).await
    }
}

impl Inner {
    pub(crate) async fn operate(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        command: &Command,
        by: &Operator,
    ) -> Result<Done<()>, EngineError> {
        let asked = serde_json::to_value(command).expect("a command is plain data");
        let key = by.once(run, &command.operation(), &asked, &(), run);
        let tried = self.operate_now(scope, run, command, by, key.as_ref()).await;
        self.unless_done(scope, key.as_ref(), tried).await
    }

    async fn operate_now(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        command: &Command,
        by: &Operator,
        key: Option<&KeyWrite>,
    ) -> Result<(), EngineError> {
        for _ in 0..MAX_TRIES {
            let standing = match self.load(scope, run).await {
                Err(error) if matches!(command, Command::Cancel) => {
                    return self.cancel_unread(scope, run, by, key, error).await;
                }
                loaded => loaded?,
            };
            // What could not be delivered or fired may be tried again; nothing else is a caller's to decide.
            if !matches!(command, Command::Retry) {
                refuse_own(standing.definition().name(), run)?;
            }
            by.check(&standing)?;
            let mut next = self.commanded(&standing, command).await?;
            let detail = serde_json::to_value(command).expect("a command is plain data");
            next.along.audit.push(by.audit(run, &command.operation(), &detail));
            next.along.keys.extend(key.cloned());
            if next.ledger.stopped.is_none() {
                self.slots.clear(scope.run(run));
            }
            match self.anyone(scope, &standing, next).await {
                Ok(()) => return Ok(()),
                Err(Turnless::Moved) => {}
                Err(turnless) => return Err(turnless.into()),
            }
        }
        Err(EngineError::Contended { run, tries: MAX_TRIES })
    }

    /// Commits what anybody may decide, and goes on with the run if nobody else does.
    pub(crate) async fn anyone(
        self: &Arc<Self>,
        scope: TenantScope,
        standing: &Standing,
        next: Move,
    ) -> Result<(), Turnless> {
        let workflow = next.repin.as_ref().unwrap_or(&standing.workflow);
        let pass = if standing.head.owner.is_none() { self.pass_for(scope.tenant(), workflow) } else { None };
        let _under_way = self.under_way();
        let turned = self.turn_with(scope, standing, next, pass.as_ref()).await?;
        self.go_on(scope, turned, pass);
        Ok(())
    }

    /// Commits what anybody may decide; with room for it, this process becomes the owner if there is more to do.
    pub(crate) async fn turn_with(
        &self,
        scope: TenantScope,
        standing: &Standing,
        next: Move,
        pass: Option<&Pass>,
    ) -> Result<Turned, Turnless> {
        let by = By::Anyone(pass.map(|_| self.process()));
        let guard = pass.map(|_| self.unless_dropped());
        let turned = self.turn(scope, standing, next, &Flying::new(), by).await;
        guard.into_iter().for_each(UnlessDropped::done);
        self.tell_holder(scope.run(standing.run()));
        turned
    }

    async fn commanded(&self, standing: &Standing, command: &Command) -> Result<Move, EngineError> {
        let not_now = |why: &str| EngineError::NotNow {
            run: standing.run(),
            status: standing.head.status,
            why: why.to_owned(),
        };
        let ledger = standing.ledger.clone();
        if standing.snapshot.is_terminal() {
            return Err(not_now("it has ended, and nothing more can happen to it"));
        }
        match command {
            Command::Retry => retry(ledger, self.host.now())
                .ok_or_else(|| not_now("nothing of it has failed, so there is nothing to retry")),
            Command::Dismiss => dismiss(ledger),
            Command::Cancel => {
                let mut next = self.changed(standing, &Event::Cancelled).await?;
                next.ledger.cancel(standing.run());
                Ok(next)
            }
            Command::Suspend if standing.suspended => Err(not_now("it has been put aside already")),
            Command::Suspend => Ok(Move { suspend: Some(true), ..Move::note(ledger) }),
            Command::Resume if !standing.suspended => Err(not_now("only a suspended run can be resumed")),
            Command::Resume => Ok(Move { suspend: Some(false), ..Move::note(ledger) }),
            Command::Patch { fields } => {
                let mut after = standing.snapshot.context().clone();
                merge(&mut after, fields);
                let patch = Patch::between(standing.snapshot.context(), &after);
                self.changed(standing, &Event::Patched { patch }).await
            }
            Command::Move { activation, to } => {
                let event = Event::Moved { activation: *activation, to: to.clone() };
                let mut next = self.changed(standing, &event).await?;
                // Whoever moves a run on has dealt with what it stood still for.
                let failed = standing.ledger.stopped.as_ref().and_then(|stopped| stopped.activation);
                if failed.is_none_or(|failed| next.ledger.of(failed).is_none()) {
                    next.ledger.stopped = next
                        .change
                        .as_ref()
                        .and_then(|change| change.stopped.clone())
                        .map(|error| Stopped { at: self.host.now(), error, activation: None });
                    next.ledger.stands_for_another();
                }
                Ok(next)
            }
        }
    }

    async fn changed(&self, standing: &Standing, event: &Event) -> Result<Move, EngineError> {
        let answers = self.registry.answer(&standing.workflow, &standing.snapshot, event).await?;
        match dispatch(standing.definition(), &standing.snapshot, event, &answers, self.host.now())? {
            Decision::Change(change) => Ok(Move::change(change, standing)),
            Decision::Act(_) | Decision::Retry { .. } | Decision::Stop(_) => {
                Err(EngineError::Invalid("a command changes the run or nothing".to_owned()))
            }
        }
    }

    async fn fork(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        version: u64,
        by: &Operator,
    ) -> Result<Done<RunId>, EngineError> {
        let id = RunId::new(self.host.ids.next());
        let key = by.once(run, FORK, &json!(version), &id, id);
        let tried = self.fork_into(scope, run, version, id, by, key.as_ref()).await;
        self.unless_done(scope, key.as_ref(), tried.map(|()| id)).await
    }

    async fn fork_into(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        version: u64,
        id: RunId,
        by: &Operator,
        key: Option<&KeyWrite>,
    ) -> Result<(), EngineError> {
        let original = self.load(scope, run).await?;
        refuse_own(original.definition().name(), run)?;
        by.check(&original)?;
        let query = HistoryQuery { run, from: version, with_state: true, limit: 1 };
        let row = self.store.history(scope, query).await?.items.into_iter().next();
        let state = row.filter(|row| row.version == version).and_then(|row| row.state).ok_or_else(|| {
            EngineError::Invalid(format!(
                "run {run} has no checkpoint of version {version} any more, or not yet"
            ))
        })?;
        let workflow = self.edition_of(scope, &original, &state).await?;
        let mut was = Snapshot::restore(&workflow.definition, &state)?;
        self.put_lists(scope, run, &mut was).await?;
        let now = self.host.now();
        let change = branch_off(&workflow.definition, &was, id, now)
            .map_err(|error| EngineError::Invalid(error.to_string()))?;
        let first = self.checkpoint(&change.snapshot, &change.entry)?;
        let shadings = self.registry.shadings();
        let mut standing = Standing { workflow, ..original };
        standing.snapshot = Arc::new(change.snapshot);
        standing.ledger = Ledger::default();
        standing.inbox.clear();
        standing.suspended = false;
        standing.head.run = id;
        standing.parent = None;
        standing.root = id;
        let next = self.look(&standing, &Flying::new(), now).await;
        let (status, wake) = match &next {
            Next::Rest(rest) => (rest.status, rest.wake),
            _ => (Status::Running, Some(now)),
        };
        let mut along = Along { documents: self.copied(scope, run, version, id).await?, ..Along::default() };
        let copied: Vec<_> = along.documents.iter().map(|write| write.key.clone()).collect();
        let lists = lists::kept(id, None, &standing.snapshot);
        along.documents.extend(lists.into_iter().filter(|write| !copied.contains(&write.key)));
        along.create.push(NewRun {
            run: id,
            workflow: standing.definition().name().clone(),
            definition: standing.definition().hash(),
            version,
            first,
            status,
            wake,
            owner: None,
            parent: None,
            root: id,
            attempt: standing.ledger.write(),
            open: open_waits_of(standing.definition(), &standing.snapshot),
            shadows: self.shadows(&standing.workflow, None, standing.snapshot.context()),
        });
        along.definitions.push(standing.workflow.clone());
        along.audit.push(by.audit(run, FORK, &json!({"version": version, "into": id})));
        along.keys.extend(key.cloned());
        self.apply(scope, self.commit_of(scope, along, now)).await?;
        if self.registry.shadings() != shadings {
            self.catch_up(scope, vec![id]).await;
        }
        self.look_at(wake);
        Ok(())
    }

    /// The edition of the workflow that a checkpoint was made by; a run may have been migrated since.
    async fn edition_of(
        &self,
        scope: TenantScope,
        run: &Standing,
        state: &[u8],
    ) -> Result<Arc<Workflow>, EngineError> {
        let was: Snapshot = serde_json::from_slice(state)
            .map_err(|error| EngineError::Unreadable { run: run.run(), why: error.to_string() })?;
        let hash = was.definition_hash();
        if self.registry.by_hash(scope.tenant(), hash).is_none() {
            runner::learn(self, scope, hash).await?;
        }
        let unknown = || EngineError::UnknownDefinition { workflow: was.workflow().clone(), hash };
        self.registry.by_hash(scope.tenant(), hash).ok_or_else(unknown)
    }

    /// The documents that were visible at a version, for another run.
    async fn copied(
        &self,
        scope: TenantScope,
        run: RunId,
        version: u64,
        into: RunId,
    ) -> Result<Vec<DocumentWrite>, EngineError> {
        let (mut writes, mut cursor) = (Vec::new(), None);
        loop {
            let query = DocumentQuery {
                run,
                at: Some(version),
                key: None,
                kind: None,
                tag: None,
                limit: 200,
                cursor,
            };
            let page = self.store.documents(scope, query).await?;
            writes.extend(page.items.into_iter().map(|document| DocumentWrite {
                run: into,
                key: document.key,
                op: DocumentOp::Put { kind: document.kind, body: document.body, tags: document.tags },
            }));
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(writes),
            }
        }
    }

    async fn migrate(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        version: u32,
        mapping: &Mapping,
        by: &Operator,
        dry: bool,
    ) -> Result<Done<Migrated>, EngineError> {
        let asked = json!([version, mapping]);
        let tried = self.migrate_now(scope, run, version, mapping, by, dry).await;
        self.unless_done(scope, by.once(run, MIGRATE, &asked, &(), run).as_ref(), tried).await
    }

    async fn migrate_now(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        version: u32,
        mapping: &Mapping,
        by: &Operator,
        dry: bool,
    ) -> Result<Migrated, EngineError> {
        for _ in 0..MAX_TRIES {
            let standing = self.load(scope, run).await?;
            refuse_own(standing.definition().name(), run)?;
            by.check(&standing)?;
            let to = self.edition(scope, standing.definition().name(), version).await?;
            let now = self.host.now();
            let change = migrate(standing.definition(), &to.definition, &standing.snapshot, mapping, now)
                .map_err(|problems: CannotMigrate| EngineError::Invalid(problems.to_string()))?;
            let migrated = Migrated {
                version: standing.snapshot.version(),
                from: standing.snapshot.current_places(),
                to: change.snapshot.current_places(),
                is_dry: dry,
            };
            if dry {
                return Ok(migrated);
            }
            let stopped = change.stopped.clone();
            let mut next = Move::change(Box::new(change), &standing);
            if let Some(error) = stopped {
                next.ledger.stopped = Some(Stopped { at: now, error, activation: None });
            }
            let detail =
                json!({"from": standing.definition().hash(), "to": to.definition.hash(), "mapping": mapping});
            next.along.audit.push(by.audit(run, MIGRATE, &detail));
            next.along.keys.extend(by.once(run, MIGRATE, &json!([version, mapping]), &migrated, run));
            next.along.definitions.push(to.clone());
            next.repin = Some(to);
            // What it waits for may be something else: it asks again.
            next.ledger.asked.clear();
            // So may be what a worker elsewhere was given: whoever has it is told that it is gone.
            for tries in next.ledger.tries.iter_mut().filter(|tries| tries.posted.is_some()) {
                (tries.posted, tries.next, tries.by_hand) = (None, Some(now), true);
            }
            match self.anyone(scope, &standing, next).await {
                Ok(()) => return Ok(migrated),
                Err(Turnless::Moved) => {}
                Err(turnless) => return Err(turnless.into()),
            }
        }
        Err(EngineError::Contended { run, tries: MAX_TRIES })
    }

    /// A version of a workflow: one that was published, or one that this program has brought along.
    async fn edition(
        &self,
        scope: TenantScope,
        workflow: &Name,
        version: u32,
    ) -> Result<Arc<Workflow>, EngineError> {
        if let Some(published) = self.published_version(scope, workflow, version).await? {
            return Ok(published);
        }
        self.registry.edition(scope.tenant(), workflow, version).ok_or_else(|| {
            EngineError::Invalid(format!("no version {version} of workflow `{workflow}` is registered here"))
        })
    }
}

/// Runs what has failed again at once; `None` = nothing has.
fn retry(mut ledger: Ledger, now: stepwell_core::Timestamp) -> Option<Move> {
    let stopped = ledger.stopped.take();
    // What is due already may be running.
    let rests = |tries: &Tries| {
        tries.failed > 0 && tries.posted.is_none() && tries.next.is_none_or(|next| next > now)
    };
    if stopped.is_none() && !ledger.tries.iter().any(rests) {
        return None;
    }
    for tries in ledger.tries.iter_mut().filter(|tries| rests(tries)) {
        if tries.next.is_none() {
            ledger.deaths.remove(&tries.activation);
        }
        tries.next = Some(now);
        tries.by_hand = true;
        tries.retries = 0;
    }
    Some(Move::note(ledger))
}

/// Gives up the signal whose transition failed.
fn dismiss(mut ledger: Ledger) -> Result<Move, EngineError> {
    let failed = ledger.stopped.as_ref().and_then(|stopped| stopped.activation);
    let tries = failed.and_then(|activation| ledger.of(activation)).cloned();
    let Some(tries) = tries.filter(|tries| matches!(tries.cause, Cause::Signal(_))) else {
        return Err(EngineError::Invalid(
            "only a signal whose transition has failed can be dismissed: retry, move or cancel the run"
                .to_owned(),
        ));
    };
    ledger.tries.retain(|other| other.activation != tries.activation);
    ledger.stopped = None;
    ledger.stands_for_another();
    Ok(Move::note(ledger).taking(tries.message))
}

/// Puts fields into a document; null takes one out (RFC 7386).
fn merge(document: &mut Value, fields: &Value) {
    let Value::Object(fields) = fields else {
        *document = fields.clone();
        return;
    };
    if !document.is_object() {
        *document = json!({});
    }
    let Value::Object(known) = document else { return };
    for (key, value) in fields {
        if value.is_null() {
            known.remove(key);
        } else {
            merge(known.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
