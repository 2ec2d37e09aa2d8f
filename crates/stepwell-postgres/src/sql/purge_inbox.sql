-- Runs' messages go.
delete from inbox where tenant = $1 and run = any ($2)
