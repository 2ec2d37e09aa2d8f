-- Removes a commit from the list of unsealed commits.
delete from unsealed where tenant = ?1 and commit_id = ?2
