-- Returns the wake times of runs.
select id, wake_at from runs where tenant = $1 and id = any ($2)
