-- The versions of runs, which stay what they are until the transaction ends; locked in the order of their ids.
select id, version from runs where tenant = $1 and id = any ($2) order by id for share
