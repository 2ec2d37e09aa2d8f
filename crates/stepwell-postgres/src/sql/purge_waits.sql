-- Deletes the waits of runs.
delete from waits where tenant = $1 and run = any ($2)
