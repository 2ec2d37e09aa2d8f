-- Finds the next workflow that has ended runs without a wake time. The order makes it one search of their index.
select workflow from runs
 where tenant = $1 and workflow > $2 and ended_at is not null and wake_at is null
 order by workflow, ended_at, id
 limit 1
