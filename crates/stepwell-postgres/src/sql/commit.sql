-- Creates or advances runs and inserts their checkpoints, with `commit_runs` of the schema. Returns the runs that were
-- written.
select commit_runs($1, $2, $3)
