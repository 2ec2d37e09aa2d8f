-- A handle is used up, or over.
delete from handles where tenant = ?1 and handle = ?2
