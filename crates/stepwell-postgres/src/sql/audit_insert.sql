-- Appends audit rows of the commits that were applied, and adds those commits to the list of unsealed ones. If a row
-- names a checkpoint, its commit was applied if that checkpoint exists. The `offset 0` keeps the server from reading
-- all checkpoints into a hash table for that lookup.
with kept as (
    insert into audit as x (tenant, commit_id, ordinal, at, operation, subject, actor, run, detail, results)
    select t.tenant, u.commit_id, u.ordinal, u.at, u.operation, u.subject, u.actor, u.run, u.detail, u.results
      from tenants t,
           unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::bytea[],
                  $10::bytea[], $11::uuid[], $12::bigint[])
           as u (commit_id, ordinal, at, operation, subject, actor, run, detail, results, trace, version)
     where t.tenant = $1
       and (u.trace is null or exists (select 1 from checkpoints k where k.tenant = $1 and k.run = u.trace
                                          and k.version = u.version and k.commit_id = u.commit_id offset 0))
    returning x.commit_id, x.ordinal
), open as (
    insert into unsealed as x (tenant, commit_id)
    select t.tenant, k.commit_id from tenants t, kept k where t.tenant = $1 and k.ordinal = 0
    returning x.commit_id
)
select o.commit_id from open o
