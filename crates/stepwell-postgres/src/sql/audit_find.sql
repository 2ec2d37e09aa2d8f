-- Returns those of the given commits that have rows in the audit trail.
select u.commit_id
  from unnest($2::uuid[]) as u (commit_id)
 cross join lateral (select 1 from audit a where a.tenant = $1 and a.commit_id = u.commit_id and a.ordinal = 0 limit 1) f
