-- Deletes a message that its run has taken.
delete from inbox where tenant = ?1 and run = ?2 and seq = ?3
