-- Opens waits for the commits that were applied (as in `audit_insert`). Replaces open waits of the same activation.
insert into waits as x (tenant, run, activation, place, since, until, detail, topic, due)
select t.tenant, u.run, u.activation, u.place, u.since, u.until, u.detail, u.topic, u.due
  from tenants t, unnest($2::uuid[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::bytea[], $8::text[],
              $9::bigint[], $10::uuid[], $11::bigint[])
       as u (run, activation, place, since, until, detail, topic, due, commit_id, version)
 where t.tenant = $1
   and (u.version is null or exists (select 1 from checkpoints k where k.tenant = $1 and k.run = u.run
                                        and k.version = u.version and k.commit_id = u.commit_id offset 0))
on conflict (tenant, run, activation) do update
   set place = excluded.place, since = excluded.since, until = excluded.until, detail = excluded.detail,
       topic = excluded.topic, due = excluded.due
