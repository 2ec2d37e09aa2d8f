-- Deletes the waits of a run.
delete from waits where tenant = ?1 and run = ?2
