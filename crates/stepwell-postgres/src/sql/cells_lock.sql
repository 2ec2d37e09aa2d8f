-- Returns cells, which may be tombstones, and locks them in the order of the parameters.
select u.n, c.key, c.value, c.value_type, c.revision, c.expires_at, c.created_at, c.updated_at, c.created_by
  from unnest($2::text[], $3::text[], $4::text[]) with ordinality as u (space, owner, key, n)
 cross join lateral (select * from cells o
                      where o.tenant = $1 and o.space = u.space and o.owner = u.owner and o.key = u.key for update) c
