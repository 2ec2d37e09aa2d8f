-- Lists the cells of an owner whose keys are between a prefix and the first text after all keys with that prefix, if
-- there is one.
select key, value, value_type, revision, expires_at, created_at, updated_at, created_by
  from cells
 where tenant = $1 and space = $2 and owner = $3 and key >= $4 and ($5::text is null or key < $5) and key > $6
   and ($7 or (value is not null and (expires_at is null or expires_at > $8)))
 order by key
 limit $9
