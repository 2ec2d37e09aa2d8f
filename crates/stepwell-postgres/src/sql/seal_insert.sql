-- Appends a seal after the last one. Fails, and writes nothing, if another process has done so by now.
insert into seals (tenant, number, at, previous_hash, rows, hash) values ($1, $2, $3, $4, $5, $6)
