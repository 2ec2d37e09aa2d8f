-- Runs that ended before a time, oldest first.
select id from runs
 where tenant = ?1 and status in ('completed', 'cancelled') and updated_at < ?2
 order by updated_at, id
 limit ?3
