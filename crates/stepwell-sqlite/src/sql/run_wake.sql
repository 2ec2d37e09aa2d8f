-- When a run is to be looked at next.
select wake_at from runs where tenant = ?1 and id = ?2
