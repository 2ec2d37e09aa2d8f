-- Inserts idempotency keys that did not exist when they were read. Fails, and writes nothing, if one exists by now.
insert into idempotency as x (tenant, operation, key, request, answer, results, until, run, commit_id)
select t.tenant, u.*
  from tenants t, unnest($2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::bytea[], $7::bigint[], $8::uuid[], $9::uuid[]) as u
 where t.tenant = $1
