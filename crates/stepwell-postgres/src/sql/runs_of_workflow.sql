-- Lists the runs of one workflow, newest first, by its index.
select id, workflow, definition, revision, version, fence, owner, status, places, wake_at, inbox_seq, inbox_len,
       chain_base, chain_bytes, ledger, parent_run, parent_activation, parent_child, root, created_at, updated_at
  from runs
 where tenant = $1 and id < $2 and workflow = $3 and ($4::text is null or status = $4)
   and ($5::uuid is null or parent_run = $5)
   and ($7::text is null or not starts_with(workflow, $7))
 order by id desc
 limit $6
