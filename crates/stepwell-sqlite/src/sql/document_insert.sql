-- Inserts a document that is visible from a version on. Fails if (tenant, run, key, first version) exists.
insert into documents (tenant, run, key, kind, body, tags, visible_from, ordinal, at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
