-- Deletes the rows of runs.
delete from runs where tenant = $1 and id = any ($2)
