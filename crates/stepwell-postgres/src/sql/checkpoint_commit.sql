-- Which commit wrote a checkpoint, and what its operations gave.
select commit_id, results from checkpoints where tenant = $1 and run = $2 and version = $3
