-- What the server is, how large the database is, and about how many rows each of the tables has as the server last
-- counted them. Nobody's rows.
with server as materialized (
    select current_setting('server_version') as version, pg_database_size(current_database()) as bytes,
           exists (select 1 from pg_extension x where x.extname = 'citus') as has_citus
)
select s.version, s.bytes, s.has_citus, t.name, c.reltuples::float8
  from server s, unnest($1::text[]) as t (name)
  left join pg_class c on c.oid = to_regclass(quote_ident(t.name))
