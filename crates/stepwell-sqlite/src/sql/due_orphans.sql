-- Returns the tenants with runs that an expired process owns. Spans tenants; returns only the tenant.
select distinct tenant from runs where owner is not null and owner in (select unhex(value) from json_each(?1))
