-- Returns the records of idempotency keys, which may have expired, and locks them in the order of the parameters.
select k.request, k.answer, k.results, k.until, k.run, k.commit_id, u.n
  from unnest($2::text[], $3::text[]) with ordinality as u (operation, key, n)
 cross join lateral (select * from idempotency o
                      where o.tenant = $1 and o.operation = u.operation and o.key = u.key for update) k
