-- Inserts or replaces a cell. The writer has decided its value inside the same transaction.
insert into cells (tenant, space, owner, key, value, value_type, revision, expires_at, created_at, updated_at, created_by)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
on conflict (tenant, space, owner, key) do update
   set value = excluded.value, value_type = excluded.value_type, revision = excluded.revision,
       expires_at = excluded.expires_at, updated_at = excluded.updated_at
