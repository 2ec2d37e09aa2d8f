-- Returns the author's version number of a definition.
select version from definitions where tenant = ?1 and hash = ?2
