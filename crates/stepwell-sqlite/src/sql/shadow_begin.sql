-- A shadow column of a run holds this if it holds nothing.
insert into shadows (tenant, run, name, workflow, as_text, as_number, as_boolean) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict (tenant, run, name) do nothing
