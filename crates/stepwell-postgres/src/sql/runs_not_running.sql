-- Lists pending, suspended or failed runs, newest first, by the index that holds only those.
select id, workflow, definition, revision, version, fence, owner, status, places, wake_at, inbox_seq, inbox_len,
       chain_base, chain_bytes, ledger, parent_run, parent_activation, parent_child, root, created_at, updated_at
  from runs
 where tenant = $1 and id < $2 and ($3::text is null or workflow = $3)
   and (status = 'pending' or status = 'suspended' or status = 'failed') and status = $4
   and ($5::uuid is null or parent_run = $5)
   and ($7::text is null or not starts_with(workflow, $7))
 order by id desc
 limit $6
