-- Returns a row if the tenant is recorded.
select 1 from tenants where tenant = $1
