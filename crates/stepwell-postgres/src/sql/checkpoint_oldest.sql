-- Returns the oldest version that a run still has a checkpoint of.
select min(version) from checkpoints where tenant = $1 and run = $2
