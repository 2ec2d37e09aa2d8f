-- A run's waits go.
delete from waits where tenant = ?1 and run = ?2
