-- Ends the newest document under a key at a version, unless it has ended already.
update documents set visible_to = ?4
 where rowid = (select rowid from documents where tenant = ?1 and run = ?2 and key = ?3
                 order by visible_from desc limit 1)
   and visible_to is null
