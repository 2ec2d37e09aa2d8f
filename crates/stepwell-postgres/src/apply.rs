//! Applies commits of one tenant, as many as there are, in one transaction.
//!
//! Two lanes. Plain commits go in one statement and one write: each run's compare-and-set excludes that one commit and
//! nothing else in it can fail. Any others are planned on the rows they name, which are locked and read in one write,
//! and the plans are written down in another; one commit's plan sees what those before it have planned. Neither has
//! anything to undo: a commit that is refused has written nothing.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use stepwell_core::{Limits, RunId};
use stepwell_store::delta::Stored;
use stepwell_store::plan::{advance, new_row};
use stepwell_store::{Commit, CommitError, Committed, Head, Hint, RunRow, StoreError, TenantId};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::columns::{Asked, Audit, Closed, Definitions, Opened, Shadows};
use crate::connection::{Backend, Begin, Connection, Connections, Lent, Mode, Sees, Unanswered};
use crate::error::{Failure, constraint};
use crate::plain::{PlainBatch, PlainWritten};
use crate::planned::{Gathered, Names};
use crate::{rows, statements as sql};

/// A commit made ready on the caller's own task, so that a committer has as little to do as possible.
pub(crate) enum Prepared {
    /// A run moves, and nothing else can fail.
    Step { commit: Box<Commit>, head: Box<Head>, stored: Vec<Stored>, places: String },
    /// A run begins, and nothing else can fail.
    Create { commit: Box<Commit>, row: Box<RunRow>, stored: Stored },
    /// Anything else.
    Planned { commit: Box<Commit> },
}

/// Commits that can go together.
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

    /// The run whose row a plain commit writes: a statement writes a row only once.
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

/// What became of a commit.
pub(crate) type Applied = Result<(Committed, Vec<Hint>), CommitError>;

/// Why a batch has no result.
pub(crate) enum Trouble {
    /// Nothing of it is in the database.
    Failed(Failure),
    /// A step's run is not there.
    Torn,
    /// Nobody knows; this server process may still be at it.
    Lost { why: String, backend: Backend },
}

impl Trouble {
    fn of(failure: Failure, connection: &Connection) -> Self {
        match failure {
            Failure::Unknown(why) => Trouble::Lost { why, backend: connection.backend.clone() },
            other => Trouble::Failed(other),
        }
    }

    /// The same where nothing had been sent that changes anything.
    fn before_any_write(self) -> Self {
        match self {
            Trouble::Lost { why, .. } => Trouble::Failed(StoreError::Unavailable(why).into()),
            other => other,
        }
    }
}

impl<T: Into<Failure>> From<T> for Trouble {
    fn from(failure: T) -> Self {
        match failure.into() {
            // Nothing had been sent that changes anything.
            Failure::Unknown(why) => Trouble::Failed(StoreError::Unavailable(why).into()),
            other => Trouble::Failed(other),
        }
    }
}

/// The tenants that this process knows to be known.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<HashSet<TenantId>>);

impl Known {
    fn has(&self, tenant: TenantId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&tenant)
    }

    fn add(&self, tenant: TenantId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(tenant);
    }
}

/// Statements that go in one write: up to here they are sent in the order they are given in.
pub(crate) const MOST_AT_ONCE: usize = 30;

/// How often it is looked why commits were left out.
const LOOKS: u32 = 3;

/// What commits are applied with.
pub(crate) struct Applier {
    pub(crate) on: Connections,
    pub(crate) known: Known,
    pub(crate) limits: Limits,
}

impl Applier {
    /// Applies commits of one lane.
    pub(crate) async fn apply(
        &self,
        lane: Lane,
        tenant: TenantId,
        batch: &[&Prepared],
    ) -> Result<Vec<Applied>, Trouble> {
        match lane {
            Lane::Plain => self.plain(tenant, batch).await,
            Lane::Planned => {
                let commits: Vec<&Commit> = batch.iter().map(|prepared| prepared.commit()).collect();
                self.planned(tenant, &commits).await
            }
        }
    }

    async fn plain(&self, tenant: TenantId, batch: &[&Prepared]) -> Result<Vec<Applied>, Trouble> {
        let batch = self.batch(tenant, batch);
        let connection = self.on.get().await?;
        let rows = self.write(&connection, tenant, &batch.asked()).await?;
        let written = batch.written(rows).map_err(|failure| unreadable(failure, &connection))?;
        drop(connection);
        Ok(self.answered(&batch, &written).await)
    }

    /// Plain commits of several tenants, each tenant's in one statement, all in one transaction: there is one fsync for
    /// all of them. If anything fails, nothing of it is done. Those that write more than one statement come to nothing
    /// here.
    pub(crate) async fn shared(
        &self,
        groups: &[(TenantId, Vec<&Prepared>)],
    ) -> Result<Vec<Option<Vec<Applied>>>, Trouble> {
        let batches: Vec<_> = groups.iter().map(|(tenant, batch)| self.batch(*tenant, batch)).collect();
        let mut single: Vec<Option<Asked<'_>>> = batches.iter().map(only).collect();
        let goes: Vec<bool> = single.iter().map(Option::is_some).collect();
        if goes.iter().filter(|goes| **goes).count() < 2 {
            return Ok(groups.iter().map(|_| None).collect());
        }
        let asked: Vec<Asked<'_>> = single.iter_mut().filter_map(Option::take).collect();
        let connection = self.on.get().await?;
        let begin = self.on.begin(Sees::None, Mode::Writes);
        let rows = send(&connection, Some(&begin), &asked, Some("commit")).await?;
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
                Some(written) => Some(self.answered(batch, &written).await),
                None => None,
            });
        }
        Ok(applied)
    }

    fn batch<'a>(&self, tenant: TenantId, batch: &[&'a Prepared]) -> PlainBatch<'a> {
        PlainBatch::new(tenant, batch, !self.known.has(tenant), self.on.has_citus())
    }

    /// What each commit of a batch is answered with.
    async fn answered(&self, batch: &PlainBatch<'_>, written: &PlainWritten) -> Vec<Applied> {
        if batch.is_new && !written.moved.is_empty() {
            self.known.add(batch.tenant);
        }
        let found = self.left_out(batch.tenant, &batch.left_out(written)).await;
        batch.answers(written, &found)
    }

    /// The rows of runs whose commits were left out, as they are now.
    async fn left_out(&self, tenant: TenantId, runs: &[Uuid]) -> Result<HashMap<RunId, RunRow>, StoreError> {
        if runs.is_empty() {
            return Ok(HashMap::new());
        }
        let mut tries = 1;
        loop {
            match crate::query::runs_by_id(&self.on, tenant, runs).await {
                Err(Failure::Unknown(_) | Failure::Again(_)) if tries < LOOKS => tries += 1,
                other => return other.map_err(StoreError::from),
            }
        }
    }

    /// Sends a whole transaction in one write. If any of it fails, none of it is done.
    async fn write(
        &self,
        connection: &Lent,
        tenant: TenantId,
        asked: &[Asked<'_>],
    ) -> Result<Vec<Vec<Row>>, Trouble> {
        // A statement that says itself whose rows it is after is a transaction.
        if matches!(asked, [Asked { sql: sql::commit, .. }]) {
            return send(connection, None, asked, None).await;
        }
        let begin = self.on.begin(Sees::Tenant(tenant), Mode::Writes);
        send(connection, Some(&begin), asked, Some("commit")).await
    }

    async fn planned(&self, tenant: TenantId, commits: &[&Commit]) -> Result<Vec<Applied>, Trouble> {
        let id = tenant.uuid();
        let names = Names::of(commits, &self.limits);
        let transaction = crate::connection::Transaction::new(self.on.get().await?);
        let connection = transaction.on();
        let begin = self.on.begin(Sees::Tenant(tenant), Mode::Writes);
        let found = send(connection, Some(&begin), &names.asked(&id), None).await;
        let found = found.map_err(Trouble::before_any_write)?;
        let mut gathered = Gathered::read(&names, &found)?;
        let (applied, written) = gathered.plan(tenant, commits, &self.limits);
        if written.is_empty() {
            transaction.roll_back().await?;
            return Ok(applied);
        }
        let is_new = !self.known.has(tenant);
        let columns = written.columns(&gathered);
        match send(connection, None, &columns.asked(&id, is_new), Some("commit")).await {
            Ok(_) => transaction.over(),
            Err(lost @ Trouble::Lost { .. }) => return Err(lost),
            Err(trouble) => {
                transaction.roll_back().await?;
                return Err(trouble);
            }
        }
        self.known.add(tenant);
        Ok(applied)
    }
}

/// Sends statements in one write, between the commands that begin and end their transaction if they do, and gives what
/// each of them found. If any of it fails, none of it is done. They go in the order they are given in for as long as
/// there are no more than [`MOST_AT_ONCE`].
async fn send(
    connection: &Connection,
    begin: Option<&Begin>,
    asked: &[Asked<'_>],
    end: Option<&str>,
) -> Result<Vec<Vec<Row>>, Trouble> {
    debug_assert!(asked.len() <= MOST_AT_ONCE, "{} statements at once", asked.len());
    let mut statements = Vec::with_capacity(asked.len());
    for asked in asked {
        statements.push(connection.statement(asked.sql).await?);
    }
    let all = asked.iter().zip(&statements);
    let all = all.map(|(asked, statement)| connection.try_ask(statement, &asked.params));
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
    begun.map_err(|failure| Trouble::of(failure, connection))?;
    let answers = answers.into_iter().map(|answer| answer.map_err(|error| trouble(error, connection)));
    let rows = answers.collect::<Result<Vec<_>, _>>()?;
    ended.map_err(|failure| Trouble::of(failure, connection))?;
    Ok(rows)
}

/// What was not there when it was looked for is there by now: on another look it is.
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
    // Where tenants are spread over nodes, a number follows the name.
    violated.is_some_and(|name| raced.iter().any(|key| name.starts_with(key)))
}

/// The statement of a batch that is a transaction by itself.
fn only<'s>(batch: &'s PlainBatch<'_>) -> Option<Asked<'s>> {
    let mut asked = batch.asked();
    let is_only = asked.len() == 1 && asked[0].sql == sql::commit;
    asked.pop().filter(|_| is_only)
}

/// It is in the database, and what became of it cannot be read: whoever asked has to look it up.
fn unreadable(failure: Failure, connection: &Connection) -> Trouble {
    let why = format!("the answer cannot be read: {}", StoreError::from(failure));
    Trouble::Lost { why, backend: connection.backend.clone() }
}

/// What a statement's error means for its batch.
fn trouble(unanswered: Unanswered, connection: &Connection) -> Trouble {
    let error = match unanswered {
        Unanswered::Error(error) => error,
        silence @ Unanswered::Silence(_) => return Trouble::of(silence.into(), connection),
    };
    if error.code() == Some(&SqlState::DIVISION_BY_ZERO) {
        return Trouble::Torn;
    }
    let is_raced = is_raced(&error);
    match Failure::from(error) {
        Failure::Store(error) if is_raced => Trouble::Failed(Failure::Again(error)),
        failure => Trouble::of(failure, connection),
    }
}

/// What is written beside runs in either lane.
pub(crate) fn beside<'s>(
    asked: &mut Vec<Asked<'s>>,
    tenant: &'s Uuid,
    close: &'s Closed<'_>,
    open: &'s Opened<'_>,
    shadows: &'s Shadows<'_>,
    definitions: &'s Definitions<'_>,
    audit: &'s Audit<'_>,
) {
    let filled = [
        (!close.is_empty()).then(|| close.asked(sql::waits_close, tenant)),
        (!open.is_empty()).then(|| open.asked(sql::waits_open, tenant)),
        (!shadows.clear.is_empty()).then(|| shadows.clear.asked(sql::shadows_clear, tenant)),
        (!shadows.put.is_empty()).then(|| shadows.put.asked(sql::shadows_put, tenant)),
        (!definitions.is_empty()).then(|| definitions.asked(sql::definitions_put, tenant)),
        (!audit.is_empty()).then(|| audit.asked(sql::audit_insert, tenant)),
    ];
    asked.extend(filled.into_iter().flatten());
}
