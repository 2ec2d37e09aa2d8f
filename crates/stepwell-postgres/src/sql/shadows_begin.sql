-- Sets shadow columns, unless they already have a value of the same type.
insert into shadows as x (tenant, run, name, workflow, as_text, as_number, as_boolean)
select t.tenant, u.run, u.name, u.workflow, u.as_text, u.as_number, u.as_boolean
  from tenants t, unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::double precision[], $7::boolean[], $8::uuid[], $9::bigint[])
       as u (run, name, workflow, as_text, as_number, as_boolean, commit_id, version)
 where t.tenant = $1
on conflict (tenant, run, name) do update
   set workflow = excluded.workflow, as_text = excluded.as_text, as_number = excluded.as_number,
       as_boolean = excluded.as_boolean
 where (x.as_text is null, x.as_number is null, x.as_boolean is null)
       <> (excluded.as_text is null, excluded.as_number is null, excluded.as_boolean is null)
returning x.run
