-- The handles of flows, or that lead to runs, go.
delete from handles where tenant = $1 and run = any ($2)
