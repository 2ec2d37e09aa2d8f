-- What a run's shadow columns hold, by name.
select workflow, name, as_text, as_number, as_boolean
  from shadows
 where tenant = ?1 and run = ?2
 order by name
