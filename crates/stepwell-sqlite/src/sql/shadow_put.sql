-- Sets a shadow column of a run. Writes nothing if it already has the value.
insert into shadows (tenant, run, name, workflow, as_text, as_number, as_boolean) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict (tenant, run, name) do update
   set workflow = excluded.workflow, as_text = excluded.as_text, as_number = excluded.as_number,
       as_boolean = excluded.as_boolean
 where (workflow, as_text, as_number, as_boolean)
       is not (excluded.workflow, excluded.as_text, excluded.as_number, excluded.as_boolean)
