-- A definition by its hash.
select workflow, version, body from definitions where tenant = ?1 and hash = ?2
