-- Finds the next workflow that has ended runs without a wake time. The order makes it one search of their index.
select workflow from runs
 where tenant = ?1 and workflow > ?2 and status in ('completed', 'cancelled') and wake_at is null
 order by workflow, updated_at, id
 limit 1
