-- The results of a commit that is looked up in the audit trail.
select results from audit where tenant = ?1 and commit_id = ?2 and ordinal = 0
