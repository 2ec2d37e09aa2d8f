-- Deletes the row of a run.
delete from runs where tenant = ?1 and id = ?2
