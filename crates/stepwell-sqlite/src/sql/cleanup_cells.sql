-- Turns expired cells into tombstones, which keep key and revision.
update cells set value = null, expires_at = null
 where rowid in (select rowid from cells where tenant = ?1 and expires_at is not null and expires_at <= ?2
                  order by expires_at, space, owner, key limit ?3)
