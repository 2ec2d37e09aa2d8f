-- Lists the recorded tenants, from after a tenant. Spans tenants; returns only the tenant.
select tenant from tenants where $1::uuid is null or tenant > $1 order by tenant limit $2
