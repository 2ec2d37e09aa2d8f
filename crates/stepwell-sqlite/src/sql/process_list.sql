-- Every process that is known, and until when it lives. Not a tenant's rows.
select id, lives_until from processes order by id limit ?1
