-- Clears a shadow column of a run.
delete from shadows where tenant = ?1 and run = ?2 and name = ?3
