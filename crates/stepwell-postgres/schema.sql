-- Creates all tables: runs with their checkpoints, documents, inboxes, waits and shadow columns; handles, cells, links,
-- keys and definitions; the audit trail and its seals; processes.
-- Every key starts with the tenant, so that each tenant's rows can be on one node. Text is compared by bytes.

-- One narrow row per run; also the work queue. No index contains a column that changes at every step, so a step writes
-- no index. The free space in the pages is for the row versions of running runs.
create table runs (
    tenant            uuid     not null,
    id                uuid     not null,
    workflow          text     collate "C" not null,
    definition        bytea    not null,
    revision          bigint   not null,
    version           bigint   not null,
    fence             bigint   not null,
    owner             uuid,
    status            text     collate "C" not null,
    places            text     not null,
    wake_at           bigint,
    inbox_seq         bigint   not null,
    inbox_len         bigint   not null,
    chain_base        bigint   not null,
    chain_bytes       bigint   not null,
    ledger            bytea,
    parent_run        uuid,
    parent_activation bigint,
    parent_child      bigint,
    root              uuid     not null,
    created_at        bigint   not null,
    updated_at        bigint   not null,
    ended_at          bigint,
    -- The code of the error that stopped a failed run.
    error             text     collate "C",
    -- 1 if the id does not contain the time of creation, otherwise null.
    unordered         smallint,
    constraint runs_by_id primary key (tenant, id)
) with (fillfactor = 70);
create index runs_due on runs (tenant, wake_at, id) where owner is null and wake_at is not null;
create index runs_owned on runs (tenant, owner, id) where owner is not null;
create index runs_by_workflow on runs (tenant, workflow, id);
create index runs_by_parent on runs (tenant, parent_run, id) where parent_run is not null;
create index runs_by_root on runs (tenant, root, id) where parent_run is not null;
create index runs_by_error on runs (tenant, error, id) where error is not null;
create index runs_unordered on runs (tenant, unordered, id) where unordered = 1;
create index runs_ended on runs (tenant, workflow, ended_at, id) where ended_at is not null and wake_at is null;
create index runs_not_running on runs (tenant, status, id) where status = 'pending' or status = 'suspended' or status = 'failed';

-- Append-only.
create table checkpoints (
    tenant    uuid   not null,
    run       uuid   not null,
    version   bigint not null,
    base      bigint not null,
    commit_id uuid   not null,
    at        bigint not null,
    body      bytea  not null,
    entry     bytea  not null,
    results   bytea,
    constraint checkpoints_by_version primary key (tenant, run, version)
);
-- The stored states are compressed already.
alter table checkpoints alter column body set storage external, alter column entry set storage external;

-- Documents of runs, with the first and last version at which each is visible. NULL as the last version: still visible.
create table documents (
    tenant       uuid   not null,
    run          uuid   not null,
    key          text   collate "C" not null,
    kind         text   collate "C" not null,
    body         bytea  not null,
    tags         text   not null,
    visible_from bigint not null,
    visible_to   bigint,
    ordinal      bigint not null,
    at           bigint not null,
    constraint documents_by_key primary key (tenant, run, key, visible_from)
);
create index documents_by_end on documents (tenant, run, visible_to, visible_from, ordinal);

create table inbox (
    tenant      uuid    not null,
    run         uuid    not null,
    seq         bigint  not null,
    topic       text    not null,
    body        bytea   not null,
    received_at bigint  not null,
    expires_at  bigint,
    counts      boolean not null,
    constraint inbox_by_seq primary key (tenant, run, seq)
);

create table waits (
    tenant     uuid   not null,
    run        uuid   not null,
    activation bigint not null,
    place      text   not null,
    since      bigint not null,
    until      bigint,
    detail     bytea  not null,
    topic      text   collate "C",
    due        bigint,
    constraint waits_by_run primary key (tenant, run, activation)
);
create index waits_by_topic on waits (tenant, topic, run, activation) where topic is not null;
create index waits_by_due on waits (tenant, due, run, activation) where due is not null;

-- Shadow columns: values from the context of a run that runs are filtered by. One of the three value columns is set.
create table shadows (
    tenant     uuid    not null,
    run        uuid    not null,
    name       text    collate "C" not null,
    workflow   text    collate "C" not null,
    as_text    text    collate "C",
    as_number  double precision,
    as_boolean boolean,
    constraint shadows_by_run primary key (tenant, run, name)
);
create index shadows_by_text on shadows (tenant, workflow, name, as_text, run) where as_text is not null;
create index shadows_by_number on shadows (tenant, workflow, name, as_number, run) where as_number is not null;
create index shadows_by_boolean on shadows (tenant, workflow, name, as_boolean, run) where as_boolean is not null;

-- Rows found by the hash of a secret: the state of a flow, or an answer link to a wait of a run. No index contains a
-- column that a reservation changes; the free space in the pages is for reservations.
create table handles (
    tenant     uuid   not null,
    handle     bytea  not null,
    kind       text   collate "C" not null,
    run        uuid   not null,
    workflow   text   collate "C" not null,
    definition bytea  not null,
    state      bytea  not null,
    expires_at bigint,
    owner      uuid,
    fence      bigint not null,
    deliver_at bigint,
    delivery   bytea,
    created_at bigint not null,
    created_by text,
    updated_at bigint not null,
    updated_by text,
    commit_id  uuid   not null,
    constraint handles_by_handle primary key (tenant, handle)
) with (fillfactor = 70);
create index handles_by_run on handles (tenant, run, handle);
create index handles_by_workflow on handles (tenant, workflow, run, handle);
create index handles_expiring on handles (tenant, expires_at, handle) where expires_at is not null;
create index handles_undelivered on handles (tenant, deliver_at, handle) where deliver_at is not null;

-- Scoped state and the key-value store. A row without a value is a tombstone. No index contains a column that changes at
-- every write, so a write to a hot key writes no index.
create table cells (
    tenant       uuid   not null,
    space        text   collate "C" not null,
    owner        text   collate "C" not null,
    key          text   collate "C" not null,
    value        text,
    value_type   text   not null,
    revision     bigint not null,
    expires_at   bigint,
    created_at   bigint not null,
    updated_at   bigint not null,
    created_by   uuid,
    is_tombstone boolean generated always as (value is null) stored,
    constraint cells_by_key primary key (tenant, space, owner, key)
) with (fillfactor = 70);
create index cells_expiring on cells (tenant, expires_at, space, owner, key) where expires_at is not null;
create index cells_tombstones on cells (tenant, space, owner, key) where is_tombstone;

-- Links between entities of other systems, indexed from both ends.
create table links (
    tenant     uuid   not null,
    namespace  text   collate "C" not null,
    from_type  text   collate "C" not null,
    from_id    text   collate "C" not null,
    to_type    text   collate "C" not null,
    to_id      text   collate "C" not null,
    relation   text   collate "C" not null,
    id         uuid   not null,
    attributes text   not null,
    created_at bigint not null,
    updated_at bigint not null,
    created_by uuid,
    constraint links_by_edge primary key (tenant, namespace, from_type, from_id, to_type, to_id, relation)
);
create index links_by_end on links (tenant, namespace, to_type, to_id, from_type, from_id, relation);

create table idempotency (
    tenant    uuid  not null,
    operation text  collate "C" not null,
    key       text  collate "C" not null,
    request   bytea not null,
    answer    bytea not null,
    results   bytea,
    until     bigint,
    run       uuid,
    commit_id uuid  not null,
    constraint idempotency_by_key primary key (tenant, operation, key)
);
create index idempotency_expiring on idempotency (tenant, until, operation, key) where until is not null;
create index idempotency_of_run on idempotency (tenant, run) where run is not null;

-- Workflow definitions by content hash. Rows never change.
create table definitions (
    tenant   uuid   not null,
    hash     bytea  not null,
    workflow text   collate "C" not null,
    version  bigint not null,
    body     bytea  not null,
    publisher text,
    constraint definitions_by_hash primary key (tenant, hash)
);
create index definitions_by_workflow on definitions (tenant, workflow, version, hash);

-- Append-only.
create table audit (
    tenant    uuid   not null,
    commit_id uuid   not null,
    ordinal   bigint not null,
    at        bigint not null,
    operation text   not null,
    subject   text   not null,
    actor     text,
    run       uuid,
    detail    bytea  not null,
    results   bytea,
    constraint audit_by_commit primary key (tenant, commit_id, ordinal)
);
create index audit_by_run on audit (tenant, run, commit_id, ordinal) where run is not null;

-- Commits whose audit rows have no seal yet.
create table unsealed (
    tenant    uuid not null,
    commit_id uuid not null,
    constraint unsealed_by_commit primary key (tenant, commit_id)
);

-- Append-only. A seal is a hash over audit rows and over the seal before it.
create table seals (
    tenant        uuid   not null,
    number        bigint not null,
    at            bigint not null,
    previous_hash bytea  not null,
    rows          bytea  not null,
    hash          bytea  not null,
    constraint seals_by_number primary key (tenant, number)
);

-- Every tenant that has written anything.
create table tenants (
    tenant uuid not null,
    constraint tenants_by_id primary key (tenant)
);

-- One row per engine process with its heartbeat, which is the lease on its runs. `session` is the advisory lock that its
-- session holds while it is connected.
create table processes (
    id          uuid   not null,
    lease_until bigint not null,
    session     bigint,
    constraint processes_by_id primary key (id)
);

-- One composite value per row of a commit: PostgreSQL reads an array of these in half the time of one array per column.
create type run_record as (
    id uuid, workflow text, definition bytea, revision bigint, version bigint, fence bigint, owner uuid, status text,
    places text, wake_at bigint, inbox_seq bigint, inbox_len bigint, chain_base bigint, chain_bytes bigint, ledger bytea,
    parent_run uuid, parent_activation bigint, parent_child bigint, root uuid, created_at bigint, updated_at bigint,
    error text, unordered smallint
);
create type checkpoint_record as (
    run uuid, version bigint, base bigint, commit_id uuid, at bigint, body bytea, entry bytea
);

-- Starts or updates runs, each by its own compare-and-set, inserts their checkpoints and returns the runs it wrote.
-- An update proposes a row without a definition. It passes its conditions in columns that an update never writes: the
-- expected fence (parent_activation), the newest message it knows (inbox_seq), and whether a newer message refuses it
-- (inbox_len). An update of a deleted run would insert a run without a definition: that divides by zero, and the whole
-- statement fails. The function sets the tenant itself, so that a commit without other writes is one statement.
-- Without the tenant's row in `tenants` it writes nothing, like every insert.
create function commit_runs(tenant uuid, runs run_record[], checkpoints checkpoint_record[]) returns uuid[]
language plpgsql as $$
#variable_conflict use_column
declare
    said text;
    done uuid[];
begin
    said := set_config('app.current_tenant', $1::text, true);
    with moved as (
        insert into runs as r
                     (tenant, id, workflow, definition, revision, version, fence, owner, status, places, wake_at,
                      inbox_seq, inbox_len, chain_base, chain_bytes, ledger, parent_run, parent_activation,
                      parent_child, root, created_at, updated_at, error, unordered, ended_at)
        select t.tenant, u.id, u.workflow, u.definition, u.revision, u.version, u.fence, u.owner, u.status, u.places,
               u.wake_at, u.inbox_seq, u.inbox_len, u.chain_base, u.chain_bytes, u.ledger, u.parent_run,
               u.parent_activation, u.parent_child, u.root, u.created_at, u.updated_at,
               u.error, u.unordered, case when u.status in ('completed', 'cancelled') then u.updated_at end
          from tenants t, unnest($2::run_record[]) as u
         where t.tenant = $1
        on conflict (tenant, id) do update
           set revision = excluded.revision, version = excluded.version, fence = excluded.fence, owner = excluded.owner,
               status = excluded.status, places = excluded.places, chain_base = excluded.chain_base,
               chain_bytes = excluded.chain_bytes, ledger = excluded.ledger, updated_at = excluded.updated_at,
               error = excluded.error, ended_at = excluded.ended_at,
               wake_at = case when r.inbox_seq > excluded.inbox_seq and excluded.status not in ('completed', 'cancelled')
                              then least(r.wake_at, excluded.wake_at) else excluded.wake_at end
         where excluded.definition = '' and r.revision = excluded.revision - 1
           and r.fence = coalesce(excluded.parent_activation, r.fence)
           and (excluded.inbox_len = 0 or r.inbox_seq <= excluded.inbox_seq)
        returning r.id, 1 / octet_length(r.definition)
    ), kept as (
        insert into checkpoints as x (tenant, run, version, base, commit_id, at, body, entry)
        select t.tenant, c.run, c.version, c.base, c.commit_id, c.at, c.body, c.entry
          from tenants t, unnest($3::checkpoint_record[]) as c
         where t.tenant = $1 and c.run = any (array(select m.id from moved m))
        returning x.run
    )
    select array_agg(k.run) into done from kept k;
    return done;
end $$;

-- Cuts the audit trail at a seal: deletes the audit rows of this seal and of all earlier ones, and the earlier seals. The
-- newest seal stays. A batch ends with a whole seal. Returns the number of deleted rows. The function runs with the rights
-- of its owner, because the engine's role can only append to the audit trail.
create function cut_audit(tenant uuid, through bigint, most bigint) returns bigint
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    sealed record;
    gone bigint;
    total bigint := 0;
begin
    for sealed in select s.number, s.rows from seals s
                   where s.tenant = $1 and s.number <= $2
                     and s.number < (select max(n.number) from seals n where n.tenant = $1)
                   order by s.number loop
        delete from audit a
         where a.tenant = $1
           and a.commit_id = any (array(select encode(substring(sealed.rows from i * 56 + 1 for 16), 'hex')::uuid
                                          from generate_series(0, octet_length(sealed.rows) / 56 - 1) i));
        get diagnostics gone = row_count;
        total := total + gone;
        if sealed.number < $2 then
            delete from seals s where s.tenant = $1 and s.number = sealed.number;
        end if;
        exit when total >= $3;
    end loop;
    return total;
end $$;

-- Row-level security is the second line of defence: a session that has set no tenant sees no rows.
-- Citus accepts no sub-select in a policy (elsewhere it makes PostgreSQL evaluate the setting once instead of per row), and
-- it cannot move shards of tables with FORCE. The engine's role owns no table, so the policies apply to it either way.
do $$
declare
    t text;
    spread boolean := exists (select 1 from pg_extension x where x.extname = 'citus');
    once text := case when spread then '(%s)' else '(select %s)' end;
    own text := format(once, $p$nullif(current_setting('app.current_tenant', true), '')::uuid$p$);
    sees text := format(once, $p$current_setting('stepwell.sees', true)$p$);
begin
    foreach t in array array['runs', 'checkpoints', 'documents', 'inbox', 'waits', 'shadows', 'handles', 'cells',
                             'links', 'idempotency', 'definitions', 'audit', 'unsealed', 'seals', 'tenants'] loop
        execute format('alter table %I enable row level security', t);
        if not spread then
            execute format('alter table %I force row level security', t);
        end if;
        execute format('create policy own on %I using (tenant = %s)', t, own);
    end loop;
    -- Tenants with due work, and all tenants: the only reads over several tenants.
    foreach t in array array['runs', 'tenants'] loop
        execute format('create policy due on %I for select using (%s = %L)', t, sees, 'due');
    end loop;
end $$;
