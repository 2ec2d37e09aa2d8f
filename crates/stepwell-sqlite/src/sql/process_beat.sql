-- A process lives. Not a tenant's row.
insert into processes (id, lives_until) values (?1, ?2) on conflict (id) do update set lives_until = excluded.lives_until
