-- Returns the rows of runs.
select id, workflow, definition, revision, version, fence, owner, status, places, wake_at, inbox_seq, inbox_len,
       chain_base, chain_bytes, ledger, parent_run, parent_activation, parent_child, root, created_at, updated_at,
       error
  from runs
 where tenant = $1 and id = any ($2)
