-- A process lives, and holds this lock while its session does. Not a tenant's row.
insert into processes (id, lives_until, session) values ($1, $2, $3)
on conflict (id) do update set lives_until = excluded.lives_until, session = excluded.session
