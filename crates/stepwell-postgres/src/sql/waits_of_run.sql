-- Open waits of one run, by activation.
select run, activation, place, since, until, detail, topic
  from waits
 where tenant = $1 and run = $2 and activation > $3
 order by activation
 limit $4
