-- Deletes processes that expired long ago and own no run. Writes no tenant data.
delete from processes where lease_until <= $1 and id <> all ($2)
