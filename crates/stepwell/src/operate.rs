//! Operator commands on runs. Each command is one audited commit and can require the version that the operator has
//! seen.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stepwell_core::fork_run::fork_run;
use stepwell_core::migrate::{Mapping, MigrationError, migrate};
use stepwell_core::patch::Patch;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{Cause, Decision, Input, Name, RunId, Snapshot, Timestamp, dispatch};
use stepwell_store::{
    AuditRow, DocumentOp, DocumentQuery, DocumentWrite, HistoryQuery, KeyLifetime, KeyWrite, NewRun, Status,
    TenantScope,
};

use crate::actor::Permission;
use crate::admission::{self, queue::with_queue};
use crate::bulk::BulkPart;
use crate::commit_cycle::{CommitFailure, CommittedBy, CycleResult, MAX_ATTEMPTS, open_waits_of};
use crate::concurrency::Permit;
use crate::engine::{Engine, Inner, OwnershipGuard, Run};
use crate::error::EngineError;
use crate::idempotent::Idempotent;
use crate::ledger::{Attempts, Ledger, Stopped};
use crate::lists;
use crate::loaded_run::{CommitExtras, InFlightActions, LoadedRun, PendingCommit};
use crate::planner::NextStep;
use crate::registry::{Workflow, refuse_own};
use crate::runner;

/// Names of these operations in the audit trail and in records of idempotency keys.
const FORK: &str = "run.fork";
const MIGRATE: &str = "run.migrate";

/// An operator command on a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "command")]
pub enum Command {
    /// Runs the failed transition again at once, with its original payload.
    Retry,
    /// Discards the signal whose transition failed.
    Dismiss,
    /// Cancels the run and all its descendants.
    Cancel,
    /// Suspends the run: nothing happens to it until it is resumed.
    Suspend,
    /// Resumes a suspended run.
    Resume,
    /// Changes the run's data by a JSON merge patch (RFC 7386).
    Patch {
        /// The patch: fields to set; null removes a field.
        fields: Value,
    },
    /// Moves the run, or one activation, to a place.
    Move {
        /// The activation to move. Default: the whole run, which ends all its activations.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        activation: Option<ActivationId>,
        /// The place to move to.
        to: Name,
    },
}

impl Command {
    /// Returns the permission that the caller needs.
    fn permission(&self) -> Permission {
        match self {
            Command::Retry | Command::Dismiss | Command::Cancel | Command::Suspend | Command::Resume => {
                Permission::Manage
            }
            Command::Patch { .. } | Command::Move { .. } => Permission::Admin,
        }
    }

    /// Returns the name of the operation in the audit trail and in records of idempotency keys.
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

    /// Returns the command for the audit trail, which outlives the run. So it names patched fields without their values.
    fn audit_detail(&self) -> Value {
        let mut detail = serde_json::to_value(self).expect("a command is plain data");
        if let Command::Patch { fields } = self {
            let mut names = Vec::new();
            patched(fields, "", &mut names);
            detail["fields"] = names.into();
        }
        detail
    }
}

/// Maximum number of patched fields that an audit row names.
const FIELDS_NAMED: usize = 100;

/// Adds the JSON pointers of the values that a merge patch sets or removes.
fn patched(fields: &Value, pointer: &str, found: &mut Vec<String>) {
    match fields.as_object().filter(|fields| !fields.is_empty()) {
        _ if found.len() == FIELDS_NAMED => {}
        Some(fields) => fields.iter().for_each(|(name, value)| {
            let name = name.replace('~', "~0").replace('/', "~1");
            patched(value, &format!("{pointer}/{name}"), found);
        }),
        None => found.push(pointer.to_owned()),
    }
}

/// Returns the mapping of a migration for the audit trail, which outlives the run: new data is named by its fields only.
fn mapping_detail(mapping: &Mapping) -> Value {
    let mut detail = json!(mapping);
    if let Some(context) = &mapping.context {
        let mut names = Vec::new();
        patched(context, "", &mut names);
        detail["context"] = names.into();
    }
    detail
}

/// The author of a command, with preconditions and reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operator {
    /// The id of the author, for the audit trail.
    pub actor: Option<String>,
    /// The version that the author has seen. The command fails if the run has another version.
    pub seen: Option<u64>,
    /// The reason, for the audit trail.
    pub reason: Option<String>,
    /// Idempotency key, valid for the life of the run. A repeated command with the same key returns the first result.
    pub key: Option<String>,
    /// The bulk command that this command is a part of. Its record takes the place of the idempotency key.
    pub bulk: Option<BulkPart>,
}

impl Operator {
    /// Creates an operator with this id.
    pub fn named(actor: impl Into<String>) -> Self {
        Operator { actor: Some(actor.into()), ..Operator::default() }
    }

    /// Requires that the run is at this version.
    #[must_use]
    pub fn seen(mut self, version: u64) -> Self {
        self.seen = Some(version);
        self
    }

    /// Sets the idempotency key, which is valid for the life of the run.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Returns the idempotency record of a command. It is deleted with run `of`, which is the new run if the command
    /// creates one.
    fn idempotency_record(
        &self,
        run: RunId,
        operation: &str,
        asked: &Value,
        value: &impl Serialize,
        of: RunId,
    ) -> Option<KeyWrite> {
        let answer = serde_json::to_vec(value).expect("what a command comes to is plain data").into();
        if let Some(bulk) = &self.bulk {
            return Some(bulk.record(run, answer));
        }
        let request = json!([asked, self.seen, self.reason]).to_string();
        Some(KeyWrite {
            operation: format!("{operation}:{run}"),
            key: self.key.clone()?,
            request: Sha256::digest(request.as_bytes()).into(),
            answer,
            lifetime: KeyLifetime::WithRun(of),
        })
    }

    /// Returns the record of a command that is a part of a bulk command and has no result.
    pub(crate) fn bulk_record(&self, run: RunId) -> Option<KeyWrite> {
        Some(self.bulk?.record(run, "null".into()))
    }

    fn check(&self, loaded_run: &LoadedRun) -> Result<(), EngineError> {
        let actual = loaded_run.snapshot.version();
        match self.seen {
            Some(seen) if seen != actual => {
                Err(EngineError::VersionMoved { run: loaded_run.run(), seen, actual })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn audit(&self, run: RunId, operation: &str, detail: &Value) -> AuditRow {
        let mut all = json!({"seen": self.seen, "reason": self.reason, "detail": detail});
        if let Some(bulk) = &self.bulk {
            all["bulk"] = bulk.id().to_string().into();
        }
        AuditRow {
            operation: operation.to_owned(),
            subject: run.to_string(),
            actor: self.actor.clone(),
            run: Some(run),
            detail: all.to_string().into(),
        }
    }
}

/// The result of a migration or of a dry run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Migrated {
    /// Version of the run before the migration.
    pub version: u64,
    /// Places before the migration.
    pub from: Vec<Name>,
    /// Places after the migration.
    pub to: Vec<Name>,
    /// True for a dry run: nothing was changed.
    pub is_dry: bool,
}

impl Engine {
    /// Executes a command on a run, as one audited commit.
    pub async fn operate(&self, run: RunId, command: Command, by: &Operator) -> Result<Run, EngineError> {
        Ok(self.operate_once(run, command, by).await?.value)
    }

    /// Executes a command on a run and reports whether it was executed now. The same idempotency key returns the first
    /// result.
    pub async fn operate_once(
        &self,
        run: RunId,
        command: Command,
        by: &Operator,
    ) -> Result<Idempotent<Run>, EngineError> {
        self.permit(command.permission())?;
        let done = self.inner.operate(self.scope, run, &command, &self.operator(by)).await?;
        Ok(done.map(|()| self.run(run)))
    }

    /// Cancels a run and all its descendants.
    pub async fn cancel(&self, run: RunId) -> Result<(), EngineError> {
        self.operate(run, Command::Cancel, &Operator::default()).await.map(drop)
    }

    /// Replaces the author by the authenticated caller, if there is one.
    pub(crate) fn operator(&self, by: &Operator) -> Operator {
        let actor = self.actor().map(|actor| actor.id.clone());
        Operator { actor: actor.or_else(|| by.actor.clone()), ..by.clone() }
    }

    /// Starts a new run from the state of a run at a version, with the documents that were visible at that version.
    pub async fn fork(&self, run: RunId, version: u64, by: &Operator) -> Result<Run, EngineError> {
        Ok(self.fork_once(run, version, by).await?.value)
    }

    /// Forks a run like [`fork`](Self::fork) and reports whether the new run was created now. The same idempotency key
    /// returns the same run.
    pub async fn fork_once(
        &self,
        run: RunId,
        version: u64,
        by: &Operator,
    ) -> Result<Idempotent<Run>, EngineError> {
        self.permit(Permission::Admin)?;
        let done = self.inner.fork(self.scope, run, version, &self.operator(by)).await?;
        Ok(done.map(|id| self.run(id)))
    }

    /// Migrates a run to another version of its workflow, which must be registered. With `dry` nothing is changed.
    pub async fn migrate(
        &self,
        run: RunId,
        version: u32,
        mapping: &Mapping,
        by: &Operator,
        dry: bool,
    ) -> Result<Migrated, EngineError> {
        Ok(self.migrate_once(run, version, mapping, by, dry).await?.value)
    }

    /// Migrates a run and reports whether it was done now. The same idempotency key returns the first result. A dry
    /// run ignores the key.
    pub async fn migrate_once(
        &self,
        run: RunId,
        version: u32,
        mapping: &Mapping,
        by: &Operator,
        dry: bool,
    ) -> Result<Idempotent<Migrated>, EngineError> {
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
    ) -> Result<Idempotent<()>, EngineError> {
        let asked = serde_json::to_value(command).expect("a command is plain data");
        let key = by.idempotency_record(run, &command.operation(), &asked, &(), run);
        let tried = self.operate_now(scope, run, command, by, key.as_ref()).await;
        self.or_recorded(scope, key.as_ref(), tried).await
    }

    /// Returns the refusal that a command would get now. Nothing is stored.
    pub(crate) async fn check_command(
        &self,
        scope: TenantScope,
        run: RunId,
        command: &Command,
    ) -> Result<(), EngineError> {
        let loaded_run = match self.load(scope, run).await {
            Err(error) if matches!(command, Command::Cancel) && error.is_unreadable_state() => {
                return Ok(());
            }
            loaded => loaded?,
        };
        if !matches!(command, Command::Retry) {
            refuse_own(loaded_run.definition().name(), run)?;
        }
        self.plan_command(&loaded_run, command).await.map(drop)
    }

    async fn operate_now(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        command: &Command,
        by: &Operator,
        key: Option<&KeyWrite>,
    ) -> Result<(), EngineError> {
        for _ in 0..MAX_ATTEMPTS {
            let loaded_run = match self.load(scope, run).await {
                Err(error) if matches!(command, Command::Cancel) => {
                    return self.cancel_unreadable(scope, run, by, key, error).await;
                }
                loaded => loaded?,
            };
            // A failed delivery or firing may be retried. Callers may do nothing else with the engine's own runs.
            if !matches!(command, Command::Retry) {
                refuse_own(loaded_run.definition().name(), run)?;
            }
            by.check(&loaded_run)?;
            let mut next = self.plan_command(&loaded_run, command).await?;
            next.is_command = true;
            if let Some(change) = &mut next.change {
                change.entry.actor.clone_from(&by.actor);
            }
            next.extras.audit.push(by.audit(run, &command.operation(), &command.audit_detail()));
            next.extras.keys.extend(key.cloned());
            if next.ledger.stopped.is_none() {
                self.slots.clear(scope.run(run));
            }
            match self.commit_and_drive(scope, &loaded_run, next).await {
                Ok(()) => return Ok(()),
                Err(CommitFailure::Moved) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(EngineError::Contended { run, attempts: MAX_ATTEMPTS })
    }

    /// Commits a change that any process may make, and drives the run here if it has no owner and a permit is free.
    pub(crate) async fn commit_and_drive(
        self: &Arc<Self>,
        scope: TenantScope,
        loaded_run: &LoadedRun,
        next: PendingCommit,
    ) -> Result<(), CommitFailure> {
        let workflow = next.repin.as_ref().unwrap_or(&loaded_run.workflow);
        let permit = if loaded_run.head.owner.is_none() {
            self.try_acquire_permit(scope.tenant(), workflow)
        } else {
            None
        };
        let _under_way = self.under_way();
        let cycle = self.commit_with_permit(scope, loaded_run, next, permit.as_ref()).await?;
        self.drive_or_schedule(scope, cycle, permit);
        Ok(())
    }

    /// Commits a change that any process may make. With a permit this process becomes the owner if there is more to
    /// do.
    pub(crate) async fn commit_with_permit(
        &self,
        scope: TenantScope,
        loaded_run: &LoadedRun,
        next: PendingCommit,
        permit: Option<&Permit>,
    ) -> Result<CycleResult, CommitFailure> {
        let by = CommittedBy::Anyone(permit.map(|_| self.process()));
        let guard = permit.map(|_| self.ownership_guard());
        let cycle = self.commit_cycle(scope, loaded_run, next, &InFlightActions::new(), by).await;
        guard.into_iter().for_each(OwnershipGuard::done);
        self.notify_driver(scope.run(loaded_run.run()));
        cycle
    }

    async fn plan_command(
        &self,
        loaded_run: &LoadedRun,
        command: &Command,
    ) -> Result<PendingCommit, EngineError> {
        let wrong_status = |why: &str| EngineError::WrongStatus {
            run: loaded_run.run(),
            status: loaded_run.head.status,
            why: why.to_owned(),
        };
        let ledger = loaded_run.ledger.clone();
        if loaded_run.snapshot.is_terminal() {
            return Err(wrong_status("it has ended and accepts no more commands"));
        }
        match command {
            Command::Retry => retry(ledger, self.host.now())
                .ok_or_else(|| wrong_status("nothing has failed, so there is nothing to retry")),
            Command::Dismiss => dismiss(ledger),
            Command::Cancel => {
                let mut next = self.plan_change(loaded_run, &Input::Cancelled).await?;
                next.ledger.cancel(loaded_run.run());
                Ok(next)
            }
            Command::Suspend if loaded_run.suspended => Err(wrong_status("it is already suspended")),
            Command::Suspend => Ok(PendingCommit { suspend: Some(true), ..PendingCommit::note(ledger) }),
            Command::Resume if !loaded_run.suspended => {
                Err(wrong_status("only a suspended run can be resumed"))
            }
            Command::Resume => Ok(PendingCommit { suspend: Some(false), ..PendingCommit::note(ledger) }),
            Command::Patch { fields } => {
                let mut after = loaded_run.snapshot.context().clone();
                merge(&mut after, fields);
                let patch = Patch::between(loaded_run.snapshot.context(), &after);
                self.plan_change(loaded_run, &Input::Patched { patch }).await
            }
            Command::Move { activation, to } => {
                let event = Input::Moved { activation: *activation, to: to.clone() };
                let mut next = self.plan_change(loaded_run, &event).await?;
                // A manual move resolves the failure that stopped the run.
                let failed = loaded_run.ledger.stopped.as_ref().and_then(|stopped| stopped.activation);
                if failed.is_none_or(|failed| next.ledger.of(failed).is_none()) {
                    next.ledger.stopped = next
                        .change
                        .as_ref()
                        .and_then(|change| change.stopped.clone())
                        .map(|error| Stopped { at: self.host.now(), error, activation: None });
                    next.ledger.stop_for_next_failure();
                }
                Ok(next)
            }
        }
    }

    async fn plan_change(&self, loaded_run: &LoadedRun, event: &Input) -> Result<PendingCommit, EngineError> {
        let answers = self.registry.answer(&loaded_run.workflow, &loaded_run.snapshot, event).await?;
        match dispatch(loaded_run.definition(), &loaded_run.snapshot, event, &answers, self.host.now())? {
            Decision::Change(change) => Ok(PendingCommit::change(change, loaded_run)),
            Decision::Act(_) | Decision::Retry { .. } | Decision::Stop(_) => {
                Err(EngineError::Invalid("the command does not result in a change of the run".to_owned()))
            }
        }
    }

    async fn fork(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        version: u64,
        by: &Operator,
    ) -> Result<Idempotent<RunId>, EngineError> {
        let id = RunId::new(self.host.ids.next());
        let key = by.idempotency_record(run, FORK, &json!(version), &id, id);
        let tried = self.fork_into(scope, run, version, id, by, key.as_ref()).await;
        self.or_recorded(scope, key.as_ref(), tried.map(|()| id)).await
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
            EngineError::Invalid(format!("run {run} has no checkpoint of version {version}"))
        })?;
        let workflow = self.workflow_of_checkpoint(scope, &original, &state).await?;
        let mut was = Snapshot::restore(&workflow.definition, &state)?;
        self.put_lists(scope, run, &mut was).await?;
        let now = self.host.now();
        let change = fork_run(&workflow.definition, &was, id, now);
        let mut change = change.map_err(|error| EngineError::Invalid(error.to_string()))?;
        change.entry.actor.clone_from(&by.actor);
        let first = self.checkpoint(&change.snapshot, &change.entry)?;
        let shadow_revision = self.shadow_revision();
        let snapshot = Arc::new(change.snapshot);
        let mut loaded_run =
            LoadedRun { workflow, snapshot, suspended: false, parent: None, root: id, ..original };
        loaded_run.inbox.clear();
        loaded_run.head.run = id;
        loaded_run.ledger = self.ledger_of_fork(&loaded_run, now)?;
        let next = self.plan(&loaded_run, &InFlightActions::new(), now).await;
        let (status, wake) = match &next {
            NextStep::Sleep(rest) => (rest.status, rest.wake),
            _ => (Status::Running, Some(now)),
        };
        let documents = self.copied(scope, run, version, id).await?;
        let mut extras = CommitExtras { documents, ..CommitExtras::default() };
        let copied: Vec<_> = extras.documents.iter().map(|write| write.key.clone()).collect();
        let lists = lists::kept(id, None, &loaded_run.snapshot);
        extras.documents.extend(lists.into_iter().filter(|write| !copied.contains(&write.key)));
        extras.create.push(NewRun {
            run: id,
            workflow: loaded_run.definition().name().clone(),
            definition: loaded_run.definition().hash(),
            version,
            first,
            status,
            error: loaded_run.ledger.error_code(status),
            wake,
            owner: None,
            parent: None,
            root: id,
            ledger: loaded_run.ledger.write(),
            open: with_queue(&loaded_run, open_waits_of(loaded_run.definition(), &loaded_run.snapshot)),
            shadows: self.new_shadows(scope, &loaded_run).await,
        });
        extras.send.extend(admission::join(&loaded_run.workflow, &loaded_run.ledger, now));
        extras.definitions.push(loaded_run.workflow.clone());
        extras.audit.push(by.audit(run, FORK, &json!({"version": version, "into": id})));
        extras.keys.extend(key.cloned());
        self.apply(scope, self.commit_of(scope, extras, now)).await?;
        if self.shadow_revision() != shadow_revision {
            self.catch_up(scope, vec![id]).await;
        }
        self.wake_at(wake);
        Ok(())
    }

    /// Returns the ledger of a fork. The timeout of its workflow begins anew, and it joins the queue of a limit.
    fn ledger_of_fork(&self, fork: &LoadedRun, now: Timestamp) -> Result<Ledger, EngineError> {
        let admission = self.admission_of(&fork.workflow, &fork.snapshot, (now, now), true)?;
        let deadline = fork.definition().timeout_ms().map(|ms| now.plus_ms(ms));
        Ok(Ledger { admission, deadline, ..Ledger::default() })
    }

    /// Returns the workflow version that wrote a checkpoint. The run may have been migrated since.
    async fn workflow_of_checkpoint(
        &self,
        scope: TenantScope,
        run: &LoadedRun,
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

    /// Returns writes that copy the documents visible at a version to another run.
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

    pub(crate) async fn migrate(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        version: u32,
        mapping: &Mapping,
        by: &Operator,
        dry: bool,
    ) -> Result<Idempotent<Migrated>, EngineError> {
        let asked = json!([version, mapping]);
        let tried = self.migrate_now(scope, run, version, mapping, by, dry).await;
        self.or_recorded(scope, by.idempotency_record(run, MIGRATE, &asked, &(), run).as_ref(), tried).await
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
        for _ in 0..MAX_ATTEMPTS {
            let loaded_run = self.load(scope, run).await?;
            refuse_own(loaded_run.definition().name(), run)?;
            by.check(&loaded_run)?;
            let to = self.workflow_version(scope, loaded_run.definition().name(), version).await?;
            let now = self.host.now();
            let mut change =
                migrate(loaded_run.definition(), &to.definition, &loaded_run.snapshot, mapping, now)
                    .map_err(|problems: MigrationError| EngineError::Invalid(problems.to_string()))?;
            change.entry.actor.clone_from(&by.actor);
            let migrated = Migrated {
                version: loaded_run.snapshot.version(),
                from: loaded_run.snapshot.current_places(),
                to: change.snapshot.current_places(),
                is_dry: dry,
            };
            if dry {
                return Ok(migrated);
            }
            let stopped = change.stopped.clone();
            let mut next = PendingCommit::change(Box::new(change), &loaded_run);
            next.is_command = true;
            if let Some(error) = stopped {
                next.ledger.stopped = Some(Stopped { at: now, error, activation: None });
            }
            let (from, to_hash) = (loaded_run.definition().hash(), to.definition.hash());
            let detail = json!({"from": from, "to": to_hash, "mapping": mapping_detail(mapping)});
            next.extras.audit.push(by.audit(run, MIGRATE, &detail));
            next.extras.keys.extend(by.idempotency_record(
                run,
                MIGRATE,
                &json!([version, mapping]),
                &migrated,
                run,
            ));
            next.extras.definitions.push(to.clone());
            next.repin = Some(to);
            // The new version may wait for other events, so fetch earlier events again.
            next.ledger.events_fetched_at.clear();
            // The task of a remote worker may differ, too. Revoke it; the worker is notified at its next request.
            for attempts in next.ledger.attempts.iter_mut().filter(|attempts| attempts.queued.is_some()) {
                (attempts.queued, attempts.next, attempts.manual) = (None, Some(now), true);
            }
            match self.commit_and_drive(scope, &loaded_run, next).await {
                Ok(()) => return Ok(migrated),
                Err(CommitFailure::Moved) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(EngineError::Contended { run, attempts: MAX_ATTEMPTS })
    }

    /// Returns a version of a workflow, either published in the catalogue or registered by this program.
    async fn workflow_version(
        &self,
        scope: TenantScope,
        workflow: &Name,
        version: u32,
    ) -> Result<Arc<Workflow>, EngineError> {
        if let Some(published) = self.published_version(scope, workflow, version).await? {
            return Ok(published);
        }
        self.registry.workflow_version(scope.tenant(), workflow, version).ok_or_else(|| {
            EngineError::Invalid(format!("no version {version} of workflow `{workflow}` is registered here"))
        })
    }
}

/// Retries everything that has failed at once; `None` if nothing has failed.
fn retry(mut ledger: Ledger, now: stepwell_core::Timestamp) -> Option<PendingCommit> {
    let stopped = ledger.stopped.take();
    // An attempt that is already due may be running.
    let is_stopped = |attempts: &Attempts| {
        attempts.failed > 0 && attempts.queued.is_none() && attempts.next.is_none_or(|next| next > now)
    };
    if stopped.is_none() && !ledger.attempts.iter().any(is_stopped) {
        return None;
    }
    for attempts in ledger.attempts.iter_mut().filter(|attempts| is_stopped(attempts)) {
        if attempts.next.is_none() {
            ledger.crashes.remove(&attempts.activation);
        }
        attempts.next = Some(now);
        attempts.manual = true;
        attempts.retries = 0;
        attempts.first = None;
    }
    Some(PendingCommit::note(ledger))
}

/// Discards the signal whose transition failed.
fn dismiss(mut ledger: Ledger) -> Result<PendingCommit, EngineError> {
    let failed = ledger.stopped.as_ref().and_then(|stopped| stopped.activation);
    let attempts = failed.and_then(|activation| ledger.of(activation)).cloned();
    let Some(attempts) = attempts.filter(|attempts| matches!(attempts.cause, Cause::Signal(_))) else {
        return Err(EngineError::Invalid(
            "only a signal whose transition has failed can be dismissed: retry, move or cancel the run"
                .to_owned(),
        ));
    };
    ledger.attempts.retain(|other| other.activation != attempts.activation);
    ledger.stopped = None;
    ledger.stop_for_next_failure();
    Ok(PendingCommit::note(ledger).consuming(attempts.message))
}

/// Applies a JSON merge patch (RFC 7386).
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
