-- Lists the open waits of one run in the order of activation, from after an activation.
select run, activation, place, since, until, detail, topic, due
  from waits
 where tenant = $1 and run = $2 and activation > $3
 order by activation
 limit $4
