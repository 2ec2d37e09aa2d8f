-- Counts the link ends of a namespace for each entity type.
select e.type, count(*)
  from (select from_type as type from links where tenant = $1 and namespace = $4
        union all
        select to_type from links where tenant = $1 and namespace = $4) e
 where e.type > $2
 group by e.type order by e.type limit $3
