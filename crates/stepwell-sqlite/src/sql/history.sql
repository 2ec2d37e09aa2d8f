-- A run's checkpoints from a version on, oldest first.
select version, at, commit_id, entry, body, base
  from checkpoints
 where tenant = ?1 and run = ?2 and version >= ?3
 order by version
 limit ?4
