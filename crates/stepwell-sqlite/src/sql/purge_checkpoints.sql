-- Deletes the checkpoints of a run.
delete from checkpoints where tenant = ?1 and run = ?2
