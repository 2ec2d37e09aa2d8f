-- How many processes live. Not a tenant's rows.
select count(*) from processes where lives_until > ?1
