-- Records every owner of a run as a process, expired if it is new. Spans tenants; returns nothing.
insert into processes (id, lease_until) select distinct owner, ?1 from runs where owner is not null
on conflict (id) do nothing
