-- Compare-and-set on the revision, and on the fence and the inbox if given. Changes no indexed column: this is the hot
-- path.
update runs
   set revision = ?4 + 1, version = ?5, places = coalesce(?6, places), chain_base = ?7, chain_bytes = ?8,
       ledger = ?9, updated_at = ?10
 where tenant = ?1 and id = ?2 and revision = ?4 and (?3 is null or fence = ?3)
   and (?11 is null or inbox_seq <= ?11)
