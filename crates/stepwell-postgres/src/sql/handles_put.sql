-- Replaces handles that were decided under their locks.
insert into handles as x (tenant, handle, kind, run, workflow, definition, state, expires_at, owner, fence, deliver_at, delivery,
                     created_at, created_by, updated_at, updated_by, commit_id)
select t.tenant, u.*
  from tenants t, unnest($2::bytea[], $3::text[], $4::uuid[], $5::text[], $6::bytea[], $7::bytea[], $8::bigint[], $9::uuid[], $10::bigint[],
              $11::bigint[], $12::bytea[], $13::bigint[], $14::text[], $15::bigint[], $16::text[], $17::uuid[]) as u
 where t.tenant = $1
on conflict (tenant, handle) do update
   set kind = excluded.kind, run = excluded.run, workflow = excluded.workflow, definition = excluded.definition,
       state = excluded.state, expires_at = excluded.expires_at, owner = excluded.owner, fence = excluded.fence,
       deliver_at = excluded.deliver_at, delivery = excluded.delivery, created_at = excluded.created_at,
       created_by = excluded.created_by, updated_at = excluded.updated_at, updated_by = excluded.updated_by,
       commit_id = excluded.commit_id
