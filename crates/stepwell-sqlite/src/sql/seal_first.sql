-- Returns the first seal up to a number, but never the newest one.
select s.number, s.rows from seals s
 where s.tenant = ?1 and s.number <= ?2 and s.number < (select max(n.number) from seals n where n.tenant = ?1)
 order by s.number
 limit 1
