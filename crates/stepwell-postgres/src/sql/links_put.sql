-- Replaces links that were decided under their locks.
update links l
   set id = u.id, attributes = u.attributes, created_at = u.created_at, updated_at = u.updated_at, created_by = u.created_by
  from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::text[], $10::bigint[],
              $11::bigint[], $12::uuid[])
       as u (namespace, from_type, from_id, to_type, to_id, relation, id, attributes, created_at, updated_at, created_by)
 where l.tenant = $1 and l.namespace = u.namespace and l.from_type = u.from_type and l.from_id = u.from_id
   and l.to_type = u.to_type and l.to_id = u.to_id and l.relation = u.relation
