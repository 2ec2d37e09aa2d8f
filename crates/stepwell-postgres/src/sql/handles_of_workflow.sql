-- Lists the handles of a workflow in the order of run and handle, from after a position. The creator is a filter.
select handle, kind, run, workflow, definition, state, expires_at, owner, fence, deliver_at, delivery, created_at, created_by,
       updated_at, updated_by, commit_id
  from handles
 where tenant = $1 and workflow = $6 and (run, handle) > ($2, $3) and ($4::text is null or created_by = $4)
 order by run, handle
 limit $5
