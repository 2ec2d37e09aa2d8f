-- Counts the links of a namespace for each relation.
select relation, count(*)
  from links
 where tenant = $1 and namespace = $4 and relation > $2
 group by relation order by relation limit $3
