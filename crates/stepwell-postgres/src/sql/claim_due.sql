-- Claims due runs without an owner, in the order of their due time. Skips runs that another transaction has locked. A
-- claimed run gets a higher fence and revision. A pending or waiting run becomes running; any other status stays.
with c as materialized (
    select id
      from runs
     where tenant = $1 and owner is null and wake_at is not null and wake_at <= $2
       and ($3::bytea[] is null or definition = any ($3))
     order by wake_at, id
     limit $4
       for update skip locked
)
update runs r
   set owner = $5, fence = r.fence + 1, revision = r.revision + 1,
       status = case when r.status in ('pending', 'waiting') then 'running' else r.status end
 where r.tenant = $1 and r.id = any (array(select c.id from c))
returning r.id
