-- Deletes the checkpoints of a run before a version.
delete from checkpoints k where k.tenant = $1 and k.run = $2 and k.version < $3 returning k.version
