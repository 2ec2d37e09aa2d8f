-- Returns a link by its edge.
select namespace, from_type, from_id, to_type, to_id, relation, id, attributes, created_at, updated_at, created_by
  from links
 where tenant = ?1 and namespace = ?2 and from_type = ?3 and from_id = ?4 and to_type = ?5 and to_id = ?6 and relation = ?7
