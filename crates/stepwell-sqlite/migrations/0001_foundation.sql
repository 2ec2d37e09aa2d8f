-- Creates all tables: runs with their checkpoints, documents, inboxes, waits and shadow columns; handles, cells, links,
-- keys and definitions; the audit trail and its seals; processes.

-- One narrow row per run; also the work queue.
create table runs (
    tenant            blob    not null,
    id                blob    not null,
    workflow          text    not null,
    definition        blob    not null,
    revision          integer not null,
    version           integer not null,
    fence             integer not null,
    owner             blob,
    status            text    not null,
    places            text    not null,
    wake_at           integer,
    inbox_seq         integer not null,
    inbox_len         integer not null,
    chain_base        integer not null,
    chain_bytes       integer not null,
    ledger            blob,
    parent_run        blob,
    parent_activation integer,
    parent_child      integer,
    root              blob    not null,
    created_at        integer not null,
    updated_at        integer not null,
    -- The code of the error that stopped a failed run.
    error             text,
    -- 1 if the id does not contain the time of creation, otherwise null.
    unordered         integer
) strict;
create unique index runs_by_id on runs (tenant, id);
create index runs_due on runs (tenant, wake_at, id) where owner is null and wake_at is not null;
create index runs_owned on runs (tenant, owner, id) where owner is not null;
create index runs_by_workflow on runs (tenant, workflow, id);
create index runs_by_parent on runs (tenant, parent_run, id) where parent_run is not null;
create index runs_by_root on runs (tenant, root, id) where parent_run is not null;
create index runs_by_error on runs (tenant, error, id) where error is not null;
create index runs_unordered on runs (tenant, unordered, id) where unordered = 1;
create index runs_ended on runs (tenant, workflow, updated_at, id) where status in ('completed', 'cancelled') and wake_at is null;
create index runs_not_running on runs (tenant, status, id) where status = 'pending' or status = 'suspended' or status = 'failed';

-- Append-only. A rowid table, because rows of this size cost twice as much in a WITHOUT ROWID table.
create table checkpoints (
    tenant    blob    not null,
    run       blob    not null,
    version   integer not null,
    base      integer not null,
    commit_id blob    not null,
    at        integer not null,
    body      blob    not null,
    entry     blob    not null,
    results   blob
) strict;
create unique index checkpoints_by_version on checkpoints (tenant, run, version);

-- Documents of runs, with the first and last version at which each is visible. NULL as the last version: still visible.
create table documents (
    tenant       blob    not null,
    run          blob    not null,
    key          text    not null,
    kind         text    not null,
    body         blob    not null,
    tags         text    not null,
    visible_from integer not null,
    visible_to   integer,
    ordinal      integer not null,
    at           integer not null
) strict;
create unique index documents_by_key on documents (tenant, run, key, visible_from);
create index documents_by_end on documents (tenant, run, visible_to, visible_from, ordinal);

create table inbox (
    tenant      blob    not null,
    run         blob    not null,
    seq         integer not null,
    topic       text    not null,
    body        blob    not null,
    received_at integer not null,
    expires_at  integer,
    counts      integer not null
) strict;
create unique index inbox_by_seq on inbox (tenant, run, seq);

create table waits (
    tenant     blob    not null,
    run        blob    not null,
    activation integer not null,
    place      text    not null,
    since      integer not null,
    until      integer,
    detail     blob    not null,
    topic      text,
    due        integer
) strict;
create unique index waits_by_run on waits (tenant, run, activation);
create index waits_by_topic on waits (tenant, topic, run, activation) where topic is not null;
create index waits_by_due on waits (tenant, due, run, activation) where due is not null;

-- Shadow columns: values from the context of a run that runs are filtered by. One of the three value columns is set.
create table shadows (
    tenant     blob    not null,
    run        blob    not null,
    name       text    not null,
    workflow   text    not null,
    as_text    text,
    as_number  real,
    as_boolean integer
) strict;
create unique index shadows_by_run on shadows (tenant, run, name);
create index shadows_by_text on shadows (tenant, workflow, name, as_text, run) where as_text is not null;
create index shadows_by_number on shadows (tenant, workflow, name, as_number, run) where as_number is not null;
create index shadows_by_boolean on shadows (tenant, workflow, name, as_boolean, run) where as_boolean is not null;

-- Rows found by the hash of a secret: the state of a flow, or an answer link to a wait of a run.
create table handles (
    tenant     blob    not null,
    handle     blob    not null,
    kind       text    not null,
    run        blob    not null,
    workflow   text    not null,
    definition blob    not null,
    state      blob    not null,
    expires_at integer,
    owner      blob,
    fence      integer not null,
    deliver_at integer,
    delivery   blob,
    created_at integer not null,
    created_by text,
    updated_at integer not null,
    updated_by text,
    commit_id  blob    not null
) strict;
create unique index handles_by_handle on handles (tenant, handle);
create index handles_by_run on handles (tenant, run, handle);
create index handles_by_workflow on handles (tenant, workflow, run, handle);
create index handles_expiring on handles (tenant, expires_at, handle) where expires_at is not null;
create index handles_undelivered on handles (tenant, deliver_at, handle) where deliver_at is not null;

-- Scoped state and the key-value store. A row without a value is a tombstone.
create table cells (
    tenant     blob    not null,
    space      text    not null,
    owner      text    not null,
    key        text    not null,
    value      text,
    value_type text    not null,
    revision   integer not null,
    expires_at integer,
    created_at integer not null,
    updated_at integer not null,
    created_by blob
) strict;
create unique index cells_by_key on cells (tenant, space, owner, key);
create index cells_expiring on cells (tenant, expires_at, space, owner, key) where expires_at is not null;
create index cells_tombstones on cells (tenant, space, owner, updated_at, key) where value is null;

-- Links between entities of other systems, indexed from both ends.
create table links (
    tenant     blob    not null,
    namespace  text    not null,
    from_type  text    not null,
    from_id    text    not null,
    to_type    text    not null,
    to_id      text    not null,
    relation   text    not null,
    id         blob    not null,
    attributes text    not null,
    created_at integer not null,
    updated_at integer not null,
    created_by blob
) strict;
create unique index links_by_edge on links (tenant, namespace, from_type, from_id, to_type, to_id, relation);
create index links_by_end on links (tenant, namespace, to_type, to_id, from_type, from_id, relation);

create table idempotency (
    tenant    blob not null,
    operation text not null,
    key       text not null,
    request   blob not null,
    answer    blob not null,
    results   blob,
    until     integer,
    run       blob,
    commit_id blob not null
) strict;
create unique index idempotency_by_key on idempotency (tenant, operation, key);
create index idempotency_expiring on idempotency (tenant, until, operation, key) where until is not null;
create index idempotency_of_run on idempotency (tenant, run) where run is not null;

-- Workflow definitions by content hash. Rows never change.
create table definitions (
    tenant   blob    not null,
    hash     blob    not null,
    workflow text    not null,
    version  integer not null,
    body     blob    not null,
    publisher text
) strict;
create unique index definitions_by_hash on definitions (tenant, hash);
create index definitions_by_workflow on definitions (tenant, workflow, version, hash);

-- Append-only.
create table audit (
    tenant    blob    not null,
    commit_id blob    not null,
    ordinal   integer not null,
    at        integer not null,
    operation text    not null,
    subject   text    not null,
    actor     text,
    run       blob,
    detail    blob    not null,
    results   blob
) strict;
create unique index audit_by_commit on audit (tenant, commit_id, ordinal);
create index audit_by_run on audit (tenant, run, commit_id, ordinal) where run is not null;

-- Commits whose audit rows have no seal yet.
create table unsealed (
    tenant    blob not null,
    commit_id blob not null,
    primary key (tenant, commit_id)
) strict, without rowid;

-- Append-only. A seal is a hash over audit rows and over the seal before it.
create table seals (
    tenant        blob    not null,
    number        integer not null,
    at            integer not null,
    previous_hash blob    not null,
    rows          blob    not null,
    hash          blob    not null
) strict;
create unique index seals_by_number on seals (tenant, number);

-- One row per engine process with its heartbeat, which is the lease on its runs.
create table processes (
    id          blob    not null primary key,
    lease_until integer not null
) strict;
