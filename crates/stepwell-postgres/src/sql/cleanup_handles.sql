-- Finds and locks handles that had expired by a time, oldest first. Skips handles that another transaction has locked.
select handle, kind, run from handles
 where tenant = $1 and expires_at is not null and expires_at <= $2
 order by expires_at, handle
 limit $3
   for update skip locked
