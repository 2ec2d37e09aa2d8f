-- Finds handles that had expired by a time, oldest first.
select handle, kind, run from handles where tenant = ?1 and expires_at <= ?2 order by expires_at, handle limit ?3
