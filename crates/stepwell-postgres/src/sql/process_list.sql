-- Lists all recorded processes with the end of their leases, and the time of the server's clock. Reads no tenant data.
select id, lease_until, (extract(epoch from clock_timestamp()) * 1000000)::bigint from processes
