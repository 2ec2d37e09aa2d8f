-- Gives a claimed run its new owner, and with it a higher fence and revision. A pending or waiting run becomes
-- running; any other status stays.
update runs
   set owner = ?3, fence = fence + 1, revision = revision + 1,
       status = case when status in ('pending', 'waiting') then 'running' else status end
 where tenant = ?1 and id = ?2
