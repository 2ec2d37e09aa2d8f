-- Marks runs with unreadable rows as failed. They have no owner and no wake time, so they are not claimed again.
update runs as x
   set status = 'failed', owner = null, wake_at = null, places = '[]', error = 'unreadable', fence = x.fence + 1, revision = x.revision + 1
 where x.tenant = $1 and x.id = any ($2) and x.status not in ('completed', 'cancelled')
returning x.id
