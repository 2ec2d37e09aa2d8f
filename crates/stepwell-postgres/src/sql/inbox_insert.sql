-- Inserts messages under the numbers that their runs' rows assigned.
insert into inbox as x (tenant, run, seq, topic, body, received_at, expires_at, counts)
select t.tenant, u.*
  from tenants t, unnest($2::uuid[], $3::bigint[], $4::text[], $5::bytea[], $6::bigint[], $7::bigint[], $8::boolean[]) as u
 where t.tenant = $1
