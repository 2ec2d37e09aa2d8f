-- Counts the keys that have a value, for each namespace of the key-value store.
select owner, count(*)
  from cells
 where tenant = $1 and space = 'kv' and owner > $2 and value is not null and (expires_at is null or expires_at > $4)
 group by owner order by owner limit $3
