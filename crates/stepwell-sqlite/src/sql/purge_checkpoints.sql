-- A run's checkpoints go.
delete from checkpoints where tenant = ?1 and run = ?2
