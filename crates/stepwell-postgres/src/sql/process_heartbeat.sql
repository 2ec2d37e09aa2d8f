-- Records the lease of a process, and the lock that its session holds. Writes no tenant data.
insert into processes (id, lease_until, session) values ($1, $2, $3)
on conflict (id) do update set lease_until = excluded.lease_until, session = excluded.session
