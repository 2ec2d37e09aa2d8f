-- Sets shadow columns for the commits that were applied (as in `audit_insert`). Writes nothing if they already have
-- the value.
insert into shadows as x (tenant, run, name, workflow, as_text, as_number, as_boolean)
select t.tenant, u.run, u.name, u.workflow, u.as_text, u.as_number, u.as_boolean
  from tenants t, unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::double precision[], $7::boolean[], $8::uuid[], $9::bigint[])
       as u (run, name, workflow, as_text, as_number, as_boolean, commit_id, version)
 where t.tenant = $1
   and (u.version is null or exists (select 1 from checkpoints k where k.tenant = $1 and k.run = u.run
                                        and k.version = u.version and k.commit_id = u.commit_id offset 0))
on conflict (tenant, run, name) do update
   set workflow = excluded.workflow, as_text = excluded.as_text, as_number = excluded.as_number,
       as_boolean = excluded.as_boolean
 where (x.workflow, x.as_text, x.as_number, x.as_boolean)
       is distinct from (excluded.workflow, excluded.as_text, excluded.as_number, excluded.as_boolean)
returning x.run
