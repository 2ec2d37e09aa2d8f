-- Fails if the tenant is not recorded: it divides by zero, and the transaction is rolled back. Inserts take the tenant
-- from its row in `tenants`, so without that row they would write nothing and report no error.
select 1 / count(*) from tenants where tenant = $1
