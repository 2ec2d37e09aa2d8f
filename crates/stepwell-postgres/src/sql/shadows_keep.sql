-- Deletes the shadow columns of the given runs, except for those in the list.
delete from shadows s
 where s.tenant = $1 and s.run = any ($2)
   and (s.run, s.name) not in (select u.run, u.name from unnest($3::uuid[], $4::text[]) as u (run, name))
returning s.run
