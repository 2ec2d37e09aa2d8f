-- Deletes handles that were used up or have expired.
delete from handles where tenant = $1 and handle = any ($2)
