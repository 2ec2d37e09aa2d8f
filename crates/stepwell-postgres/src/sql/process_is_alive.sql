-- Returns a row if the lease of a process is still valid. Reads no tenant data.
select 1 from processes where id = $1 and lease_until > $2
