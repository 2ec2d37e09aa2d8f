-- Returns one cell. It may be a tombstone or expired.
select key, value, value_type, revision, expires_at, created_at, updated_at, created_by
  from cells
 where tenant = $1 and space = $2 and owner = $3 and key = $4
