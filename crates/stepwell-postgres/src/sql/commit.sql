-- Runs begin or move and get their checkpoints, as `commit_runs` in the schema says; gives the runs that did.
select commit_runs($1, $2, $3)
