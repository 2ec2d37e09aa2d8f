-- Deletes the shadow columns of a run, except for those in the list.
delete from shadows where tenant = ?1 and run = ?2 and name not in (select value from json_each(?3))
