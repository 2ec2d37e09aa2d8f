-- Returns processes with a valid lease whose session has ended: no session holds their lock. Reads no tenant data.
select p.id
  from processes p
 where p.session is not null and p.lease_until > $1
   and not exists (select 1 from pg_locks l
                    where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                      and l.database = (select d.oid from pg_database d where d.datname = current_database())
                      and l.classid::bigint = (p.session >> 32) & 4294967295
                      and l.objid::bigint = p.session & 4294967295)
