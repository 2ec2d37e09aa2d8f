-- For every tenant the time its earliest free run is due, or the beginning of time if a run of its is owned by one of
-- the dead ($1) or, where the living ($2) are named, by none of those. Spans tenants, and shows only tenant and time.
select t.tenant,
       case when exists (select 1 from runs o where o.tenant = t.tenant and o.owner = any ($1)) then $3::bigint
            when $2::uuid[] is not null and exists (select 1 from runs o where o.tenant = t.tenant
                                                       and o.owner is not null and o.owner <> all ($2)) then $3
            else (select f.wake_at from runs f
                   where f.tenant = t.tenant and f.owner is null and f.wake_at is not null
                   order by f.wake_at limit 1) end as at
  from tenants t
