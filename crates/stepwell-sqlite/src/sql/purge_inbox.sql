-- A run's messages go.
delete from inbox where tenant = ?1 and run = ?2
