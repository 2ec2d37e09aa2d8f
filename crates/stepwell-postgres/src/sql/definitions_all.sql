-- Lists definitions in the order of workflow, version and hash, from after a position.
select hash, workflow, version, body, publisher
  from definitions
 where tenant = $1 and (workflow, version, hash) > ($2, $3, $4)
 order by workflow, version, hash
 limit $5
