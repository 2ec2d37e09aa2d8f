-- The commit that put a handle there or gave it to its owner.
select commit_id from handles where tenant = $1 and handle = $2
