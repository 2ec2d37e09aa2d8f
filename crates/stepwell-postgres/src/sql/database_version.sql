-- Returns the version of the server. Reads no tenant data.
select current_setting('server_version_num')::integer, current_setting('server_version')
