-- Ends a server process of this role that a lost connection left behind; gives a row until it is gone. Nobody's rows.
select pg_terminate_backend(a.pid) from pg_stat_activity a where a.pid = $1 and a.backend_start::text = $2
