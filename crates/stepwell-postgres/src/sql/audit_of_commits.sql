-- Returns the audit rows of commits, those of each commit in order.
select f.commit_id, f.ordinal, f.at, f.operation, f.subject, f.actor, f.run, f.detail
  from unnest($2::uuid[]) as u (commit_id)
 cross join lateral (select * from audit a where a.tenant = $1 and a.commit_id = u.commit_id order by a.ordinal limit $3) f
