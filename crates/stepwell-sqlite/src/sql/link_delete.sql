-- Deletes a link by its edge.
delete from links
 where tenant = ?1 and namespace = ?2 and from_type = ?3 and from_id = ?4 and to_type = ?5 and to_id = ?6 and relation = ?7
