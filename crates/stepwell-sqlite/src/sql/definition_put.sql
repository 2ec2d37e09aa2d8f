-- A definition, unless it is known: the same hash is the same content.
insert into definitions (tenant, hash, workflow, version, body, publisher) values (?1, ?2, ?3, ?4, ?5, ?6)
on conflict (tenant, hash) do nothing
