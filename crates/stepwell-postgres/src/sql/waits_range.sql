-- Lists open waits in the order of topics, within a range of topics.
select run, activation, place, since, until, detail, topic, due
  from waits
 where tenant = $1 and topic >= $2 and topic < $3
 order by topic, run, activation
 limit $4
