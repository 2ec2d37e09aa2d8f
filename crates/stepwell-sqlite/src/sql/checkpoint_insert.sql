-- Inserts a checkpoint. Fails if (tenant, run, version) exists.
insert into checkpoints (tenant, run, version, base, commit_id, at, body, entry, results)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
