-- Returns the versions of runs and locks them in the order of their ids, so that they do not change until the
-- transaction ends.
select r.id, r.version
  from (select u.id from unnest($2::uuid[]) as u (id) order by u.id) n
 cross join lateral (select o.id, o.version from runs o where o.tenant = $1 and o.id = n.id for share) r
