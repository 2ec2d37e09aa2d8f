-- Who is there, from after a tenant on. Spans tenants, and shows only the tenant.
select tenant from tenants where $1::uuid is null or tenant > $1 order by tenant limit $2
