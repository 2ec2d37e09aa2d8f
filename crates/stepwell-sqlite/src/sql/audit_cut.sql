-- Deletes a sealed row of the audit trail.
delete from audit where tenant = ?1 and commit_id = ?2 and ordinal = ?3
