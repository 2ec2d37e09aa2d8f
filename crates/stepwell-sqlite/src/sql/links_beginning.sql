-- Returns edges that start at an entity; with a second entity, only those that end there.
select namespace, from_type, from_id, to_type, to_id, relation
  from links
 where tenant = ?1 and namespace = ?2 and from_type = ?3 and from_id = ?4
   and (?5 is null or (to_type = ?5 and to_id = ?6)) and (?7 is null or relation = ?7)
 limit ?8
