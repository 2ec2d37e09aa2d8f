-- Deletes the handles of a flow, or those that lead to a run.
delete from handles where tenant = ?1 and run = ?2
