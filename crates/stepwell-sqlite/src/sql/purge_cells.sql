-- Deletes the cells that the runs of a root run's tree shared.
delete from cells where tenant = ?1 and space = 'execution' and owner = ?2
