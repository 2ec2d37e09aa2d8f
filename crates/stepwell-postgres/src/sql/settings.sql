-- Whose rows a transaction is after, and where. Nobody's rows.
select coalesce(current_setting('app.current_tenant', true), ''), current_setting('search_path')
