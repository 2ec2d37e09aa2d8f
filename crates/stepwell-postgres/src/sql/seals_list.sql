-- Lists the seals from a number on, oldest first.
select number, at, previous_hash, rows, hash from seals where tenant = $1 and number >= $2 order by number limit $3
