-- A run's checkpoints before a version go.
delete from checkpoints where tenant = $1 and run = $2 and version < $3 returning 1
