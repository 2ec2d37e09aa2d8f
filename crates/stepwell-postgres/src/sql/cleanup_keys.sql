-- Deletes expired idempotency keys.
delete from idempotency k
 where k.tenant = $1 and k.until is not null and k.until <= $2
   and (k.until, k.operation, k.key) <= (
       select e.until, e.operation, e.key
         from (select o.until, o.operation, o.key from idempotency o
                where o.tenant = $1 and o.until is not null and o.until <= $2
                order by o.until, o.operation, o.key limit $3) e
        order by e.until desc, e.operation desc, e.key desc limit 1)
returning k.key
