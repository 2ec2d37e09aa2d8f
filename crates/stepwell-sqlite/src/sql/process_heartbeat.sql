-- Records the lease of a process. Writes no tenant data.
insert into processes (id, lease_until) values (?1, ?2) on conflict (id) do update set lease_until = excluded.lease_until
