-- Runs that ended before a time and are not to be looked at any more, oldest first, unless somebody is at them.
select id from runs
 where tenant = $1 and ended_at is not null and wake_at is null and ended_at < $2
 order by ended_at, id
 limit $3
   for update skip locked
