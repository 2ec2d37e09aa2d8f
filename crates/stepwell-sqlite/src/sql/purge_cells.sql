-- The cells that a root run's tree shared go.
delete from cells where tenant = ?1 and space = 'execution' and owner = ?2
