-- Returns the record of an idempotency key. It may have expired.
select request, answer, results, until, run, commit_id
  from idempotency
 where tenant = $1 and operation = $2 and key = $3
