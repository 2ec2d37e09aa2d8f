-- Finds and locks runs of a workflow that ended before a time and have no wake time, oldest first. Skips runs that another
-- transaction has locked.
-- `ended_at` is written with the run and not generated: a generated column cost a third of the time of
-- `commit_runs`.
select id from runs
 where tenant = $1 and workflow = $2 and ended_at is not null and wake_at is null and ended_at < $3
 order by ended_at, id
 limit $4
   for update skip locked
