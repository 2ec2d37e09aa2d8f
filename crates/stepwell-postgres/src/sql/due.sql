-- Returns for every tenant the time at which its earliest run without an owner is due. The time is the minimum ($3) if
-- an expired process ($1) owns a run of the tenant. With a list of alive processes ($2), the same holds for any owner
-- that is not in it. Spans tenants; returns only tenant and time.
-- The table `tenants` limits this to a few index lookups per tenant, instead of a read of all due runs.
select t.tenant,
       case when exists (select 1 from runs o where o.tenant = t.tenant and o.owner = any ($1)) then $3::bigint
            when $2::uuid[] is not null and exists (select 1 from runs o where o.tenant = t.tenant
                                                       and o.owner is not null and o.owner <> all ($2)) then $3
            else (select f.wake_at from runs f
                   where f.tenant = t.tenant and f.owner is null and f.wake_at is not null
                   order by f.wake_at limit 1) end as at
  from tenants t
