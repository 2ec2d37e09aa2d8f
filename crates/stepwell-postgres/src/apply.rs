//! Applies commits of one tenant, as many as there are, in one transaction.
//!
//! Two lanes. Plain commits go in one statement and one write: each run's compare-and-set excludes that one commit and
//! nothing else in it can fail. Any others are planned on the rows they name, which are locked and read in one write,
//! and the plans are written down in another; one commit's plan sees what those before it have planned. Neither has
//! anything to undo: a commit that is refused has written nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use stepwell_core::{Limits, RunId};
use stepwell_store::delta::Stored;
use stepwell_store::plan::{advance, is_told, is_unfenced, new_row, refuse_step};
use stepwell_store::{Commit, CommitError, Committed, Head, Hint, Refused, RunRow, StoreError, TenantId};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

use crate::columns::{Asked, Audit, Closed, Definitions, Opened, Plain, Runs, Trace};
use crate::connection::{Backend, Connection, Connections, Lent, Mode, Sees};
use crate::error::{Failure, constraint};
use crate::planned::{Gathered, Names};
use crate::records::Records;
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
        let mut batch: Vec<(usize, &Prepared)> = batch.iter().copied().enumerate().collect();
        // Whoever locks several rows locks them in this order.
        batch.sort_unstable_by_key(|(_, prepared)| prepared.run());
        let id = tenant.uuid();
        let columns = PlainColumns::of(batch.iter().map(|(_, prepared)| *prepared));
        let records = (!self.on.has_citus()).then(|| (columns.runs.records(), columns.checkpoints.records()));
        let is_new = !self.known.has(tenant);
        let asked = columns.asked(&id, is_new, records.as_ref());
        let moved = usize::from(is_new);
        let connection = self.on.get().await?;
        let mut rows = self.write(&connection, tenant, &asked).await?;
        // From here on it is in the database: nothing that goes wrong now makes it undone.
        let unreadable = |failure: Failure| {
            let why = format!("the answer cannot be read: {}", StoreError::from(failure));
            Trouble::Lost { why, backend: connection.backend.clone() }
        };
        let woken = if columns.woken.is_empty() { Vec::new() } else { rows.pop().unwrap_or_default() };
        let woken = woken.iter().map(|row| Ok((rows::run_id(row, 0)?, rows::instant(row, 1)?)));
        let woken: BTreeMap<_, _> = woken.collect::<Result<_, Failure>>().map_err(unreadable)?;
        let moved = rows[moved].iter().map(|row| rows::run_id(row, 0));
        let moved: HashSet<RunId> = moved.collect::<Result<_, Failure>>().map_err(unreadable)?;
        drop(connection);
        if is_new && !moved.is_empty() {
            self.known.add(tenant);
        }
        let is_moved = |prepared: &Prepared| prepared.run().is_some_and(|run| moved.contains(&run));
        let excluded = batch.iter().filter(|(_, prepared)| !is_moved(prepared));
        let excluded: Vec<Uuid> =
            excluded.filter_map(|(_, prepared)| prepared.run()).map(RunId::uuid).collect();
        let found = self.left_out(tenant, &excluded).await;
        batch.sort_unstable_by_key(|(index, _)| *index);
        Ok(batch
            .into_iter()
            .map(|(_, prepared)| match is_moved(prepared) {
                true => Ok(answer(tenant, prepared, &woken)),
                false => match &found {
                    Ok(found) => {
                        let row = prepared.run().and_then(|run| found.get(&run));
                        Err(refusal(prepared, row).into())
                    }
                    // Why is not known, only that it was not applied.
                    Err(error) => Err(error.clone().into()),
                },
            })
            .collect())
    }

    /// The rows of runs whose commits were left out, as they are now.
    async fn left_out(&self, tenant: TenantId, runs: &[Uuid]) -> Result<HashMap<RunId, RunRow>, StoreError> {
        let mut tries = 1;
        loop {
            if runs.is_empty() {
                return Ok(HashMap::new());
            }
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
        let statements = prepared(connection, asked).await?;
        // A statement that says itself whose rows it is after is a transaction.
        if let ([Asked { sql: sql::commit, params }], [statement]) = (asked, &statements[..]) {
            let rows = connection.try_ask(statement, params).await;
            return Ok(vec![rows.map_err(|error| trouble(error, connection))?]);
        }
        let begin = self.on.begin(Sees::Tenant(tenant), Mode::Writes);
        let all = asked.iter().zip(&statements);
        let all = futures_util::future::join_all(
            all.map(|(asked, statement)| connection.try_ask(statement, &asked.params)),
        );
        let (begun, answers, ended) =
            tokio::join!(connection.command(&begin), all, connection.command("commit"));
        begun.map_err(|failure| Trouble::of(failure, connection))?;
        let mut rows = Vec::with_capacity(answers.len());
        for answer in answers {
            rows.push(answer.map_err(|error| trouble(error, connection))?);
        }
        ended.map_err(|failure| Trouble::of(failure, connection))?;
        Ok(rows)
    }

    async fn planned(&self, tenant: TenantId, commits: &[&Commit]) -> Result<Vec<Applied>, Trouble> {
        let id = tenant.uuid();
        let names = Names::of(commits);
        let asked = names.asked(&id);
        let connection = self.on.get().await?;
        let statements = prepared(&connection, &asked).await?;
        let begin = self.on.begin(Sees::Tenant(tenant), Mode::Writes);
        let transaction = crate::connection::Transaction::new(connection);
        let connection = transaction.on();
        let all = asked.iter().zip(&statements);
        let all = futures_util::future::join_all(
            all.map(|(asked, statement)| connection.ask(statement, &asked.params)),
        );
        let (begun, found) = tokio::join!(connection.command(&begin), all);
        begun?;
        let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut gathered = Gathered::read(&names, &found)?;
        let (applied, written) = gathered.plan(tenant, commits, &self.limits);
        if written.is_empty() {
            transaction.roll_back().await?;
            return Ok(applied);
        }
        let is_new = !self.known.has(tenant);
        let columns = written.columns(&gathered);
        let asked = columns.asked(&id, is_new);
        let statements = prepared(connection, &asked).await?;
        let all = asked.iter().zip(&statements);
        let all = futures_util::future::join_all(
            all.map(|(asked, statement)| connection.try_ask(statement, &asked.params)),
        );
        let (answers, ended) = tokio::join!(all, connection.command("commit"));
        for answer in answers {
            answer.map_err(|error| trouble(error, connection))?;
        }
        ended.map_err(|failure| Trouble::of(failure, connection))?;
        transaction.over();
        self.known.add(tenant);
        Ok(applied)
    }
}

async fn prepared(connection: &Connection, asked: &[Asked<'_>]) -> Result<Vec<Statement>, Failure> {
    let mut statements = Vec::with_capacity(asked.len());
    for asked in asked {
        statements.push(connection.statement(asked.sql).await?);
    }
    Ok(statements)
}

/// What was not there when it was looked for is there by now: on another look it is.
pub(crate) fn is_raced(error: &tokio_postgres::Error) -> bool {
    let raced = ["runs_by_id", "cells_by_key", "idempotency_by_key"];
    let violated = constraint(error, &SqlState::UNIQUE_VIOLATION);
    // Where tenants are spread over nodes, a number follows the name.
    violated.is_some_and(|name| raced.iter().any(|key| name.starts_with(key)))
}

/// What a statement's error means for its batch.
fn trouble(error: tokio_postgres::Error, connection: &Connection) -> Trouble {
    if error.code() == Some(&SqlState::DIVISION_BY_ZERO) {
        return Trouble::Torn;
    }
    let is_raced = is_raced(&error);
    match Failure::from(error) {
        Failure::Store(error) if is_raced => Trouble::Failed(Failure::Again(error)),
        failure => Trouble::of(failure, connection),
    }
}

/// What plain commits write.
#[derive(Default)]
struct PlainColumns<'a> {
    runs: Runs<'a>,
    checkpoints: Plain<'a>,
    close: Closed<'a>,
    open: Opened<'a>,
    definitions: Definitions<'a>,
    audit: Audit<'a>,
    /// Runs whose wake time the row has the last word on.
    woken: Vec<Uuid>,
}

impl<'a> PlainColumns<'a> {
    fn of(batch: impl Iterator<Item = &'a Prepared>) -> Self {
        let mut columns = PlainColumns::default();
        batch.for_each(|prepared| columns.push(prepared));
        columns
    }

    fn push(&mut self, prepared: &'a Prepared) {
        // Taken apart without `..`: a new field does not compile until it is written here.
        let Commit {
            id,
            at,
            step,
            create,
            send: _,
            cells: _,
            fills: _,
            documents: _,
            keys: _,
            definitions,
            audit,
        } = prepared.commit();
        let trace = match prepared {
            Prepared::Step { head, stored, places, .. } => {
                let Some(step) = step else { return };
                let first = step.head.version.saturating_add(1);
                let trace = Trace { commit: *id, at: Some((head.run, first)) };
                self.runs.propose(step, head, places.clone(), *at);
                for (version, stored) in (first..).zip(stored) {
                    self.checkpoints.push(head.run, version, stored, *id, *at);
                }
                step.close.iter().for_each(|activation| self.close.push(head.run, *activation, trace));
                self.open.push_all(head.run, &step.open, trace);
                let due = step.wake.is_some_and(|wake| wake <= *at);
                let is_given_up = head.owner.is_none() && step.head.owner.is_some();
                if is_given_up && !due && !step.status.is_final() {
                    self.woken.push(head.run.uuid());
                }
                trace
            }
            Prepared::Create { row, stored, .. } => {
                let Some(new) = create.first() else { return };
                let trace = Trace { commit: *id, at: Some((row.run, row.version)) };
                self.runs.push(row, rows::places(&row.places));
                self.checkpoints.push(row.run, row.version, stored, *id, *at);
                self.open.push_all(row.run, &new.open, trace);
                trace
            }
            Prepared::Planned { .. } => return,
        };
        definitions.iter().for_each(|definition| self.definitions.push(definition, trace));
        self.audit.push_all(audit, *at, trace);
    }

    /// The statements, in order; the one that says when runs wake is the last, if there is one.
    fn asked<'s>(
        &'s self,
        tenant: &'s Uuid,
        is_new: bool,
        records: Option<&'s (Records, Records)>,
    ) -> Vec<Asked<'s>> {
        let mut asked = Vec::with_capacity(4);
        if is_new {
            asked.push(Asked { sql: sql::tenant_put, params: vec![tenant] });
        }
        asked.push(match records {
            Some((runs, checkpoints)) => Asked { sql: sql::commit, params: vec![tenant, runs, checkpoints] },
            None => {
                let mut commit = self.runs.asked(sql::commit_spread, tenant);
                let checkpoints = self.checkpoints.asked(sql::commit_spread, tenant);
                commit.params.extend(checkpoints.params.into_iter().skip(1));
                commit
            }
        });
        beside(&mut asked, tenant, &self.close, &self.open, &self.definitions, &self.audit);
        if !self.woken.is_empty() {
            asked.push(Asked { sql: sql::runs_wake, params: vec![tenant, &self.woken] });
        }
        asked
    }
}

/// What is written beside runs in either lane.
pub(crate) fn beside<'s>(
    asked: &mut Vec<Asked<'s>>,
    tenant: &'s Uuid,
    close: &'s Closed<'_>,
    open: &'s Opened<'_>,
    definitions: &'s Definitions<'_>,
    audit: &'s Audit<'_>,
) {
    let filled = [
        (!close.is_empty()).then(|| close.asked(sql::waits_close, tenant)),
        (!open.is_empty()).then(|| open.asked(sql::waits_open, tenant)),
        (!definitions.is_empty()).then(|| definitions.asked(sql::definitions_put, tenant)),
        (!audit.is_empty()).then(|| audit.asked(sql::audit_insert, tenant)),
    ];
    asked.extend(filled.into_iter().flatten());
}

fn answer(
    tenant: TenantId,
    prepared: &Prepared,
    woken: &BTreeMap<RunId, Option<stepwell_core::Timestamp>>,
) -> (Committed, Vec<Hint>) {
    let nothing = Committed { head: None, created: Vec::new(), results: Vec::new(), sent: Vec::new() };
    let at = prepared.commit().at;
    let (committed, is_told, run) = match prepared {
        Prepared::Step { commit, head, .. } => {
            let step = commit.step.as_ref();
            let wake = step.and_then(|step| step.wake);
            let wake = woken.get(&head.run).copied().unwrap_or(wake);
            let told = is_told(head.owner, wake, at, step.is_some_and(is_unfenced));
            (Committed { head: Some((**head).clone()), ..nothing }, told, head.run)
        }
        Prepared::Create { commit, row, .. } => {
            let state = commit.create.first().map(|new| new.first.state.clone()).unwrap_or_default();
            let told = is_told(row.owner, row.wake, at, false);
            (Committed { created: vec![row.head(state)], ..nothing }, told, row.run)
        }
        Prepared::Planned { .. } => return (nothing, Vec::new()),
    };
    (committed, if is_told { vec![Hint::Run(tenant, run)] } else { Vec::new() })
}

/// Why a commit was left out, by the row as it is.
pub(crate) fn refusal(prepared: &Prepared, row: Option<&RunRow>) -> Refused {
    match prepared {
        Prepared::Create { row, .. } => Refused::RunExists { run: row.run },
        _ => {
            let Some(step) = &prepared.commit().step else { return Refused::NoRun { run: RunId::nil() } };
            let (run, revision) = (step.head.run, step.head.revision);
            let moved = Refused::Moved { run, expected: revision, actual: revision };
            refuse_step(row, step).unwrap_or(moved)
        }
    }
}
