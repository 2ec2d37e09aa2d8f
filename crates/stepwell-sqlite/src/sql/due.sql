-- Returns for every tenant the time at which its earliest run without an owner is due. Skips from tenant to tenant in
-- the index. Spans tenants; returns only tenant and time.
with recursive tenants (tenant) as (
    select min(tenant) from runs where owner is null and wake_at is not null
    union all
    select (select min(r.tenant) from runs r where r.owner is null and r.wake_at is not null and r.tenant > t.tenant)
      from tenants t where t.tenant is not null
)
select t.tenant, (select min(r.wake_at) from runs r where r.tenant = t.tenant and r.owner is null and r.wake_at is not null)
  from tenants t
 where t.tenant is not null
