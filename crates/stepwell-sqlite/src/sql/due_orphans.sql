-- Tenants with runs that a dead process owns. Spans tenants, and shows only the tenant.
select distinct tenant from runs where owner is not null and owner in (select unhex(value) from json_each(?1))
