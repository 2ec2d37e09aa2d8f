-- Counts the links of each namespace.
select namespace, count(*) from links where tenant = $1 and namespace > $2 group by namespace order by namespace limit $3
