-- Runs whose rows cannot be read fail, are nobody's and are not looked at again by themselves.
update runs as x
   set status = 'failed', owner = null, wake_at = null, places = '[]', fence = x.fence + 1, revision = x.revision + 1
 where x.tenant = $1 and x.id = any ($2) and x.status not in ('completed', 'cancelled')
returning x.id
