-- Replaces a run's row, except for its immutable columns. The writer has decided it inside the same transaction. The
-- parameters are those of run_insert.
update runs
   set definition = ?4, revision = ?5, version = ?6, fence = ?7, owner = ?8, status = ?9, places = ?10, wake_at = ?11,
       inbox_seq = ?12, inbox_len = ?13, chain_base = ?14, chain_bytes = ?15, ledger = ?16, updated_at = ?22,
       error = ?24
 where tenant = ?1 and id = ?2
