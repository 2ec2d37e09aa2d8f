-- A tenant's handles in the order of run and handle, from after a place on; who began them is a filter on the way, written so
-- that a server which has not counted the handles does not think that few are found, and sort them all.
select handle, kind, run, workflow, definition, state, expires_at, owner, fence, deliver_at, delivery, created_at, created_by,
       updated_at, updated_by, commit_id
  from handles
 where tenant = $1 and (run, handle) > ($2, $3) and coalesce(created_by = $4, $4::text is null)
 order by run, handle
 limit $5
