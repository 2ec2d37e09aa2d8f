-- Rows of the audit trail, of the commits that were applied: those whose checkpoint is there, where one is named (the offset
-- keeps the server from reading all checkpoints into a table to look it up). They are to be sealed.
with kept as (
insert into audit (tenant, commit_id, ordinal, at, operation, subject, actor, run, detail, results)
select $1, u.commit_id, u.ordinal, u.at, u.operation, u.subject, u.actor, u.run, u.detail, u.results
  from unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::bytea[],
              $10::bytea[], $11::uuid[], $12::bigint[])
       as u (commit_id, ordinal, at, operation, subject, actor, run, detail, results, trace, version)
 where u.trace is null or exists (select 1 from checkpoints k where k.tenant = $1 and k.run = u.trace
                                     and k.version = u.version and k.commit_id = u.commit_id offset 0)
returning commit_id, ordinal
)
insert into unsealed (tenant, commit_id) select $1, k.commit_id from kept k where k.ordinal = 0
