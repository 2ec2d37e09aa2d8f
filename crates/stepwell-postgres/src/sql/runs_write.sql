-- Replaces the rows of runs, except for their immutable columns. The rows were decided under their locks.
insert into runs as x (tenant, id, workflow, definition, revision, version, fence, owner, status, places, wake_at,
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
   set definition = excluded.definition, revision = excluded.revision, version = excluded.version, fence = excluded.fence,
       owner = excluded.owner, status = excluded.status, places = excluded.places, wake_at = excluded.wake_at,
       inbox_seq = excluded.inbox_seq, inbox_len = excluded.inbox_len, chain_base = excluded.chain_base,
       chain_bytes = excluded.chain_bytes, ledger = excluded.ledger, updated_at = excluded.updated_at,
       error = excluded.error, ended_at = excluded.ended_at
