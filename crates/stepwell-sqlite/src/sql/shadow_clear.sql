-- A shadow column of a run holds nothing any more.
delete from shadows where tenant = ?1 and run = ?2 and name = ?3
