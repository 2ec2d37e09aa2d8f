-- Lists all recorded processes with the end of their leases. Reads no tenant data.
select id, lease_until from processes order by id limit ?1
