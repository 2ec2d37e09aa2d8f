-- Processes that are long dead and own nothing are forgotten. Not a tenant's rows.
delete from processes where lives_until <= $1 and id <> all ($2)
