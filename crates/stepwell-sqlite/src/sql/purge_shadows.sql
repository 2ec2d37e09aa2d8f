-- A run's shadow columns go.
delete from shadows where tenant = ?1 and run = ?2
