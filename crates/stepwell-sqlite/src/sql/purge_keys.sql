-- Deletes the idempotency keys whose lifetime is that of a run.
delete from idempotency where tenant = ?1 and run = ?2
