-- Deletes the documents of runs.
delete from documents where tenant = $1 and run = any ($2)
