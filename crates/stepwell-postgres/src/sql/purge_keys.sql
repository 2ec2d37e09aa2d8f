-- The keys that lived with runs go.
delete from idempotency where tenant = $1 and run = any ($2)
