-- Returns the next tenant that has runs, handles, cells, links, keys or an audit trail. Spans tenants; returns only
-- the tenant.
select min(tenant)
  from (select min(tenant) as tenant from runs where tenant > ?1
        union all
        select min(tenant) from handles where tenant > ?1
        union all
        select min(tenant) from cells where tenant > ?1
        union all
        select min(tenant) from links where tenant > ?1
        union all
        select min(tenant) from idempotency where tenant > ?1
        union all
        select min(tenant) from audit where tenant > ?1)
