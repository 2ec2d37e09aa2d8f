-- Inserts or replaces a handle. The writer has compared the old row inside the same transaction.
insert into handles (tenant, handle, kind, run, workflow, definition, state, expires_at, owner, fence, deliver_at, delivery,
                     created_at, created_by, updated_at, updated_by, commit_id)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
on conflict (tenant, handle) do update
   set kind = excluded.kind, run = excluded.run, workflow = excluded.workflow, definition = excluded.definition,
       state = excluded.state, expires_at = excluded.expires_at, owner = excluded.owner, fence = excluded.fence,
       deliver_at = excluded.deliver_at, delivery = excluded.delivery, created_at = excluded.created_at,
       created_by = excluded.created_by, updated_at = excluded.updated_at, updated_by = excluded.updated_by,
       commit_id = excluded.commit_id
