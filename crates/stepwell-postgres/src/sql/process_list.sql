-- Every process that is known, until when it lives, and what time it is here. Not a tenant's rows.
select id, lives_until, (extract(epoch from clock_timestamp()) * 1000000)::bigint from processes
