-- Lists the handles of a tenant in the order of run and handle, from after a position. The creator is a filter. It is
-- written with `coalesce`, because a server without statistics would otherwise expect few rows and sort all handles.
select handle, kind, run, workflow, definition, state, expires_at, owner, fence, deliver_at, delivery, created_at, created_by,
       updated_at, updated_by, commit_id
  from handles
 where tenant = $1 and (run, handle) > ($2, $3) and coalesce(created_by = $4, $4::text is null)
 order by run, handle
 limit $5
