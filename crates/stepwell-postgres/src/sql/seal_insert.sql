-- A seal follows the last one; if another has by now, nothing is written.
insert into seals (tenant, number, at, before, rows, hash) values ($1, $2, $3, $4, $5, $6)
