-- Finds due runs without an owner, in the order of their due time. Changes nothing.
select id from runs
 where tenant = $1 and owner is null and wake_at is not null and wake_at <= $2
   and ($3::bytea[] is null or definition = any ($3))
 order by wake_at, id
 limit $4
