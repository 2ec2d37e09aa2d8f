-- Does the same as `commit` where tenants are spread over nodes, which may not know our composite types.
-- Creates or advances runs, each by its own compare-and-set, and inserts their checkpoints. Returns the runs that were
-- written. A step is a row without a definition. It uses columns that a step never writes: the fence it expects
-- (parent_activation), the newest message it knows (inbox_seq), and whether a newer message refuses it (inbox_len). A
-- step whose run is gone would insert a run without a definition: that divides by zero, and the whole statement fails.
with moved as (
    insert into runs as r
                 (tenant, id, workflow, definition, revision, version, fence, owner, status, places, wake_at,
                  inbox_seq, inbox_len, chain_base, chain_bytes, ledger, parent_run, parent_activation,
                  parent_child, root, created_at, updated_at, error, unordered, ended_at)
    select t.tenant, u.*, case when u.status in ('completed', 'cancelled') then u.updated_at end
      from tenants t, unnest($2::uuid[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[], $8::uuid[], $9::text[],
              $10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bytea[],
              $17::uuid[], $18::bigint[], $19::bigint[], $20::uuid[], $21::bigint[], $22::bigint[], $23::text[], $24::smallint[])
           as u (id, workflow, definition, revision, version, fence, owner, status, places, wake_at, inbox_seq,
                      inbox_len, chain_base, chain_bytes, ledger, parent_run, parent_activation, parent_child, root,
                      created_at, updated_at, error, unordered)
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
      from tenants t,
           unnest($25::uuid[], $26::bigint[], $27::bigint[], $28::uuid[], $29::bigint[], $30::bytea[], $31::bytea[])
           as c (run, version, base, commit_id, at, body, entry)
     where t.tenant = $1 and c.run = any (array(select m.id from moved m))
    returning x.run
)
select k.run from kept k
