-- Returns the shadow columns of some runs, in the order of run and name.
select run, workflow, name, as_text, as_number, as_boolean
  from shadows
 where tenant = $1 and run = any ($2)
 order by run, name
