-- Deletes a handle that was used up or has expired.
delete from handles where tenant = ?1 and handle = ?2
