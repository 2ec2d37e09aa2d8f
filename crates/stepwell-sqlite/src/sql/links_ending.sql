-- Returns edges that end at an entity.
select namespace, from_type, from_id, to_type, to_id, relation
  from links
 where tenant = ?1 and namespace = ?2 and to_type = ?3 and to_id = ?4 and (?5 is null or relation = ?5)
 limit ?6
