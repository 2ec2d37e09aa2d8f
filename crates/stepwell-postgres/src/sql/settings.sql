-- Returns the tenant and the search path that the transaction has set. Reads no tenant data.
select coalesce(current_setting('app.current_tenant', true), ''), current_setting('search_path')
