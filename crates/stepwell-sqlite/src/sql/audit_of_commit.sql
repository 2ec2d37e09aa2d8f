-- A commit's rows in the audit trail.
select commit_id, ordinal, at, operation, subject, actor, run, detail
  from audit
 where tenant = ?1 and commit_id = ?2
 order by ordinal
