-- The seals, oldest first.
select number, at, before, rows, hash from seals where tenant = $1 and number >= $2 order by number limit $3
