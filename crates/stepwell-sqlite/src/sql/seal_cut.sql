-- Deletes a seal at the beginning of the audit trail.
delete from seals where tenant = ?1 and number = ?2
