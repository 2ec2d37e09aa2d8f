-- Counts the live runs, up to a maximum: owned, scheduled, pending, suspended, failed or waiting.
select name, number
  from (select 'live'::text as name, count(*) as number
          from (select id from (select id from runs where tenant = $1 and owner is not null limit $4) owned
                union
                select id from (select id from runs where tenant = $1 and owner is null and wake_at is not null limit $4) due
                union
                select id from (select id from runs
                                 where tenant = $1 and (status = 'pending' or status = 'suspended' or status = 'failed')
                                 limit $4) in_need
                union
                select run from (select distinct run from waits where tenant = $1 limit $4) waiting
                limit $4) live) tally
 where name > $2 and number > 0
 limit $3
