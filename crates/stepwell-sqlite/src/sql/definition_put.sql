-- Inserts a definition unless it exists: the same hash means the same content.
insert into definitions (tenant, hash, workflow, version, body, publisher) values (?1, ?2, ?3, ?4, ?5, ?6)
on conflict (tenant, hash) do nothing
