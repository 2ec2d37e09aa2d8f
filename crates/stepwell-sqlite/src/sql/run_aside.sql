-- A run whose row cannot be read fails, is nobody's and is not looked at again by itself.
update runs
   set status = 'failed', owner = null, wake_at = null, places = '[]', fence = fence + 1, revision = revision + 1
 where tenant = ?1 and id = ?2 and status not in ('completed', 'cancelled')
