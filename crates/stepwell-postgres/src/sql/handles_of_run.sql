-- Lists the handles of a flow, or those that lead to a run, in the order of handle, from after a handle. Creator and
-- workflow are filters.
select handle, kind, run, workflow, definition, state, expires_at, owner, fence, deliver_at, delivery, created_at, created_by,
       updated_at, updated_by, commit_id
  from handles
 where tenant = $1 and run = $2 and handle > $3 and ($4::text is null or created_by = $4)
   and ($6::text is null or workflow = $6)
 order by handle
 limit $5
