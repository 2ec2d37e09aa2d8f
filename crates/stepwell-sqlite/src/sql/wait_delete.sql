-- Closes a wait.
delete from waits where tenant = ?1 and run = ?2 and activation = ?3
