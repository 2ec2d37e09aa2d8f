-- Finds due runs without an owner, in the order of their due time.
select id, workflow, definition, revision, version, fence, owner, status, places, wake_at, inbox_seq, inbox_len,
       chain_base, chain_bytes, ledger, parent_run, parent_activation, parent_child, root, created_at, updated_at,
       error
  from runs
 where tenant = ?1 and owner is null and wake_at is not null and wake_at <= ?2
   and (?3 is null or lower(hex(definition)) in (select value from json_each(?3)))
 order by wake_at, id
 limit ?4
