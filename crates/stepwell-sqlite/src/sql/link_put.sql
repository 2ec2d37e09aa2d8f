-- Inserts or replaces a link. There is one link for each edge.
insert into links (tenant, namespace, from_type, from_id, to_type, to_id, relation, id, attributes, created_at, updated_at, created_by)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
on conflict (tenant, namespace, from_type, from_id, to_type, to_id, relation) do update
   set id = excluded.id, attributes = excluded.attributes, created_at = excluded.created_at,
       updated_at = excluded.updated_at, created_by = excluded.created_by
