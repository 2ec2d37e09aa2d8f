-- Deletes the documents of a run.
delete from documents where tenant = ?1 and run = ?2
