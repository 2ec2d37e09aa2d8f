-- Inserts documents that are visible from a version on. Fails if (tenant, run, key, first version) exists.
insert into documents as x (tenant, run, key, kind, body, tags, visible_from, ordinal, at)
select t.tenant, u.*
  from tenants t, unnest($2::uuid[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[]) as u
 where t.tenant = $1
