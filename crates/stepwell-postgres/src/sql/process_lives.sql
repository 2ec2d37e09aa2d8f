-- Whether the lease of a process goes on. Not a tenant's rows.
select 1 from processes where id = $1 and lives_until > $2
