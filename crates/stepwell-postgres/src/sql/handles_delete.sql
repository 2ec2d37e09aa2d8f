-- Handles are used up, or over.
delete from handles where tenant = $1 and handle = any ($2)
