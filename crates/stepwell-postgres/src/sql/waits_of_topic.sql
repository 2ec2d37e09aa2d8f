-- Open waits for one topic, in the order of run and activation.
select run, activation, place, since, until, detail, topic
  from waits
 where tenant = $1 and topic = $2 and (run, activation) > ($3, $4)
 order by run, activation
 limit $5
