-- Claims runs whose owner has expired, in the order of id, in the same way as `claim_due`.
with c as materialized (
    select id
      from runs
     where tenant = $1 and owner is not null and owner = any ($2)
       and ($3::bytea[] is null or definition = any ($3))
     order by id
     limit $4
       for update skip locked
)
update runs r
   set owner = $5, fence = r.fence + 1, revision = r.revision + 1,
       status = case when r.status in ('pending', 'waiting') then 'running' else r.status end
 where r.tenant = $1 and r.id = any (array(select c.id from c))
returning r.id
