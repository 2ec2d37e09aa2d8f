-- A tenant's keys from after one on, with their records.
select request, answer, results, until, run, commit_id, operation, key
  from idempotency
 where tenant = ?1 and (operation, key) > (?2, ?3)
 order by operation, key
 limit ?4
