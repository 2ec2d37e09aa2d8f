-- Deletes the checkpoints of runs.
delete from checkpoints where tenant = $1 and run = any ($2)
