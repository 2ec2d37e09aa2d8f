-- Returns the stored states from a full state to a version, oldest first.
select body from checkpoints where tenant = ?1 and run = ?2 and version between ?3 and ?4 order by version
