-- Open waits of one run.
select run, activation, place, since, until, detail
  from waits
 where tenant = ?1 and (run, activation) > (?2, ?3) and run = ?5
 order by run, activation
 limit ?4
