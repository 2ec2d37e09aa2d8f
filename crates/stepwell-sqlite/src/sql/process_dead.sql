-- Processes whose lease is over. Not a tenant's rows.
select id from processes where lives_until <= ?1 order by id
