-- Returns the stored results of a commit that is looked up in the audit trail. No row: the commit was not applied.
select results from audit where tenant = $1 and commit_id = $2 and ordinal = 0
