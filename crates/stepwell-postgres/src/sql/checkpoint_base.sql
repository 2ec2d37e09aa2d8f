-- Returns the version of the full state that a checkpoint's delta chain starts from.
select base from checkpoints where tenant = $1 and run = $2 and version = $3
