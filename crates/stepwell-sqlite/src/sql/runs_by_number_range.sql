-- Finds runs of a workflow by the index of a shadow column with a number within a range, in the order of the column and then
-- of the run. Status and parent are filters. The caller filters by further columns.
select r.id, r.workflow, r.definition, r.revision, r.version, r.fence, r.owner, r.status, r.places, r.wake_at, r.inbox_seq,
       r.inbox_len, r.chain_base, r.chain_bytes, r.ledger, r.parent_run, r.parent_activation, r.parent_child, r.root,
       r.created_at, r.updated_at, s.as_number
  from shadows s cross join runs r on r.tenant = ?1 and r.id = s.run
 where s.tenant = ?1 and s.workflow = ?2 and r.workflow = ?2 and (?3 is null or r.status = ?3)
   and (?4 is null or r.parent_run = ?4)
   and s.name = ?5 and s.as_number is not null and (s.as_number, s.run) > (?6, ?7) and (s.as_number, s.run) < (?8, ?9)
 order by s.as_number, s.run
