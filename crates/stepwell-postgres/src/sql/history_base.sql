-- Returns the stored states before a version that its state is built from, oldest first.
select k.body from checkpoints k
 where k.tenant = $1 and k.run = $2 and k.version < $3
   and k.version >= (select f.base from checkpoints f
                      where f.tenant = $1 and f.run = $2 and f.version >= $3 order by f.version limit 1)
 order by k.version
