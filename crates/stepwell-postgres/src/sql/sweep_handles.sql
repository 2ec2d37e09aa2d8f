-- Handles that were over by a time, oldest first, unless somebody is at them.
select handle, kind, run from handles
 where tenant = $1 and expires_at is not null and expires_at <= $2
 order by expires_at, handle
 limit $3
   for update skip locked
