-- Inserts links that did not exist when they were read. Fails, and writes nothing, if one exists by now.
insert into links as x (tenant, namespace, from_type, from_id, to_type, to_id, relation, id, attributes, created_at, updated_at,
                   created_by)
select t.tenant, u.*
  from tenants t, unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::text[], $10::bigint[],
              $11::bigint[], $12::uuid[]) as u
 where t.tenant = $1
