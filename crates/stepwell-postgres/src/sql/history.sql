-- Lists the checkpoints of a run from a version on, oldest first. The states are returned only if requested.
select version, at, commit_id, entry, case when $5 then body end, base
  from checkpoints
 where tenant = $1 and run = $2 and version >= $3
 order by version
 limit $4
