//! Applies any number of commits of one tenant in one transaction.
//!
//! There are two lanes. Plain commits go in one statement and one round trip. The compare-and-set of a run refuses only
//! the commit of that run, and nothing else in it can be refused.
//!
//! All other commits are planned from the rows they name. One round trip locks and reads those rows, and another writes
//! the plans. Each plan sees the changes of the plans before it. In both lanes a refused commit has written nothing, so
//! there is nothing to undo.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use stepwell_core::{Limits, RunId};
use stepwell_store::delta::Stored;
use stepwell_store::plan::{advance, new_row};
use stepwell_store::{Commit, CommitError, Committed, Head, Hint, RunRow, StoreError, TenantId};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::columns::{Audit, BoundStatement, Closed, Definitions, Opened, Shadows};
use crate::connection::{Backend, Begin, Connection, Connections, Lent, Mode, Unanswered, Visibility};
use crate::error::{Failure, constraint};
use crate::plain::{PlainBatch, PlainWritten};
use crate::planned::{Gathered, Names};
use crate::{rows, statements as sql};

/// A commit that was prepared on the caller's task, so that the committer has little left to do.
pub(crate) enum Prepared {
    /// Advances one run. Only the compare-and-set of the run can refuse it.
    Step { commit: Box<Commit>, head: Box<Head>, stored: Vec<Stored>, places: String },
    /// Creates one run. Only an existing run with the same id can refuse it.
    Create { commit: Box<Commit>, row: Box<RunRow>, stored: Stored },
    /// Any other commit; it is planned inside the transaction.
    Planned { commit: Box<Commit> },
}

/// A class of commits that can share a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    Plain,
    Planned,
}

impl Prepared {
    pub(crate) fn new(commit: Commit) -> Self {
        let commit = Box::new(commit);
        match (&commit.step, commit.create.first()) {
            (Some(step), None) if commit.is_plain() => {
                let (head, stored) = advance(step, &step.next);
                let places = step.next.last().map(|next| rows::places(&next.places)).unwrap_or_default();
                Prepared::Step { commit, head: Box::new(head), stored, places }
            }
            (None, Some(new)) if commit.is_plain() => {
                let (row, stored) = new_row(new, commit.at);
                Prepared::Create { commit, row: Box::new(row), stored }
            }
            _ => Prepared::Planned { commit },
        }
    }

    pub(crate) fn lane(&self) -> Lane {
        match self {
            Prepared::Step { .. } | Prepared::Create { .. } => Lane::Plain,
            Prepared::Planned { .. } => Lane::Planned,
        }
    }

    /// Returns the run whose row a plain commit writes. A batch may contain it only once, because a statement writes a
    /// row only once.
    pub(crate) fn run(&self) -> Option<RunId> {
        match self {
            Prepared::Step { head, .. } => Some(head.run),
            Prepared::Create { row, .. } => Some(row.run),
            Prepared::Planned { .. } => None,
        }
    }

    pub(crate) fn commit(&self) -> &Commit {
        match self {
            Prepared::Step { commit, .. }
            | Prepared::Create { commit, .. }
            | Prepared::Planned { commit } => commit,
        }
    }
}

/// The outcome of a commit.
pub(crate) type Applied = Result<(Committed, Vec<Hint>), CommitError>;

/// The reason that a batch has no result.
pub(crate) enum BatchError {
    /// Nothing of the batch is stored.
    Failed(Failure),
    /// The run of a step does not exist. Nothing of the batch is stored.
    MissingRun,
    /// The tenant is not in the table `tenants`, although this process has recorded it. Nothing of the batch is stored.
    MissingTenant,
    /// The outcome is unknown. This server process may still run the batch.
    Lost { why: String, backend: Backend },
}

impl BatchError {
    fn of(failure: Failure, connection: &Connection) -> Self {
        match failure {
            Failure::Unknown(why) => BatchError::Lost { why, backend: connection.backend.clone() },
            other => BatchError::Failed(other),
        }
    }

    /// Converts a lost connection to a plain failure, for the case that no write was sent yet.
    fn before_any_write(self) -> Self {
        match self {
            BatchError::Lost { why, .. } => BatchError::Failed(StoreError::Unavailable(why).into()),
            other => other,
        }
    }
}

impl<T: Into<Failure>> From<T> for BatchError {
    fn from(failure: T) -> Self {
        match failure.into() {
            // No write was sent yet.
            Failure::Unknown(why) => BatchError::Failed(StoreError::Unavailable(why).into()),
            other => BatchError::Failed(other),
        }
    }
}

/// The tenants that are recorded in the table `tenants`, as far as this process knows.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<HashSet<TenantId>>);

impl Known {
    fn has(&self, tenant: TenantId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&tenant)
    }

    fn add(&self, tenant: TenantId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(tenant);
    }

    fn remove(&self, tenant: TenantId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tenant);
    }
}

/// Maximum number of statements in one write. Up to this number they are sent in the given order.
pub(crate) const MOST_AT_ONCE: usize = 30;

/// Attempts to look up the reason that commits were refused.
const LOOKUP_ATTEMPTS: u32 = 3;

/// Applies batches of commits to the database.
pub(crate) struct Applier {
    pub(crate) on: Connections,
    pub(crate) known: Known,
    pub(crate) limits: Limits,
}

impl Applier {
    /// Applies commits of one tenant and one lane. If the tenant's row in `tenants` is gone, which every insert needs,
    /// it is recorded again, and the commits are applied again.
    pub(crate) async fn apply(
        &self,
        lane: Lane,
        tenant: TenantId,
        batch: &[&Prepared],
    ) -> Result<Vec<Applied>, BatchError> {
        match self.try_apply(lane, tenant, batch).await {
            Err(BatchError::MissingTenant) => {
                tracing::error!(%tenant, "the table `tenants` has lost the row of a tenant; it is inserted again");
                self.known.remove(tenant);
                self.try_apply(lane, tenant, batch).await
            }
            applied => applied,
        }
    }

    async fn try_apply(
        &self,
        lane: Lane,
        tenant: TenantId,
        batch: &[&Prepared],
    ) -> Result<Vec<Applied>, BatchError> {
        match lane {
            Lane::Plain => self.plain(tenant, batch).await,
            Lane::Planned => {
                let commits: Vec<&Commit> = batch.iter().map(|prepared| prepared.commit()).collect();
                self.planned(tenant, &commits).await
            }
        }
    }

    async fn plain(&self, tenant: TenantId, batch: &[&Prepared]) -> Result<Vec<Applied>, BatchError> {
        let batch = self.batch(tenant, batch);
        let connection = self.on.get().await?;
        let rows = self.write(&connection, tenant, &batch.bound()).await?;
        let written = batch.written(rows).map_err(|failure| unreadable(failure, &connection))?;
        drop(connection);
        self.answered(&batch, &written).await
    }

    /// Applies plain commits of several tenants in one transaction, with one statement for each tenant and one fsync
    /// for all. If anything fails, nothing is stored. Tenants whose commits need more than one statement are skipped,
    /// and get `None`, like a tenant of which nothing could be stored.
    pub(crate) async fn shared(
        &self,
        groups: &[(TenantId, Vec<&Prepared>)],
    ) -> Result<Vec<Option<Vec<Applied>>>, BatchError> {
        let batches: Vec<_> = groups.iter().map(|(tenant, batch)| self.batch(*tenant, batch)).collect();
        let mut single: Vec<Option<BoundStatement<'_>>> = batches.iter().map(only).collect();
        let goes: Vec<bool> = single.iter().map(Option::is_some).collect();
        if goes.iter().filter(|goes| **goes).count() < 2 {
            return Ok(groups.iter().map(|_| None).collect());
        }
        let bound: Vec<BoundStatement<'_>> = single.iter_mut().filter_map(Option::take).collect();
        let connection = self.on.get().await?;
        let begin = self.on.begin(Visibility::None, Mode::Writes);
        let rows = send(&connection, Some(&begin), &bound, Some("commit")).await?;
        let mut rows = rows.into_iter().peekable();
        let mut written = Vec::with_capacity(groups.len());
        for (batch, goes) in batches.iter().zip(goes) {
            let rows = rows.next_if(|_| goes).map(|rows| batch.written(vec![rows])).transpose();
            written.push(rows.map_err(|failure| unreadable(failure, &connection))?);
        }
        // Return the connection before taking another one from the pool: holding both can deadlock.
        drop(connection);
        let mut applied = Vec::with_capacity(groups.len());
        for (batch, written) in batches.iter().zip(written) {
            applied.push(match written {
                Some(written) => self.answered(batch, &written).await.ok(),
                None => None,
            });
        }
        Ok(applied)
    }

    fn batch<'a>(&self, tenant: TenantId, batch: &[&'a Prepared]) -> PlainBatch<'a> {
        PlainBatch::new(tenant, batch, !self.known.has(tenant), self.on.has_citus())
    }

    /// Returns the answer to each commit of a batch. Fails if nothing was stored for lack of the tenant's row.
    async fn answered(
        &self,
        batch: &PlainBatch<'_>,
        written: &PlainWritten,
    ) -> Result<Vec<Applied>, BatchError> {
        if batch.is_new && !written.moved.is_empty() {
            self.known.add(batch.tenant);
        }
        let found = self.left_out(batch.tenant, &batch.left_out(written)).await;
        let is_strange = written.moved.is_empty() && batch.has_unexplained_refusal(&found);
        if is_strange && !crate::query::has_tenant(&self.on, batch.tenant).await? {
            return Err(BatchError::MissingTenant);
        }
        Ok(batch.answers(written, &found))
    }

    /// Returns the current rows of runs whose commits were refused.
    async fn left_out(&self, tenant: TenantId, runs: &[Uuid]) -> Result<HashMap<RunId, RunRow>, StoreError> {
        if runs.is_empty() {
            return Ok(HashMap::new());
        }
        let mut attempts = 1;
        loop {
            match crate::query::runs_by_id(&self.on, tenant, runs).await {
                Err(Failure::Unknown(_) | Failure::Again(_)) if attempts < LOOKUP_ATTEMPTS => attempts += 1,
                other => return other.map_err(StoreError::from),
            }
        }
    }

    /// Sends a whole transaction in one write. If any statement fails, nothing is stored.
    async fn write(
        &self,
        connection: &Lent,
        tenant: TenantId,
        bound: &[BoundStatement<'_>],
    ) -> Result<Vec<Vec<Row>>, BatchError> {
        // The `commit` statement sets the tenant itself, so it needs no explicit transaction.
        if matches!(bound, [BoundStatement { sql: sql::commit, .. }]) {
            return send(connection, None, bound, None).await;
        }
        let begin = self.on.begin(Visibility::Tenant(tenant), Mode::Writes);
        send(connection, Some(&begin), bound, Some("commit")).await
    }

    async fn planned(&self, tenant: TenantId, commits: &[&Commit]) -> Result<Vec<Applied>, BatchError> {
        let id = tenant.uuid();
        let names = Names::of(commits, &self.limits);
        let transaction = crate::connection::Transaction::new(self.on.get().await?);
        let connection = transaction.on();
        let begin = self.on.begin(Visibility::Tenant(tenant), Mode::Writes);
        let found = send(connection, Some(&begin), &names.bound(&id), None).await;
        let found = found.map_err(BatchError::before_any_write)?;
        let mut gathered = Gathered::read(&names, &found)?;
        let (applied, written) = gathered.plan(tenant, commits, &self.limits);
        if written.is_empty() {
            transaction.roll_back().await?;
            return Ok(applied);
        }
        let is_new = !self.known.has(tenant);
        let columns = written.columns(&gathered);
        match send(connection, None, &columns.bound(&id, is_new), Some("commit")).await {
            Ok(_) => transaction.over(),
            Err(lost @ BatchError::Lost { .. }) => return Err(lost),
            Err(batch_error) => {
                transaction.roll_back().await?;
                return Err(batch_error);
            }
        }
        self.known.add(tenant);
        Ok(applied)
    }
}

/// Sends statements in one write, with the given commands to begin and end their transaction, and returns their rows.
/// If any statement fails, nothing is stored. The order of sending is kept for up to [`MOST_AT_ONCE`] statements.
async fn send(
    connection: &Connection,
    begin: Option<&Begin>,
    bound: &[BoundStatement<'_>],
    end: Option<&str>,
) -> Result<Vec<Vec<Row>>, BatchError> {
    debug_assert!(bound.len() <= MOST_AT_ONCE, "{} statements at once", bound.len());
    let mut statements = Vec::with_capacity(bound.len());
    for bound in bound {
        statements.push(connection.statement(bound.sql).await?);
    }
    let all = bound.iter().zip(&statements);
    let all = all.map(|(bound, statement)| connection.try_ask(statement, &bound.params));
    let (begun, answers, ended) = tokio::join!(
        async {
            match begin {
                Some(begin) => connection.begin(begin).await,
                None => Ok(()),
            }
        },
        futures_util::future::join_all(all),
        async {
            match end {
                Some(end) => connection.command(end).await,
                None => Ok(()),
            }
        }
    );
    begun.map_err(|failure| BatchError::of(failure, connection))?;
    let answers = answers.into_iter().zip(bound);
    let answers =
        answers.map(|(answer, bound)| answer.map_err(|error| batch_error(bound.sql, error, connection)));
    let rows = answers.collect::<Result<Vec<_>, _>>()?;
    ended.map_err(|failure| BatchError::of(failure, connection))?;
    Ok(rows)
}

/// Returns true if another transaction inserted a row after we had found that it does not exist. A retry will find the
/// row.
pub(crate) fn is_raced(error: &tokio_postgres::Error) -> bool {
    let raced = [
        "audit_by_commit",
        "runs_by_id",
        "handles_by_handle",
        "cells_by_key",
        "links_by_edge",
        "idempotency_by_key",
    ];
    let violated = constraint(error, &SqlState::UNIQUE_VIOLATION);
    // With Citus, a number follows the name of the constraint.
    violated.is_some_and(|name| raced.iter().any(|key| name.starts_with(key)))
}

/// Returns the statement of a batch if it is the only one and needs no explicit transaction.
fn only<'s>(batch: &'s PlainBatch<'_>) -> Option<BoundStatement<'s>> {
    let mut bound = batch.bound();
    let is_only = bound.len() == 1 && bound[0].sql == sql::commit;
    bound.pop().filter(|_| is_only)
}

/// Reports a batch that is stored but whose answer is unreadable. The callers must look up the outcome.
fn unreadable(failure: Failure, connection: &Connection) -> BatchError {
    let why = format!("cannot read the answer: {}", StoreError::from(failure));
    BatchError::Lost { why, backend: connection.backend.clone() }
}

/// Returns the error of a commit that cannot be stored because its tenant is not recorded.
pub(crate) fn missing_tenant() -> StoreError {
    let why = "the table `tenants` has no row for the tenant, and none can be inserted; nothing was stored";
    StoreError::Unavailable(why.to_owned())
}

/// Returns true if the error says that the tenant is not recorded.
pub(crate) fn is_missing_tenant(statement: &str, error: &tokio_postgres::Error) -> bool {
    statement == sql::tenant_check && error.code() == Some(&SqlState::DIVISION_BY_ZERO)
}

/// Maps the error of a statement to the failure of its batch.
fn batch_error(statement: &str, unanswered: Unanswered, connection: &Connection) -> BatchError {
    let error = match unanswered {
        Unanswered::Error(error) => error,
        silence @ Unanswered::Silence(_) => return BatchError::of(silence.into(), connection),
    };
    if is_missing_tenant(statement, &error) {
        return BatchError::MissingTenant;
    }
    if error.code() == Some(&SqlState::DIVISION_BY_ZERO) {
        return BatchError::MissingRun;
    }
    let is_raced = is_raced(&error);
    match Failure::from(error) {
        Failure::Store(error) if is_raced => BatchError::Failed(Failure::Again(error)),
        failure => BatchError::of(failure, connection),
    }
}

/// Adds the statements for waits, shadow columns, definitions and the audit trail, which both lanes share.
pub(crate) fn push_common_statements<'s>(
    bound: &mut Vec<BoundStatement<'s>>,
    tenant: &'s Uuid,
    close: &'s Closed<'_>,
    open: &'s Opened<'_>,
    shadows: &'s Shadows<'_>,
    definitions: &'s Definitions<'_>,
    audit: &'s Audit<'_>,
) {
    let filled = [
        (!close.is_empty()).then(|| close.bound(sql::waits_close, tenant)),
        (!open.is_empty()).then(|| open.bound(sql::waits_open, tenant)),
        (!shadows.clear.is_empty()).then(|| shadows.clear.bound(sql::shadows_clear, tenant)),
        (!shadows.put.is_empty()).then(|| shadows.put.bound(sql::shadows_put, tenant)),
        (!definitions.is_empty()).then(|| definitions.bound(sql::definitions_put, tenant)),
        (!audit.is_empty()).then(|| audit.bound(sql::audit_insert, tenant)),
    ];
    bound.extend(filled.into_iter().flatten());
}
