-- Finds runs whose owner has expired, in the order of id. Changes nothing.
select id from runs
 where tenant = $1 and owner is not null and owner = any ($2)
   and ($3::bytea[] is null or definition = any ($3))
 order by id
 limit $4
