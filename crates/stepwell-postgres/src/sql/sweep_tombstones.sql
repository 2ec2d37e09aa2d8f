-- What is left of old deleted cells of a namespace goes, and with it their revisions.
delete from cells c
 where c.tenant = $1 and c.space = 'kv' and c.owner = $2 and c.is_dead and c.updated_at < $3
   and c.key in (select o.key from cells o
                  where o.tenant = $1 and o.space = 'kv' and o.owner = $2 and o.is_dead and o.updated_at < $3
                  order by o.updated_at, o.key limit $4)
returning c.key
