-- Relations of a namespace's links.
select relation, count(*)
  from links
 where tenant = ?1 and namespace = ?4 and relation > ?2
 group by relation order by relation limit ?3
