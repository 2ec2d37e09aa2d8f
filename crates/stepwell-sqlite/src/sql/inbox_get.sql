-- Whether a message is there, and whether it counts.
select counts from inbox where tenant = ?1 and run = ?2 and seq = ?3
