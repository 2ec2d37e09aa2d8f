-- Compare-and-set on the revision, and on the fence and the inbox if given. Also changes status, owner, fence or wake
-- time. If the inbox has a message that the committer has not seen, the earlier wake time stays, unless the run ends:
-- no wake-up is lost.
update runs
   set revision = ?4 + 1, version = ?5, places = coalesce(?6, places), chain_base = ?7, chain_bytes = ?8,
       ledger = ?9, updated_at = ?10, status = ?11, owner = ?12, fence = ?13, error = ?17,
       wake_at = case when inbox_seq > ?15 and ?11 not in ('completed', 'cancelled')
                      then min(coalesce(?14, wake_at), coalesce(wake_at, ?14)) else ?14 end
 where tenant = ?1 and id = ?2 and revision = ?4 and (?3 is null or fence = ?3)
   and (?16 is null or inbox_seq <= ?16)
