-- Which PostgreSQL it is. Nobody's rows.
select current_setting('server_version_num')::integer, current_setting('server_version')
