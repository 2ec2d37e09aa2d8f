-- The oldest version a run has a checkpoint of.
select min(version) from checkpoints where tenant = $1 and run = $2
