-- Inserts definitions of the commits that were applied (as in `audit_insert`), unless they exist: the same hash means
-- the same content.
insert into definitions as x (tenant, hash, workflow, version, body, publisher)
select t.tenant, u.hash, u.workflow, u.version, u.body, u.publisher
  from tenants t, unnest($2::bytea[], $3::text[], $4::bigint[], $5::bytea[], $6::text[], $7::uuid[], $8::uuid[], $9::bigint[])
       as u (hash, workflow, version, body, publisher, commit_id, trace, trace_version)
 where t.tenant = $1
   and (u.trace is null or exists (select 1 from checkpoints k where k.tenant = $1 and k.run = u.trace
                                      and k.version = u.trace_version and k.commit_id = u.commit_id offset 0))
on conflict (tenant, hash) do nothing
