-- Deletes the messages of a run.
delete from inbox where tenant = ?1 and run = ?2
