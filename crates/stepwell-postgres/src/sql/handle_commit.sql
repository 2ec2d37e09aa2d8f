-- Returns the commit that wrote a handle or changed its owner.
select commit_id from handles where tenant = $1 and handle = $2
