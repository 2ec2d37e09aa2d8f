-- Appends a row to the audit trail.
insert into audit (tenant, commit_id, ordinal, at, operation, subject, actor, run, detail, results)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
