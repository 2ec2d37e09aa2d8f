-- A commit whose rows are sealed.
delete from unsealed where tenant = ?1 and commit_id = ?2
