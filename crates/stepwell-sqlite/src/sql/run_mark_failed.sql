-- Marks a run with an unreadable row as failed. It has no owner and no wake time, so it is not claimed again.
update runs
   set status = 'failed', owner = null, wake_at = null, places = '[]', error = 'unreadable', fence = fence + 1, revision = revision + 1
 where tenant = ?1 and id = ?2 and status not in ('completed', 'cancelled')
