-- Lists the open waits of all runs in the order of run and activation, from after a position.
select run, activation, place, since, until, detail, topic, due
  from waits
 where tenant = $1 and (run, activation) > ($2, $3)
 order by run, activation
 limit $4
