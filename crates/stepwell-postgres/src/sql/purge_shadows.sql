-- Deletes the shadow columns of runs.
delete from shadows where tenant = $1 and run = any ($2)
