-- Lists the links that end at an entity, in the order of their other end. Links from the entity to itself are
-- optional.
select namespace, from_type, from_id, to_type, to_id, relation, id, attributes, created_at, updated_at, created_by
  from links
 where tenant = $1 and namespace = $2 and to_type = $3 and to_id = $4
   and (from_type, from_id, relation, 1) > ($5, $6, $7, $8::bigint)
   and ($9::text is null or from_type = $9) and ($10::text is null or relation = $10)
   and ($12::boolean or from_type <> to_type or from_id <> to_id)
 order by from_type, from_id, relation
 limit $11
