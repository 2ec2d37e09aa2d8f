-- Returns a row while a server process that a lost connection left behind is busy. Reads no tenant data.
select 1 from pg_stat_activity a where a.pid = $1 and a.backend_start::text = $2 and a.state <> 'idle'
