-- A run's documents go.
delete from documents where tenant = ?1 and run = ?2
