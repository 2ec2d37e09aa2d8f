-- Deletes documents that are not visible at the given version or any later one.
delete from documents
 where rowid in (select rowid from documents
                  where tenant = ?1 and run = ?2 and visible_to is not null and visible_to <= ?3
                  order by visible_to, visible_from, ordinal limit ?4)
