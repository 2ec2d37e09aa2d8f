-- Runs' waits go.
delete from waits where tenant = $1 and run = any ($2)
