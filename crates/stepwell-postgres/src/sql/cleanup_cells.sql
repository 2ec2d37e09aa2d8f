-- Turns expired cells into tombstones, which keep key and revision.
update cells c set value = null, expires_at = null
 where c.tenant = $1 and c.expires_at is not null and c.expires_at <= $2
   and (c.expires_at, c.space, c.owner, c.key) <= (
       select e.expires_at, e.space, e.owner, e.key
         from (select o.expires_at, o.space, o.owner, o.key from cells o
                where o.tenant = $1 and o.expires_at is not null and o.expires_at <= $2
                order by o.expires_at, o.space, o.owner, o.key limit $3) e
        order by e.expires_at desc, e.space desc, e.owner desc, e.key desc limit 1)
returning c.key
