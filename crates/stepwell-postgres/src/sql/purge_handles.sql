-- Deletes the handles of flows, or those that lead to runs.
delete from handles where tenant = $1 and run = any ($2)
