-- Deletes expired idempotency keys.
delete from idempotency
 where rowid in (select rowid from idempotency where tenant = ?1 and until is not null and until <= ?2
                  order by until, operation, key limit ?3)
