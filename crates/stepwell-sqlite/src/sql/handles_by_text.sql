-- Finds flows of a workflow, kept behind handles, by the index of a shadow column with this text. The caller filters
-- by further columns.
select h.handle, h.kind, h.run, h.workflow, h.definition, h.state, h.expires_at, h.owner, h.fence, h.deliver_at, h.delivery,
       h.created_at, h.created_by, h.updated_at, h.updated_by, h.commit_id
  from shadows s cross join handles h on h.tenant = ?1 and h.run = s.run
 where s.tenant = ?1 and s.run >= ?2 and (s.run, h.handle) > (?2, ?3) and s.workflow = ?4 and h.workflow = ?4
   and h.kind = 'flow' and s.name = ?5 and s.as_text = ?6
 order by s.run, h.handle
