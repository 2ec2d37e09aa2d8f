-- Deletes old tombstones of a namespace, and with them the revisions of those keys.
-- `is_tombstone` is a generated column, so that its index does not depend on `value`. An index that does would
-- make every write to a hot key update all indexes.
delete from cells c
 where c.tenant = $1 and c.space = 'kv' and c.owner = $2 and c.is_tombstone and c.updated_at < $3
   and c.key in (select o.key from cells o
                  where o.tenant = $1 and o.space = 'kv' and o.owner = $2 and o.is_tombstone and o.updated_at < $3
                  order by o.updated_at, o.key limit $4)
returning c.key
