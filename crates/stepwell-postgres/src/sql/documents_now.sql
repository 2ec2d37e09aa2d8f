-- Lists the documents of a run that are visible now, in the order of writing.
select key, kind, body, tags, visible_from, visible_to, at, ordinal
  from documents
 where tenant = $1 and run = $2 and visible_to is null and (visible_from, ordinal) > ($3, $4)
   and ($5::text is null or kind = $5)
   and ($6::text is null or tags::jsonb ? $6)
 order by visible_from, ordinal
 limit $7
