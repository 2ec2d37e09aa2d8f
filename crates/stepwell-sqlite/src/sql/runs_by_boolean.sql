-- Finds runs of a workflow, newest first, by the index of a shadow column with this boolean. Status and parent are
-- filters. The caller filters by further columns.
select r.id, r.workflow, r.definition, r.revision, r.version, r.fence, r.owner, r.status, r.places, r.wake_at, r.inbox_seq,
       r.inbox_len, r.chain_base, r.chain_bytes, r.ledger, r.parent_run, r.parent_activation, r.parent_child, r.root,
       r.created_at, r.updated_at
  from shadows s cross join runs r on r.tenant = ?1 and r.id = s.run
 where s.tenant = ?1 and s.run < ?2 and s.workflow = ?3 and r.workflow = ?3 and (?4 is null or r.status = ?4)
   and (?5 is null or r.parent_run = ?5)
   and s.name = ?6 and s.as_boolean = ?7
 order by s.run desc
