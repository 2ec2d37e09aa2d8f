-- Gives a row while a server process that a lost connection left behind is at something. Nobody's rows.
select 1 from pg_stat_activity a where a.pid = $1 and a.backend_start::text = $2 and a.state <> 'idle'
