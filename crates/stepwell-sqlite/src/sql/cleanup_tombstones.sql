-- Deletes old tombstones of a namespace, and with them the revisions of those keys.
delete from cells
 where rowid in (select rowid from cells where tenant = ?1 and space = 'kv' and owner = ?2 and value is null and updated_at < ?3
                  order by updated_at, key limit ?4)
