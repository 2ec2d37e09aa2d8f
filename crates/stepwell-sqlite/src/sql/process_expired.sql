-- Lists processes whose lease has expired. Reads no tenant data.
select id from processes where lease_until <= ?1 order by id
