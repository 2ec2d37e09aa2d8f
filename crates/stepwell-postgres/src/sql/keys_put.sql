-- Replaces idempotency keys that have expired, under their locks.
insert into idempotency as x (tenant, operation, key, request, answer, results, until, run, commit_id)
select t.tenant, u.*
  from tenants t, unnest($2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::bytea[], $7::bigint[], $8::uuid[], $9::uuid[]) as u
 where t.tenant = $1
on conflict (tenant, operation, key) do update
   set request = excluded.request, answer = excluded.answer, results = excluded.results, until = excluded.until,
       run = excluded.run, commit_id = excluded.commit_id
