-- Returns the commit that wrote a checkpoint, and the results of its operations.
select commit_id, results from checkpoints where tenant = $1 and run = $2 and version = $3
