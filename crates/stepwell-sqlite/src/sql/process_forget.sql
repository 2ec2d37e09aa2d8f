-- Deletes expired processes that own no run. Spans tenants; returns nothing.
delete from processes
 where lease_until <= ?1 and not exists (select 1 from runs r where r.owner is not null and r.owner = processes.id)
