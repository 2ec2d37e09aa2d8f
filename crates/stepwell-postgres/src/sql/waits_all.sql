-- Open waits of all runs, in the order of run and activation.
select run, activation, place, since, until, detail, topic
  from waits
 where tenant = $1 and (run, activation) > ($2, $3)
 order by run, activation
 limit $4
