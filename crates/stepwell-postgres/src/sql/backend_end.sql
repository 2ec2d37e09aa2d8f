-- Ends a server process of this role that a lost connection left behind. Returns a row until it has ended. Reads no
-- tenant data.
select pg_terminate_backend(a.pid) from pg_stat_activity a where a.pid = $1 and a.backend_start::text = $2
