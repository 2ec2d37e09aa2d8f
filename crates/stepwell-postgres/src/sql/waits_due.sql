-- Lists the open waits that have a due time in the order of due time, run and activation, from after a position.
select run, activation, place, since, until, detail, topic, due
  from waits
 where tenant = $1 and due is not null and (due, run, activation) > ($2, $3, $4)
 order by due, run, activation
 limit $5
