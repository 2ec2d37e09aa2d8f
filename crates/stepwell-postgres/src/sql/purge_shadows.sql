-- Runs' shadow columns go.
delete from shadows where tenant = $1 and run = any ($2)
