-- Counts the processes with a valid lease. Reads no tenant data.
select count(*) from processes where lease_until > ?1
