-- A seal follows the last one.
insert into seals (tenant, number, at, before, rows, hash) values (?1, ?2, ?3, ?4, ?5, ?6)
