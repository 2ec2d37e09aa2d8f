-- Returns the newest document that a run wrote under a key up to a version. Older documents under the key had ended by
-- then.
select key, kind, body, tags, visible_from, visible_to, at, ordinal
  from documents
 where tenant = $1 and run = $2 and key = $3 and visible_from <= $4
 order by visible_from desc
 limit 1
