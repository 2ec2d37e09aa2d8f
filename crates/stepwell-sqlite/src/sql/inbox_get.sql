-- Returns a row if a message exists, with the flag whether it counts against the inbox limit.
select counts from inbox where tenant = ?1 and run = ?2 and seq = ?3
