//! Rows to write, stored by column. Each column is one array parameter, so that one statement writes any number of
//! rows.

use stepwell_core::shadow::ShadowValue;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::delta::Stored;
use stepwell_store::document::{DocumentEnd, DocumentRow};
use stepwell_store::plan::{CheckpointRow, KeyRow, MessageRow};
use stepwell_store::shadow::split;
use stepwell_store::{
    AuditRow, Cell, CommitId, HandleHash, HandleRow, Head, Link, LinkEdge, RunRow, RunUpdate, ShadowWrite,
    StoredDefinition, StoredWait,
};
use uuid::Uuid;

use crate::connection::Param;
use crate::records::{Records, field};
use crate::rows;

/// A statement with its parameters.
pub(crate) struct BoundStatement<'a> {
    pub(crate) sql: &'static str,
    pub(crate) params: Vec<Param<'a>>,
}

/// The position of the checkpoint that shows whether a commit was applied; `None` if the commit is certain to be
/// applied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trace {
    pub(crate) commit: CommitId,
    pub(crate) at: Option<(RunId, u64)>,
}

impl Trace {
    fn run(self) -> Option<Uuid> {
        self.at.map(|(run, _)| run.uuid())
    }

    fn version(self) -> Option<i64> {
        self.at.map(|(_, version)| rows::int(version))
    }
}

macro_rules! columns {
    ($(#[$meta:meta])* $name:ident { $($column:ident: $kind:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Default)]
        pub(crate) struct $name<'a> {
            $($column: Vec<$kind>,)+
            rows: std::marker::PhantomData<&'a ()>,
        }

        impl<'a> $name<'a> {
            #[allow(clippy::too_many_arguments)]
            fn add(&mut self, $($column: $kind),+) {
                $(self.$column.push($column);)+
            }

            /// Returns a statement whose parameters are the tenant and then these columns.
            pub(crate) fn bound<'s>(&'s self, sql: &'static str, tenant: &'s Uuid) -> BoundStatement<'s> {
                BoundStatement { sql, params: vec![tenant $(, &self.$column)+] }
            }

            #[allow(dead_code)]
            pub(crate) fn is_empty(&self) -> bool {
                [$(self.$column.is_empty()),+].contains(&true)
            }
        }
    };
}

/// Lets columns also be passed as an array of rows.
macro_rules! recorded {
    ($name:ident { $first:ident $(, $column:ident)* }) => {
        impl $name<'_> {
            /// Returns the rows as one array of composite values.
            pub(crate) fn records(&self) -> Records {
                let fields = [stringify!($first) $(, stringify!($column))*].len() as i32;
                let mut records = Records::default();
                for row in 0..self.$first.len() {
                    records.add(fields, |out| {
                        field(&self.$first[row], out);
                        $(field(&self.$column[row], out);)*
                    });
                }
                records
            }
        }
    };
}

columns! {
    /// Rows of the table `runs`.
    Runs {
        id: Uuid, workflow: &'a str, definition: &'a [u8], revision: i64, version: i64, fence: i64,
        owner: Option<Uuid>, status: &'static str, places: String, wake: Option<i64>, inbox_seq: i64,
        inbox_len: i64, chain_base: i64, chain_bytes: i64, ledger: Option<&'a [u8]>, parent_run: Option<Uuid>,
        parent_activation: Option<i64>, parent_child: Option<i64>, root: Uuid, created_at: i64, updated_at: i64,
        error: Option<&'a str>, unordered: Option<i16>,
    }
}

recorded! {
    Runs {
        id, workflow, definition, revision, version, fence, owner, status, places, wake, inbox_seq, inbox_len,
        chain_base, chain_bytes, ledger, parent_run, parent_activation, parent_child, root, created_at, updated_at,
        error, unordered
    }
}

impl<'a> Runs<'a> {
    pub(crate) fn push(&mut self, row: &'a RunRow, places: String) {
        // Destructured without `..`, so that a new field does not compile until it is handled here.
        let RunRow {
            run,
            workflow,
            definition,
            revision,
            version,
            fence,
            owner,
            status,
            places: _,
            wake,
            inbox_seq,
            inbox_len,
            chain,
            ledger,
            parent,
            root,
            created_at,
            updated_at,
            error,
        } = row;
        let parent = parent.as_ref();
        self.add(
            run.uuid(),
            workflow.as_str(),
            definition.as_bytes(),
            rows::int(*revision),
            rows::int(*version),
            rows::int(*fence),
            owner.map(|owner| owner.0),
            status.as_str(),
            places,
            rows::time(*wake),
            rows::int(*inbox_seq),
            rows::int(*inbox_len),
            rows::int(chain.base),
            rows::int(chain.bytes),
            ledger.as_deref(),
            parent.map(|parent| parent.run.uuid()),
            parent.map(|parent| rows::int(parent.activation)),
            parent.map(|parent| parent.child.into()),
            root.uuid(),
            created_at.micros(),
            updated_at.micros(),
            error.as_deref(),
            row.is_unordered().then_some(1),
        );
    }

    /// Adds the row that a step proposes. `commit_spread.sql` explains the meaning of its columns.
    pub(crate) fn propose(&mut self, step: &'a RunUpdate, head: &Head, places: String, at: Timestamp) {
        let RunUpdate {
            head: before,
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
        let run = before.run.uuid();
        self.add(
            run,
            "",
            &[],
            rows::int(head.revision),
            rows::int(head.version),
            rows::int(head.fence),
            head.owner.map(|owner| owner.0),
            status.as_str(),
            places,
            rows::time(*wake),
            rows::int(before.inbox_seen),
            (*in_order).into(),
            rows::int(head.chain.base),
            rows::int(head.chain.bytes),
            ledger.as_deref(),
            None,
            fence.map(rows::int),
            None,
            run,
            0,
            at.micros(),
            step.stored_error(),
            None,
        );
    }
}

columns! {
    /// Rows of the table `checkpoints`, without results.
    Plain {
        run: Uuid, version: i64, base: i64, commit: Uuid, at: i64, body: &'a [u8], entry: &'a [u8],
    }
}

recorded! { Plain { run, version, base, commit, at, body, entry } }

impl<'a> Plain<'a> {
    pub(crate) fn push(
        &mut self,
        run: RunId,
        version: u64,
        stored: &'a Stored,
        commit: CommitId,
        at: Timestamp,
    ) {
        let Stored { body, entry, chain } = stored;
        let base = rows::int(chain.base);
        self.add(run.uuid(), rows::int(version), base, commit.0, at.micros(), body, entry);
    }
}

columns! {
    /// Rows of the table `checkpoints`.
    Checkpoints {
        run: Uuid, version: i64, base: i64, commit: Uuid, at: i64, body: &'a [u8], entry: &'a [u8],
        results: Option<&'a [u8]>,
    }
}

impl<'a> Checkpoints<'a> {
    pub(crate) fn push(&mut self, row: &'a CheckpointRow, commit: CommitId, at: Timestamp) {
        let CheckpointRow { run, version, stored: Stored { body, entry, chain }, results } = row;
        let (version, base) = (rows::int(*version), rows::int(chain.base));
        self.add(run.uuid(), version, base, commit.0, at.micros(), body, entry, results.as_deref());
    }
}

columns! {
    /// Rows of the table `inbox`.
    Messages {
        run: Uuid, seq: i64, topic: &'a str, body: &'a [u8], received_at: i64, expires_at: Option<i64>,
        counts: bool,
    }
}

impl<'a> Messages<'a> {
    pub(crate) fn push(&mut self, row: &'a MessageRow) {
        let MessageRow { run, message, counts } = row;
        self.add(
            run.uuid(),
            rows::int(message.seq),
            &message.topic,
            &message.body,
            message.received_at.micros(),
            rows::time(message.expires_at),
            *counts,
        );
    }
}

columns! {
    /// Numbers of messages to delete, with their runs.
    Numbers { run: Uuid, number: i64 }
}

impl Numbers<'_> {
    pub(crate) fn push(&mut self, run: RunId, number: u64) {
        self.add(run.uuid(), rows::int(number));
    }
}

columns! {
    /// Waits to close, with the trace of their commit.
    Closed { run: Uuid, activation: i64, commit: Uuid, version: Option<i64> }
}

impl Closed<'_> {
    pub(crate) fn push(&mut self, run: RunId, activation: u64, trace: Trace) {
        self.add(run.uuid(), rows::int(activation), trace.commit.0, trace.version());
    }
}

columns! {
    /// Waits to open, with the trace of their commit.
    Opened {
        run: Uuid, activation: i64, place: &'a str, since: i64, until: Option<i64>, detail: &'a [u8],
        topic: Option<&'a str>, due: Option<i64>, commit: Uuid, version: Option<i64>,
    }
}

impl<'a> Opened<'a> {
    /// Adds waits. If several have the same activation, only the last is added.
    pub(crate) fn push_all(&mut self, run: RunId, waits: &'a [StoredWait], trace: Trace) {
        for (index, wait) in waits.iter().enumerate() {
            let StoredWait { activation, place, since, until, detail, topic, due } = wait;
            if waits[index + 1..].iter().any(|later| later.activation == *activation) {
                continue;
            }
            self.add(
                run.uuid(),
                rows::int(*activation),
                place.as_str(),
                since.micros(),
                rows::time(*until),
                detail,
                topic.as_deref(),
                rows::time(*due),
                trace.commit.0,
                trace.version(),
            );
        }
    }
}

columns! {
    /// Shadow columns to set, with the trace of their commit.
    Shaded {
        run: Uuid, name: &'a str, workflow: &'a str, text: Option<&'a str>, number: Option<f64>, boolean: Option<bool>,
        commit: Uuid, version: Option<i64>,
    }
}

impl<'a> Shaded<'a> {
    pub(crate) fn push(
        &mut self,
        run: RunId,
        (workflow, name): (&'a Name, &'a Name),
        value: &'a ShadowValue,
        trace: Trace,
    ) {
        let (text, number, boolean) = split(value);
        let version = trace.version();
        self.add(run.uuid(), name, workflow, text, number, boolean, trace.commit.0, version);
    }
}

columns! {
    /// Shadow columns to clear, with the trace of their commit.
    Unshaded { run: Uuid, name: &'a str, commit: Uuid, version: Option<i64> }
}

/// Shadow columns to set and to clear.
#[derive(Default)]
pub(crate) struct Shadows<'a> {
    pub(crate) put: Shaded<'a>,
    pub(crate) clear: Unshaded<'a>,
}

impl<'a> Shadows<'a> {
    /// Adds writes. If several change the same column, only the last is added.
    pub(crate) fn push_all(&mut self, run: RunId, writes: &'a [ShadowWrite], trace: Trace) {
        for (index, write) in writes.iter().enumerate() {
            let ShadowWrite { workflow, name, value } = write;
            if writes[index + 1..].iter().any(|later| later.name == *name) {
                continue;
            }
            match value {
                Some(value) => self.put.push(run, (workflow, name), value, trace),
                None => self.clear.add(run.uuid(), name, trace.commit.0, trace.version()),
            }
        }
    }
}

columns! {
    /// Rows of the table `handles`.
    Handles {
        handle: &'a [u8], kind: &'static str, run: Uuid, workflow: &'a str, definition: &'a [u8], state: &'a [u8],
        expires_at: Option<i64>, owner: Option<Uuid>, fence: i64, deliver_at: Option<i64>, delivery: Option<&'a [u8]>,
        created_at: i64, created_by: Option<&'a str>, updated_at: i64, updated_by: Option<&'a str>, commit: Uuid,
    }
}

impl<'a> Handles<'a> {
    pub(crate) fn push(&mut self, row: &'a HandleRow) {
        // Destructured without `..`, so that a new field does not compile until it is handled here.
        let HandleRow {
            handle,
            kind,
            run,
            workflow,
            definition,
            state,
            expires_at,
            owner,
            fence,
            deliver_at,
            delivery,
            created_at,
            created_by,
            updated_at,
            updated_by,
            commit,
        } = row;
        self.add(
            &handle.0,
            kind.as_str(),
            run.uuid(),
            workflow.as_str(),
            definition.as_bytes(),
            state,
            rows::time(*expires_at),
            owner.map(|owner| owner.0),
            rows::int(*fence),
            rows::time(*deliver_at),
            delivery.as_deref(),
            created_at.micros(),
            created_by.as_deref(),
            updated_at.micros(),
            updated_by.as_deref(),
            commit.0,
        );
    }
}

columns! {
    /// Hashes of handles to delete.
    Hashes { handle: &'a [u8] }
}

impl<'a> Hashes<'a> {
    pub(crate) fn push(&mut self, handle: &'a HandleHash) {
        self.add(&handle.0);
    }
}

columns! {
    /// Rows of the table `cells`.
    Cells {
        space: &'static str, owner: &'a str, key: &'a str, value: Option<String>, value_type: &'static str,
        revision: i64, expires_at: Option<i64>, created_at: i64, updated_at: i64, created_by: Option<Uuid>,
    }
}

impl<'a> Cells<'a> {
    pub(crate) fn push(&mut self, cell: &'a Cell) {
        // A damaged cell is never written: it is overwritten by a new value, or stays unchanged.
        let Cell {
            key,
            value,
            value_type,
            revision,
            expires_at,
            created_at,
            updated_at,
            created_by,
            damage: _,
        } = cell;
        self.add(
            key.space.as_str(),
            &key.owner,
            &key.key,
            value.as_ref().map(ToString::to_string),
            value_type.as_str(),
            rows::int(*revision),
            rows::time(*expires_at),
            created_at.micros(),
            updated_at.micros(),
            created_by.map(RunId::uuid),
        );
    }
}

columns! {
    /// Rows of the table `links`.
    Links {
        namespace: &'a str, from_type: &'a str, from_id: &'a str, to_type: &'a str, to_id: &'a str, relation: &'a str,
        id: Uuid, attributes: String, created_at: i64, updated_at: i64, created_by: Option<Uuid>,
    }
}

impl<'a> Links<'a> {
    pub(crate) fn push(&mut self, link: &'a Link) {
        let Link { edge, id, attributes, created_at, updated_at, created_by } = link;
        let (from, to) = (edge.from(), edge.to());
        self.add(
            edge.namespace(),
            from.kind(),
            from.id(),
            to.kind(),
            to.id(),
            edge.relation(),
            *id,
            attributes.to_string(),
            created_at.micros(),
            updated_at.micros(),
            created_by.map(RunId::uuid),
        );
    }
}

columns! {
    /// Edges of links to delete.
    Edges {
        namespace: &'a str, from_type: &'a str, from_id: &'a str, to_type: &'a str, to_id: &'a str, relation: &'a str,
    }
}

impl<'a> Edges<'a> {
    pub(crate) fn push(&mut self, edge: &'a LinkEdge) {
        let (from, to) = (edge.from(), edge.to());
        self.add(edge.namespace(), from.kind(), from.id(), to.kind(), to.id(), edge.relation());
    }
}

columns! {
    /// Documents to end, with the version at which they end.
    Hidden { run: Uuid, key: &'a str, version: i64 }
}

impl<'a> Hidden<'a> {
    pub(crate) fn push(&mut self, end: &'a DocumentEnd) {
        let DocumentEnd { run, key, version } = end;
        self.add(run.uuid(), key, rows::int(*version));
    }
}

columns! {
    /// Rows of the table `documents`.
    Documents {
        run: Uuid, key: &'a str, kind: &'a str, body: &'a [u8], tags: String, visible_from: i64, ordinal: i64,
        at: i64,
    }
}

impl<'a> Documents<'a> {
    pub(crate) fn push(&mut self, row: &'a DocumentRow) {
        let DocumentRow { document, ordinal } = row;
        // A new document is visible from the version that writes it, and has no end yet.
        let stepwell_store::Document { run, key, kind, body, tags, visible_from, visible_to: _, at } =
            document;
        let (from, ordinal) = (rows::int(*visible_from), rows::int(*ordinal));
        self.add(run.uuid(), key, kind.as_str(), body, rows::tags(tags), from, ordinal, at.micros());
    }
}

columns! {
    /// Rows of the table `idempotency`.
    Keys {
        operation: &'a str, key: &'a str, request: &'a [u8], answer: &'a [u8], results: Option<&'a [u8]>,
        until: Option<i64>, run: Option<Uuid>, commit: Uuid,
    }
}

impl<'a> Keys<'a> {
    pub(crate) fn push(&mut self, row: &'a KeyRow) {
        let KeyRow { operation, key, request, answer, results, lifetime, commit } = row;
        let (until, run) = rows::lifetime(*lifetime);
        self.add(operation, key, request, answer, results.as_deref(), until, run, commit.0);
    }
}

columns! {
    /// Rows of the table `definitions`, with the trace of their commit.
    Definitions {
        hash: &'a [u8], workflow: &'a str, version: i64, body: &'a [u8], publisher: Option<&'a str>, commit: Uuid,
        trace: Option<Uuid>, trace_version: Option<i64>,
    }
}

impl<'a> Definitions<'a> {
    pub(crate) fn push(&mut self, definition: &'a StoredDefinition, trace: Trace) {
        let StoredDefinition { hash, workflow, version, body, publisher } = definition;
        let version = (*version).into();
        self.add(
            hash.as_bytes(),
            workflow.as_str(),
            version,
            body,
            publisher.as_deref(),
            trace.commit.0,
            trace.run(),
            trace.version(),
        );
    }
}

columns! {
    /// Rows of the table `audit`, with the trace of their commit.
    Audit {
        commit: Uuid, ordinal: i64, at: i64, operation: &'a str, subject: &'a str, actor: Option<&'a str>,
        run: Option<Uuid>, detail: &'a [u8], results: Option<&'a [u8]>, trace: Option<Uuid>, version: Option<i64>,
    }
}

impl<'a> Audit<'a> {
    /// Adds the audit rows of a commit. The first row gets the results of its operations, if they are looked up there.
    pub(crate) fn push_all(
        &mut self,
        audit: &'a [AuditRow],
        at: Timestamp,
        results: Option<&'a [u8]>,
        trace: Trace,
    ) {
        for (ordinal, AuditRow { operation, subject, actor, run, detail }) in (0..).zip(audit) {
            self.add(
                trace.commit.0,
                ordinal,
                at.micros(),
                operation,
                subject,
                actor.as_deref(),
                run.map(RunId::uuid),
                detail,
                results.filter(|_| ordinal == 0),
                trace.run(),
                trace.version(),
            );
        }
    }
}
