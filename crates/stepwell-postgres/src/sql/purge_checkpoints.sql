-- Runs' checkpoints go.
delete from checkpoints where tenant = $1 and run = any ($2)
