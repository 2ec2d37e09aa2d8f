-- Inserts handles that did not exist when they were read. Fails, and writes nothing, if one exists by now.
insert into handles as x (tenant, handle, kind, run, workflow, definition, state, expires_at, owner, fence, deliver_at, delivery,
                     created_at, created_by, updated_at, updated_by, commit_id)
select t.tenant, u.*
  from tenants t, unnest($2::bytea[], $3::text[], $4::uuid[], $5::text[], $6::bytea[], $7::bytea[], $8::bigint[], $9::uuid[], $10::bigint[],
              $11::bigint[], $12::bytea[], $13::bigint[], $14::text[], $15::bigint[], $16::text[], $17::uuid[]) as u
 where t.tenant = $1
