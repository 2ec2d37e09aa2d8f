-- Finds runs whose owner has expired, in the order of id.
select id, workflow, definition, revision, version, fence, owner, status, places, wake_at, inbox_seq, inbox_len,
       chain_base, chain_bytes, ledger, parent_run, parent_activation, parent_child, root, created_at, updated_at,
       error
  from runs
 where tenant = ?1 and owner is not null and owner in (select unhex(value) from json_each(?2))
   and (?3 is null or lower(hex(definition)) in (select value from json_each(?3)))
 order by id
 limit ?4
