-- Lists commits whose rows in the audit trail are not sealed yet, from after a commit.
select commit_id from unsealed where tenant = $1 and commit_id > $2 order by commit_id limit $3
