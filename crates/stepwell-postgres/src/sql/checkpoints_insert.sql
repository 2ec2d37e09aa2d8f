-- Inserts checkpoints. Fails if (tenant, run, version) exists.
insert into checkpoints as x (tenant, run, version, base, commit_id, at, body, entry, results)
select t.tenant, u.*
  from tenants t, unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::uuid[], $6::bigint[], $7::bytea[], $8::bytea[], $9::bytea[]) as u
 where t.tenant = $1
