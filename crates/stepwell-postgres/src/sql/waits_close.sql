-- Closes waits for the commits that were applied (as in `audit_insert`).
delete from waits w
 where w.tenant = $1 and w.run = any ($2)
   and (w.run, w.activation) in (
       select u.run, u.activation
         from unnest($2::uuid[], $3::bigint[], $4::uuid[], $5::bigint[]) as u (run, activation, commit_id, version)
        where u.version is null or exists (select 1 from checkpoints k where k.tenant = $1 and k.run = u.run
                                              and k.version = u.version and k.commit_id = u.commit_id offset 0))
