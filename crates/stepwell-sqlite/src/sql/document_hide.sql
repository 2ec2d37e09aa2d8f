-- The newest document under a key is visible no longer, unless it was not any more.
update documents set visible_to = ?4
 where rowid = (select rowid from documents where tenant = ?1 and run = ?2 and key = ?3
                 order by visible_from desc limit 1)
   and visible_to is null
