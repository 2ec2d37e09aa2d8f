-- Deletes documents that are not visible at the given version or any later one.
delete from documents d
 where d.tenant = $1 and d.run = $2 and d.visible_to is not null and d.visible_to <= $3
   and (d.visible_to, d.visible_from, d.ordinal) <= (
       select e.visible_to, e.visible_from, e.ordinal
         from (select o.visible_to, o.visible_from, o.ordinal from documents o
                where o.tenant = $1 and o.run = $2 and o.visible_to is not null and o.visible_to <= $3
                order by o.visible_to, o.visible_from, o.ordinal limit $4) e
        order by e.visible_to desc, e.visible_from desc, e.ordinal desc limit 1)
returning d.ordinal
