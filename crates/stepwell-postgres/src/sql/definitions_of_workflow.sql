-- Lists the definitions of one workflow in the order of version and hash, from after a position.
select hash, workflow, version, body, publisher
  from definitions
 where tenant = $1 and workflow = $2 and (version, hash) > ($3, $4)
 order by version, hash
 limit $5
