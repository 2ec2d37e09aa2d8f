-- Returns the shadow columns of a run, in the order of their names.
select workflow, name, as_text, as_number, as_boolean
  from shadows
 where tenant = $1 and run = $2
 order by name
