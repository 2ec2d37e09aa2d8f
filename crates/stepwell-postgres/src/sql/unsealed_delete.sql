-- Removes commits from the list of unsealed commits. $3 and $4 are the first and the last of them.
delete from unsealed where tenant = $1 and commit_id = any ($2) and commit_id between $3 and $4
