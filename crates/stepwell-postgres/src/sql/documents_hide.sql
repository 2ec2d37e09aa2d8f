-- Ends the visible documents under the given keys.
update documents d set visible_to = u.version
  from unnest($2::uuid[], $3::text[], $4::bigint[]) as u (run, key, version)
 where d.tenant = $1 and d.run = any ($2) and d.visible_to is null and d.run = u.run and d.key = u.key
