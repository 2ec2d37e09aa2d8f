-- When runs are to be looked at next.
select id, wake_at from runs where tenant = $1 and id = any ($2)
