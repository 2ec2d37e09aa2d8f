-- Counts the link ends of a namespace for each entity type.
select type, count(*)
  from (select from_type as type from links where tenant = ?1 and namespace = ?4
        union all
        select to_type from links where tenant = ?1 and namespace = ?4)
 where type > ?2
 group by type order by type limit ?3
