-- Finds runs of a workflow that ended before a time and have no wake time, oldest first.
select id from runs
 where tenant = ?1 and workflow = ?2 and status in ('completed', 'cancelled') and wake_at is null and updated_at < ?3
 order by updated_at, id
 limit ?4
