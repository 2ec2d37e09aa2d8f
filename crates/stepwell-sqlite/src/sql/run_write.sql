-- A row that was decided on under the writer's lock, written back whole but for what never changes.
update runs
   set revision = ?3, version = ?4, fence = ?5, owner = ?6, status = ?7, places = ?8, wake_at = ?9, inbox_seq = ?10,
       inbox_len = ?11, chain_base = ?12, chain_bytes = ?13, attempt = ?14, updated_at = ?15
 where tenant = ?1 and id = ?2
