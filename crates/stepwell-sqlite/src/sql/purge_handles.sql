-- The handles of a flow, or that lead to a run, go.
delete from handles where tenant = ?1 and run = ?2
