-- The records of keys, whether they still hold or not, locked in the order they are asked for.
select k.request, k.answer, k.results, k.until, k.run, k.commit_id, u.n
  from unnest($2::text[], $3::text[]) with ordinality as u (operation, key, n)
 cross join lateral (select * from idempotency o
                      where o.tenant = $1 and o.operation = u.operation and o.key = u.key for update) k
