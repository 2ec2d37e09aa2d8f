-- Deletes the shadow columns of a run.
delete from shadows where tenant = ?1 and run = ?2
