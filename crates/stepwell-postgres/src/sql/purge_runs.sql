-- Runs' rows go.
delete from runs where tenant = $1 and id = any ($2)
