-- A run's row goes.
delete from runs where tenant = ?1 and id = ?2
