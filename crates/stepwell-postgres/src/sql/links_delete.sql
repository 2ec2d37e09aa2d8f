-- Deletes links by their edges.
delete from links l
 using unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
       as u (namespace, from_type, from_id, to_type, to_id, relation)
 where l.tenant = $1 and l.namespace = u.namespace and l.from_type = u.from_type and l.from_id = u.from_id
   and l.to_type = u.to_type and l.to_id = u.to_id and l.relation = u.relation
