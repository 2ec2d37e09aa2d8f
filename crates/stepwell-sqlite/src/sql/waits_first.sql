-- The first open wait in the order of topics, from one on and before another.
select run, activation, place, since, until, detail, topic
  from waits
 where tenant = ?1 and topic >= ?2 and topic < ?3
 order by topic, run, activation
 limit 1
