-- Returns a definition by its hash.
select hash, workflow, version, body, publisher from definitions where tenant = $1 and hash = $2
