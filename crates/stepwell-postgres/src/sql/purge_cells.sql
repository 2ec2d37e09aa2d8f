-- The cells that root runs' trees shared go.
delete from cells where tenant = $1 and space = 'execution' and owner = any ($2)
