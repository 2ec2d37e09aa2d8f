-- Deletes the messages of runs.
delete from inbox where tenant = $1 and run = any ($2)
