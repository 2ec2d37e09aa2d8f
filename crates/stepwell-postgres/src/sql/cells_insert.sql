-- Inserts cells that did not exist when they were read. Fails, and writes nothing, if one exists by now.
insert into cells as x (tenant, space, owner, key, value, value_type, revision, expires_at, created_at, updated_at, created_by)
select t.tenant, u.*
  from tenants t, unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[],
              $10::bigint[], $11::uuid[]) as u
 where t.tenant = $1
