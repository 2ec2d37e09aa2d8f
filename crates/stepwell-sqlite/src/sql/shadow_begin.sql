-- Sets a shadow column of a run, unless it already has a value of the same type.
insert into shadows (tenant, run, name, workflow, as_text, as_number, as_boolean) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict (tenant, run, name) do update
   set workflow = excluded.workflow, as_text = excluded.as_text, as_number = excluded.as_number,
       as_boolean = excluded.as_boolean
 where (as_text is null, as_number is null, as_boolean is null)
       <> (excluded.as_text is null, excluded.as_number is null, excluded.as_boolean is null)
