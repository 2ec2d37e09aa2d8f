-- Returns the number and hash of the last seal.
select number, hash from seals where tenant = $1 order by number desc limit 1
