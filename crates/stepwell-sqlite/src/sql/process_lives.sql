-- Whether a process lives. Not a tenant's rows.
select 1 from processes where id = ?1 and lives_until > ?2
