-- Inserts an idempotency key, or replaces one that has expired.
insert into idempotency (tenant, operation, key, request, answer, results, until, run, commit_id)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
on conflict (tenant, operation, key) do update
   set request = excluded.request, answer = excluded.answer, results = excluded.results, until = excluded.until,
       run = excluded.run, commit_id = excluded.commit_id
