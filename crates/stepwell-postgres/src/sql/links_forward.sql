-- Lists the links that start at an entity, in the order of their other end. In a listing of both directions, a link
-- from the entity to itself appears here.
select namespace, from_type, from_id, to_type, to_id, relation, id, attributes, created_at, updated_at, created_by
  from links
 where tenant = $1 and namespace = $2 and from_type = $3 and from_id = $4
   and (to_type, to_id, relation, 0) > ($5, $6, $7, $8::bigint)
   and ($9::text is null or to_type = $9) and ($10::text is null or relation = $10)
 order by to_type, to_id, relation
 limit $11
