//! Applies a commit inside the writer's transaction.
//!
//! There are two paths. A plain commit starts with the compare-and-set of its run; after that nothing in it can be
//! refused. Any other commit is planned from the rows it names, and then the plan is written. On both paths a refused
//! commit has written nothing, so there is nothing to undo.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Statement, params};
use stepwell_core::{Limits, RunId, Timestamp};
use stepwell_store::delta::Stored;
use stepwell_store::document::{DocumentEnd, DocumentRow};
use stepwell_store::plan::{
    self, CheckpointRow, KeyRow, MessageRow, Plan, Rows, advance, is_unfenced, new_row, ownership,
    refuse_step, sends_hint,
};
use stepwell_store::{
    AuditRow, BadRow, Cell, CellKey, Commit, CommitId, Committed, Document, HandleHash, HandleRow, Head,
    Hint, Link, LinkEdge, LinkEnds, NewRun, Refused, RunKey, RunRow, RunUpdate, Status, StoredDefinition,
    StoredWait, TenantId,
};

use crate::listed::{named, named_in};
use crate::statements::{self as sql, Session};
use crate::{handles, links, rows, shadows};

/// A commit that was prepared on the caller's thread, so that the writer has little left to do.
pub(crate) enum Prepared {
    /// Advances one run. Only the compare-and-set of the run can refuse it.
    Step { commit: Box<Commit>, head: Box<Head>, stored: Vec<Stored>, places: Option<String> },
    /// Creates one run. Only an existing run with the same id can refuse it.
    Create { commit: Box<Commit>, row: Box<RunRow>, stored: Stored },
    /// Any other commit; it is planned inside the transaction.
    Planned { commit: Box<Commit>, limits: Limits },
}

impl Prepared {
    pub(crate) fn new(commit: Commit, limits: &Limits) -> Self {
        let commit = Box::new(commit);
        match (&commit.step, commit.create.first()) {
            (Some(step), None) if commit.is_plain() => {
                let (head, stored) = advance(step, &step.next);
                let places = step.next.last().map(|next| rows::places(&next.places));
                Prepared::Step { commit, head: Box::new(head), stored, places }
            }
            (None, Some(new)) if commit.is_plain() => {
                let (row, stored) = new_row(new, commit.at);
                Prepared::Create { commit, row: Box::new(row), stored }
            }
            _ => Prepared::Planned { commit, limits: limits.clone() },
        }
    }
}

type Applied = rusqlite::Result<Result<Committed, Refused>>;

/// Applies a commit, or returns the reason for refusing it. Adds the hints of an applied commit to `hints`.
pub(crate) fn commit(
    session: &mut Session<'_>,
    tenant: TenantId,
    prepared: &Prepared,
    hints: &mut Vec<Hint>,
) -> Applied {
    match prepared {
        Prepared::Step { commit, head, stored, places } => {
            let Some(step) = &commit.step else { return Ok(Ok(nothing())) };
            let moved = Moved { head, stored, places: places.as_deref() };
            plain_step(session, tenant, commit, step, &moved, hints)
        }
        Prepared::Create { commit, row, stored } => {
            let Some(new) = commit.create.first() else { return Ok(Ok(nothing())) };
            plain_create(session, tenant, commit, new, row, stored, hints)
        }
        Prepared::Planned { commit, limits } => {
            let mut rows = Locked { session, tenant };
            let plan = match plan::plan((**commit).clone(), &mut rows, limits)? {
                Ok(plan) => plan,
                Err(refused) => return Ok(Err(refused)),
            };
            hints.extend(plan.hints(tenant));
            write(session, tenant, plan).map(Ok)
        }
    }
}

fn nothing() -> Committed {
    Committed { head: None, created: Vec::new(), results: Vec::new(), sent: Vec::new() }
}

/// The new head and checkpoints of a plain step.
struct Moved<'a> {
    head: &'a Head,
    stored: &'a [Stored],
    places: Option<&'a str>,
}

fn plain_step(
    session: &mut Session<'_>,
    tenant: TenantId,
    commit: &Commit,
    step: &RunUpdate,
    moved: &Moved<'_>,
    hints: &mut Vec<Hint>,
) -> Applied {
    // Destructured without `..`, so that a new field does not compile until it is handled here.
    let Commit {
        id,
        at,
        step: _,
        create: _,
        send: _,
        handles: _,
        cells: _,
        links: _,
        actor: _,
        bindings: _,
        documents: _,
        keys: _,
        definitions,
        audit,
    } = commit;
    if !compare_and_set(session, tenant, *at, step, moved)? {
        let row = run_row(session.connection, tenant, step.head.run)?;
        let refused = refuse_step(row.as_ref(), step);
        let moved = || Refused::Moved {
            run: step.head.run,
            expected: step.head.revision,
            actual: step.head.revision,
        };
        return Ok(Err(refused.unwrap_or_else(moved)));
    }
    let run = step.head.run;
    for (version, stored) in (step.head.version.saturating_add(1)..).zip(moved.stored) {
        let checkpoint = checkpoint(run, version, stored);
        insert_checkpoint(session, tenant, *id, *at, &checkpoint)?;
    }
    for activation in &step.close {
        close_wait(session.connection, tenant, run, *activation)?;
    }
    for wait in &step.open {
        open_wait(session.connection, tenant, run, wait)?;
    }
    for shadow in &step.shadows {
        shadows::write(session.connection, tenant, run, shadow)?;
    }
    write_common_rows(session, tenant, *id, *at, definitions, audit, None)?;
    let wake = match moved.head.owner {
        None => woken(session.connection, tenant, *at, step)?,
        Some(_) => step.wake,
    };
    if sends_hint(moved.head.owner, wake, *at, is_unfenced(step)) {
        hints.push(Hint::Run(RunKey { tenant, run }));
    }
    Ok(Ok(Committed { head: Some(moved.head.clone()), ..nothing() }))
}

/// Returns the wake time of a run that has no owner after the step.
///
/// If the step releases the run, the row may hold an earlier wake time. It comes from a message that the owner had not
/// seen, and no other process has been woken for that message yet.
fn woken(
    connection: &Connection,
    tenant: TenantId,
    at: Timestamp,
    step: &RunUpdate,
) -> rusqlite::Result<Option<Timestamp>> {
    let due = step.wake.is_some_and(|wake| wake <= at);
    if due || step.head.owner.is_none() || step.status.is_final() {
        return Ok(step.wake);
    }
    let mut statement = connection.prepare_cached(sql::run_wake)?;
    let which = params![tenant.uuid().into_bytes(), step.head.run.uuid().into_bytes()];
    statement.query_row(which, |row| rows::instant(row, 0))
}

/// Updates the run's row if it has not changed since the decision. Returns whether it did.
fn compare_and_set(
    session: &mut Session<'_>,
    tenant: TenantId,
    at: Timestamp,
    step: &RunUpdate,
    moved: &Moved<'_>,
) -> rusqlite::Result<bool> {
    let RunUpdate {
        head,
        fence,
        in_order,
        next: _,
        status,
        error: _,
        wake,
        owner: _,
        ledger,
        definition: _,
        take: _,
        open: _,
        close: _,
        shadows: _,
    } = step;
    let after = moved.head;
    let (owner, new_fence) = ownership(step);
    let still = *status != Status::Failed
        && *status == head.status
        && *wake == head.wake
        && owner == head.owner
        && new_fence == head.fence;
    let (tenant, run) = (tenant.uuid(), head.run.uuid());
    let fence = fence.map(rows::int);
    let seen = in_order.then(|| rows::int(head.inbox_seen));
    let changed = if still {
        session.run_step.execute(params![
            tenant.as_bytes(),
            run.as_bytes(),
            fence,
            rows::int(head.revision),
            rows::int(after.version),
            moved.places,
            rows::int(after.chain.base),
            rows::int(after.chain.bytes),
            rows::blob(ledger.as_ref()),
            at.micros(),
            seen,
        ])?
    } else {
        session.run_commit.execute(params![
            tenant.as_bytes(),
            run.as_bytes(),
            fence,
            rows::int(head.revision),
            rows::int(after.version),
            moved.places,
            rows::int(after.chain.base),
            rows::int(after.chain.bytes),
            rows::blob(ledger.as_ref()),
            at.micros(),
            status.as_str(),
            rows::id(owner.map(|owner| owner.0)),
            rows::int(new_fence),
            rows::time(*wake),
            rows::int(head.inbox_seen),
            seen,
            step.stored_error(),
        ])?
    };
    Ok(changed == 1)
}

fn plain_create(
    session: &mut Session<'_>,
    tenant: TenantId,
    commit: &Commit,
    new: &NewRun,
    row: &RunRow,
    stored: &Stored,
    hints: &mut Vec<Hint>,
) -> Applied {
    let Commit {
        id,
        at,
        step: _,
        create: _,
        send: _,
        handles: _,
        cells: _,
        links: _,
        actor: _,
        bindings: _,
        documents: _,
        keys: _,
        definitions,
        audit,
    } = commit;
    if !put_run(&mut session.run_insert, tenant, row)? {
        return Ok(Err(Refused::RunExists { run: new.run }));
    }
    let checkpoint = checkpoint(new.run, new.version, stored);
    insert_checkpoint(session, tenant, *id, *at, &checkpoint)?;
    for wait in &new.open {
        open_wait(session.connection, tenant, new.run, wait)?;
    }
    for shadow in &new.shadows {
        shadows::write(session.connection, tenant, new.run, shadow)?;
    }
    write_common_rows(session, tenant, *id, *at, definitions, audit, None)?;
    if sends_hint(row.owner, row.wake, *at, false) {
        hints.push(Hint::Run(RunKey { tenant, run: new.run }));
    }
    Ok(Ok(Committed { created: vec![row.head(new.first.state.clone())], ..nothing() }))
}

/// Builds the checkpoint row of a commit without operations. The bytes are shared, not copied.
fn checkpoint(run: RunId, version: u64, stored: &Stored) -> CheckpointRow {
    CheckpointRow { run, version, stored: stored.clone(), results: None }
}

/// Writes the rows of a plan.
fn write(session: &mut Session<'_>, tenant: TenantId, plan: Plan) -> rusqlite::Result<Committed> {
    let Plan {
        commit,
        at,
        insert,
        update,
        checkpoints,
        put,
        take,
        open,
        close,
        clear_shadows,
        shadows,
        used,
        handles,
        cells,
        links,
        unlink,
        hide,
        documents,
        keys,
        definitions,
        audit,
        trace,
        unfenced: _,
        committed,
    } = plan;
    for row in &insert {
        put_run(&mut session.run_insert, tenant, row)?;
    }
    for row in &update {
        let mut statement = session.connection.prepare_cached(sql::run_write)?;
        put_run(&mut statement, tenant, row)?;
    }
    for row in &checkpoints {
        insert_checkpoint(session, tenant, commit, at, row)?;
    }
    for (run, seq) in take {
        delete_message(session.connection, tenant, run, seq)?;
    }
    for row in &put {
        insert_message(session.connection, tenant, row)?;
    }
    for (run, activation) in close {
        close_wait(session.connection, tenant, run, activation)?;
    }
    for (run, wait) in &open {
        open_wait(session.connection, tenant, *run, wait)?;
    }
    clear_shadows.iter().try_for_each(|run| handles::clear_shadows(session.connection, tenant, *run))?;
    for (run, shadow) in &shadows {
        shadows::write(session.connection, tenant, *run, shadow)?;
    }
    used.iter().try_for_each(|handle| handles::delete(session.connection, tenant, handle))?;
    handles.iter().try_for_each(|row| handles::put(session.connection, tenant, row))?;
    cells.into_iter().for_each(|cell| session.put_cell(tenant, cell));
    unlink.iter().try_for_each(|edge| links::delete(session.connection, tenant, edge))?;
    links.iter().try_for_each(|link| links::put(session.connection, tenant, link))?;
    for end in &hide {
        hide_document(session.connection, tenant, end)?;
    }
    for row in &documents {
        insert_document(session.connection, tenant, row)?;
    }
    for key in &keys {
        put_key(session, tenant, key)?;
    }
    write_common_rows(session, tenant, commit, at, &definitions, &audit, trace.as_ref())?;
    Ok(committed)
}

/// Writes a whole run row with `run_insert` or `run_write`. Returns whether a row was written.
fn put_run(statement: &mut Statement<'_>, tenant: TenantId, row: &RunRow) -> rusqlite::Result<bool> {
    let parent = row.parent.as_ref();
    let written = statement.execute(params![
        tenant.uuid().into_bytes(),
        row.run.uuid().into_bytes(),
        row.workflow.as_str(),
        row.definition.as_bytes(),
        rows::int(row.revision),
        rows::int(row.version),
        rows::int(row.fence),
        rows::id(row.owner.map(|owner| owner.0)),
        row.status.as_str(),
        rows::places(&row.places),
        rows::time(row.wake),
        rows::int(row.inbox_seq),
        rows::int(row.inbox_len),
        rows::int(row.chain.base),
        rows::int(row.chain.bytes),
        rows::blob(row.ledger.as_ref()),
        rows::id(parent.map(|parent| parent.run.uuid())),
        parent.map(|parent| rows::int(parent.activation)),
        parent.map(|parent| parent.child),
        row.root.uuid().into_bytes(),
        row.created_at.micros(),
        row.updated_at.micros(),
        row.is_unordered().then_some(1),
        row.error,
    ])?;
    Ok(written == 1)
}

fn insert_checkpoint(
    session: &mut Session<'_>,
    tenant: TenantId,
    commit: CommitId,
    at: Timestamp,
    row: &CheckpointRow,
) -> rusqlite::Result<()> {
    session.checkpoint_insert.execute(params![
        tenant.uuid().into_bytes(),
        row.run.uuid().into_bytes(),
        rows::int(row.version),
        rows::int(row.stored.chain.base),
        commit.0.into_bytes(),
        at.micros(),
        &row.stored.body[..],
        &row.stored.entry[..],
        rows::blob(row.results.as_ref()),
    ])?;
    Ok(())
}

fn insert_message(connection: &Connection, tenant: TenantId, row: &MessageRow) -> rusqlite::Result<()> {
    let MessageRow { run, message, counts } = row;
    connection.prepare_cached(sql::inbox_insert)?.execute(params![
        tenant.uuid().into_bytes(),
        run.uuid().into_bytes(),
        rows::int(message.seq),
        message.topic,
        &message.body[..],
        message.received_at.micros(),
        rows::time(message.expires_at),
        counts,
    ])?;
    Ok(())
}

fn delete_message(connection: &Connection, tenant: TenantId, run: RunId, seq: u64) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql::inbox_delete)?;
    statement.execute(params![tenant.uuid().into_bytes(), run.uuid().into_bytes(), rows::int(seq)])?;
    Ok(())
}

fn open_wait(
    connection: &Connection,
    tenant: TenantId,
    run: RunId,
    wait: &StoredWait,
) -> rusqlite::Result<()> {
    connection.prepare_cached(sql::wait_insert)?.execute(params![
        tenant.uuid().into_bytes(),
        run.uuid().into_bytes(),
        rows::int(wait.activation),
        wait.place.as_str(),
        wait.since.micros(),
        rows::time(wait.until),
        &wait.detail[..],
        wait.topic.as_deref(),
        rows::time(wait.due),
    ])?;
    Ok(())
}

fn close_wait(
    connection: &Connection,
    tenant: TenantId,
    run: RunId,
    activation: u64,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql::wait_delete)?;
    statement.execute(params![tenant.uuid().into_bytes(), run.uuid().into_bytes(), rows::int(activation)])?;
    Ok(())
}

fn hide_document(connection: &Connection, tenant: TenantId, end: &DocumentEnd) -> rusqlite::Result<()> {
    let DocumentEnd { run, key, version } = end;
    let mut statement = connection.prepare_cached(sql::document_hide)?;
    statement.execute(params![
        tenant.uuid().into_bytes(),
        run.uuid().into_bytes(),
        key,
        rows::int(*version)
    ])?;
    Ok(())
}

fn insert_document(connection: &Connection, tenant: TenantId, row: &DocumentRow) -> rusqlite::Result<()> {
    let DocumentRow { document, ordinal } = row;
    // A new document is visible from the version that writes it, and has no end yet.
    let Document { run, key, kind, body, tags, visible_from, visible_to: _, at } = document;
    connection.prepare_cached(sql::document_insert)?.execute(params![
        tenant.uuid().into_bytes(),
        run.uuid().into_bytes(),
        key,
        kind.as_str(),
        &body[..],
        rows::tags(tags),
        rows::int(*visible_from),
        rows::int(*ordinal),
        at.micros(),
    ])?;
    Ok(())
}

fn put_key(session: &mut Session<'_>, tenant: TenantId, key: &KeyRow) -> rusqlite::Result<()> {
    let KeyRow { operation, key, request, answer, results, lifetime, commit } = key;
    let (until, run) = rows::lifetime(*lifetime);
    session.key_put.execute(params![
        tenant.uuid().into_bytes(),
        operation,
        key,
        request,
        &answer[..],
        rows::blob(results.as_ref()),
        until,
        run,
        commit.0.into_bytes(),
    ])?;
    Ok(())
}

/// Writes the definitions and the audit rows of a commit. `trace` holds the results of its operations if they are
/// looked up in the audit trail.
fn write_common_rows(
    session: &mut Session<'_>,
    tenant: TenantId,
    commit: CommitId,
    at: Timestamp,
    definitions: &[StoredDefinition],
    audit: &[AuditRow],
    trace: Option<&Bytes>,
) -> rusqlite::Result<()> {
    let id = tenant.uuid().into_bytes();
    for (ordinal, AuditRow { operation, subject, actor, run, detail }) in audit.iter().enumerate() {
        session.audit_insert.execute(params![
            id,
            commit.0.into_bytes(),
            rows::int(ordinal as u64),
            at.micros(),
            operation,
            subject,
            actor,
            rows::id(run.map(RunId::uuid)),
            &detail[..],
            rows::blob(trace.filter(|_| ordinal == 0)),
        ])?;
    }
    if !audit.is_empty() {
        session.unsealed_put.execute(params![id, commit.0.into_bytes()])?;
    }
    for StoredDefinition { hash, workflow, version, body, publisher } in definitions {
        let mut statement = session.connection.prepare_cached(sql::definition_put)?;
        statement.execute(params![id, hash.as_bytes(), workflow.as_str(), version, &body[..], publisher])?;
    }
    Ok(())
}

/// Returns a run's row. If it is unreadable, the error names the run.
pub(crate) fn run_row(
    connection: &Connection,
    tenant: TenantId,
    run: RunId,
) -> rusqlite::Result<Option<RunRow>> {
    let mut statement = connection.prepare_cached(sql::run_get)?;
    let which = params![tenant.uuid().into_bytes(), run.uuid().into_bytes()];
    named(statement.query_row(which, rows::run).optional(), |why| BadRow::run(run, why))
}

/// The rows as the writer sees them. No other connection writes during its transaction.
struct Locked<'s, 'c> {
    session: &'s mut Session<'c>,
    tenant: TenantId,
}

impl Rows for Locked<'_, '_> {
    type Error = rusqlite::Error;

    fn is_bad(&self, error: &rusqlite::Error) -> bool {
        named_in(error).is_some()
    }

    fn run(&mut self, run: RunId) -> rusqlite::Result<Option<RunRow>> {
        run_row(self.session.connection, self.tenant, run)
    }

    fn message(&mut self, run: RunId, seq: u64) -> rusqlite::Result<Option<bool>> {
        let mut statement = self.session.connection.prepare_cached(sql::inbox_get)?;
        let which = params![self.tenant.uuid().into_bytes(), run.uuid().into_bytes(), rows::int(seq)];
        statement.query_row(which, |row| row.get(0)).optional()
    }

    fn handle(&mut self, handle: &HandleHash) -> rusqlite::Result<Option<HandleRow>> {
        handles::get(self.session.connection, self.tenant, handle)
    }

    fn key(&mut self, operation: &str, key: &str) -> rusqlite::Result<Option<KeyRow>> {
        let mut statement = self.session.connection.prepare_cached(sql::key_get)?;
        let which = params![self.tenant.uuid().into_bytes(), operation, key];
        let found = statement.query_row(which, |row| rows::key(row, operation, key)).optional();
        named(found, |why| plan::bad_key(operation, key, why))
    }

    fn cell(&mut self, key: &CellKey) -> rusqlite::Result<Option<Cell>> {
        self.session.cell(self.tenant, key)
    }
    fn has_audit_rows(&mut self, commit: CommitId) -> rusqlite::Result<bool> {
        let which = params![self.tenant.uuid().into_bytes(), commit.0.into_bytes()];
        self.session.audit_trace.exists(which)
    }

    fn link(&mut self, edge: &LinkEdge) -> rusqlite::Result<Option<Link>> {
        links::get(self.session.connection, self.tenant, edge)
    }

    fn edges(&mut self, ends: &LinkEnds, most: usize) -> rusqlite::Result<Vec<LinkEdge>> {
        links::edges(self.session.connection, self.tenant, ends, most)
    }
}
