-- Returns links by their edges, and links that start or end at given entities, up to a maximum for each. Locks all of
-- them in the order of their edges, however they were found.
with named as materialized (
    select u.namespace, u.from_type, u.from_id, u.to_type, u.to_id, u.relation
      from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
           as u (namespace, from_type, from_id, to_type, to_id, relation)
    union
    select b.namespace, b.from_type, b.from_id, b.to_type, b.to_id, b.relation
      from unnest($8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[])
           as u (namespace, from_type, from_id, to_type, to_id, relation)
     cross join lateral (select * from links o
                          where o.tenant = $1 and o.namespace = u.namespace and o.from_type = u.from_type
                            and o.from_id = u.from_id
                            and (u.to_type is null or (o.to_type = u.to_type and o.to_id = u.to_id))
                            and (u.relation is null or o.relation = u.relation)
                          order by o.to_type, o.to_id, o.relation limit $18) b
    union
    select e.namespace, e.from_type, e.from_id, e.to_type, e.to_id, e.relation
      from unnest($14::text[], $15::text[], $16::text[], $17::text[]) as u (namespace, to_type, to_id, relation)
     cross join lateral (select * from links o
                          where o.tenant = $1 and o.namespace = u.namespace and o.to_type = u.to_type
                            and o.to_id = u.to_id and (u.relation is null or o.relation = u.relation)
                          order by o.from_type, o.from_id, o.relation limit $18) e
)
select l.namespace, l.from_type, l.from_id, l.to_type, l.to_id, l.relation, l.id, l.attributes, l.created_at, l.updated_at,
       l.created_by
  from (select * from named order by namespace, from_type, from_id, to_type, to_id, relation) n
 cross join lateral (select * from links o
                      where o.tenant = $1 and o.namespace = n.namespace and o.from_type = n.from_type
                        and o.from_id = n.from_id and o.to_type = n.to_type and o.to_id = n.to_id
                        and o.relation = n.relation for update) l
