-- Clears shadow columns for the commits that were applied (as in `audit_insert`).
delete from shadows s
 where s.tenant = $1 and s.run = any ($2)
   and (s.run, s.name) in (
       select u.run, u.name
         from unnest($2::uuid[], $3::text[], $4::uuid[], $5::bigint[]) as u (run, name, commit_id, version)
        where u.version is null or exists (select 1 from checkpoints k where k.tenant = $1 and k.run = u.run
                                              and k.version = u.version and k.commit_id = u.commit_id offset 0))
