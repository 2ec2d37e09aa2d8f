-- Returns handles and locks them in the order of the parameters.
select h.handle, h.kind, h.run, h.workflow, h.definition, h.state, h.expires_at, h.owner, h.fence, h.deliver_at, h.delivery,
       h.created_at, h.created_by, h.updated_at, h.updated_by, h.commit_id
  from unnest($2::bytea[]) as u (handle)
 cross join lateral (select * from handles o where o.tenant = $1 and o.handle = u.handle for update) h
