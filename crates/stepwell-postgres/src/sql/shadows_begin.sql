-- Shadow columns hold what is given if they hold nothing.
insert into shadows (tenant, run, name, workflow, as_text, as_number, as_boolean)
select $1, u.run, u.name, u.workflow, u.as_text, u.as_number, u.as_boolean
  from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::double precision[], $7::boolean[], $8::uuid[], $9::bigint[])
       as u (run, name, workflow, as_text, as_number, as_boolean, commit_id, version)
on conflict (tenant, run, name) do nothing
returning 1
