-- Finds flows of a workflow, kept behind handles, by the index of a shadow column with a number within a range, in the order
-- of the column, then of run and handle. The caller filters by further columns.
select h.handle, h.kind, h.run, h.workflow, h.definition, h.state, h.expires_at, h.owner, h.fence, h.deliver_at, h.delivery,
       h.created_at, h.created_by, h.updated_at, h.updated_by, h.commit_id, s.as_number
  from shadows s cross join handles h on h.tenant = ?1 and h.run = s.run
 where s.tenant = ?1 and s.workflow = ?2 and h.workflow = ?2 and h.kind = 'flow'
   and s.name = ?3 and s.as_number is not null and (s.as_number, s.run) >= (?4, ?5) and (s.as_number, s.run) < (?7, ?8)
   and (s.as_number, s.run, h.handle) > (?4, ?5, ?6)
 order by s.as_number, s.run, h.handle
