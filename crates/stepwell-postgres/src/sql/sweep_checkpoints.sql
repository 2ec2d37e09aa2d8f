-- A run's checkpoints before a version go.
delete from checkpoints k where k.tenant = $1 and k.run = $2 and k.version < $3 returning k.version
