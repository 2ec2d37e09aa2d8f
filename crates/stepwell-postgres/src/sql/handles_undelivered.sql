-- Lists handles whose delivery is due, in the order of delivery time.
select handle, kind, run, workflow, definition, state, expires_at, owner, fence, deliver_at, delivery, created_at, created_by,
       updated_at, updated_by, commit_id
  from handles
 where tenant = $1 and deliver_at is not null and deliver_at <= $2
 order by deliver_at, handle
 limit $3
