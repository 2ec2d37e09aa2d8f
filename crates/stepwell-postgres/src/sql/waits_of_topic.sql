-- Lists the open waits for one topic in the order of run and activation, from after a position.
select run, activation, place, since, until, detail, topic, due
  from waits
 where tenant = $1 and topic = $2 and (run, activation) > ($3, $4)
 order by run, activation
 limit $5
