-- A claimed run gets its new owner, and with it a higher fence and revision.
update runs set owner = ?3, fence = fence + 1, revision = revision + 1 where tenant = ?1 and id = ?2
