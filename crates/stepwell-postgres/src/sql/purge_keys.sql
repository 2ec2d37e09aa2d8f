-- Deletes the idempotency keys whose lifetime is that of runs.
delete from idempotency where tenant = $1 and run = any ($2)
