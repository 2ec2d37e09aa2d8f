-- Lists the links of a namespace in the order of their edges, from after an edge. Types and relation are filters.
select namespace, from_type, from_id, to_type, to_id, relation, id, attributes, created_at, updated_at, created_by
  from links
 where tenant = $1 and namespace = $2 and (from_type, from_id, to_type, to_id, relation) > ($3, $4, $5, $6, $7)
   and ($8::text is null or from_type = $8) and ($9::text is null or to_type = $9)
   and ($10::text is null or relation = $10)
 order by from_type, from_id, to_type, to_id, relation
 limit $11
