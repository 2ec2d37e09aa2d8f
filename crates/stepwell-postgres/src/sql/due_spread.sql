-- Does the same as `due` where tenants are spread over nodes, in one pass over each node. Spans tenants; returns only
-- tenant and time.
select tenant, min(case when owner is null then wake_at else $3::bigint end) as at
  from runs
 where (owner is null and wake_at is not null) or owner = any ($1) or ($2::uuid[] is not null and owner <> all ($2))
 group by tenant
