-- A definition by its hash.
select hash, workflow, version, body from definitions where tenant = $1 and hash = $2
