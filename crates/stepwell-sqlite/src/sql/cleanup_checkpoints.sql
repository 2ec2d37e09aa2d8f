-- Deletes the checkpoints of a run before a version.
delete from checkpoints where tenant = ?1 and run = ?2 and version < ?3
