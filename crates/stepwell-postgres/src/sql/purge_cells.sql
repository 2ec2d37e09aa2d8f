-- Deletes the cells that the runs of root runs' trees shared.
delete from cells where tenant = $1 and space = 'execution' and owner = any ($2)
