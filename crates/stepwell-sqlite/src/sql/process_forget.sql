-- Dead processes that own nothing any more are forgotten. Spans tenants, and shows nothing.
delete from processes
 where lives_until <= ?1 and not exists (select 1 from runs r where r.owner is not null and r.owner = processes.id)
