-- The keys that lived with a run go.
delete from idempotency where tenant = ?1 and run = ?2
