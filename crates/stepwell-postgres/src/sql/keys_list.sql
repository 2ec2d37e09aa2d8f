-- Lists the idempotency keys of a tenant with their records, from after a key.
select request, answer, results, until, run, commit_id, operation, key
  from idempotency
 where tenant = $1 and (operation, key) > ($2, $3)
 order by operation, key
 limit $4
