-- A key's record, whether it still holds or not.
select request, answer, results, until, run, commit_id
  from idempotency
 where tenant = $1 and operation = $2 and key = $3
