-- The version whose whole state a checkpoint builds on.
select base from checkpoints where tenant = $1 and run = $2 and version = $3
