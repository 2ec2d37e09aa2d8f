-- Returns the server version, the size of the database, and the estimated number of rows of each table, from the
-- server's statistics. Reads no tenant data.
with server as materialized (
    select current_setting('server_version') as version, pg_database_size(current_database()) as bytes,
           exists (select 1 from pg_extension x where x.extname = 'citus') as has_citus
)
select s.version, s.bytes, s.has_citus, t.name, c.reltuples::float8
  from server s, unnest($1::text[]) as t (name)
  left join pg_class c on c.oid = to_regclass(quote_ident(t.name))
