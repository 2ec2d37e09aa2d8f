-- A claimed run gets its new owner, and with it a higher fence and revision; somebody works on it, so it runs, unless it
-- stands still.
update runs
   set owner = ?3, fence = fence + 1, revision = revision + 1,
       status = case when status in ('pending', 'waiting') then 'running' else status end
 where tenant = ?1 and id = ?2
