-- Returns a handle by the hash of its secret.
select handle, kind, run, workflow, definition, state, expires_at, owner, fence, deliver_at, delivery, created_at, created_by,
       updated_at, updated_by, commit_id
  from handles
 where tenant = $1 and handle = $2
