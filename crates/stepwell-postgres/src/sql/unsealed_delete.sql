-- Commits whose rows are sealed, which lie between the first and the last of them.
delete from unsealed where tenant = $1 and commit_id = any ($2) and commit_id between $3 and $4
