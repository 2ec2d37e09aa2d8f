-- Returns the wake time of a run.
select wake_at from runs where tenant = ?1 and id = ?2
