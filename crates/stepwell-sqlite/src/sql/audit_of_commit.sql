-- Returns the audit rows of a commit, in order.
select commit_id, ordinal, at, operation, subject, actor, run, detail
  from audit
 where tenant = ?1 and commit_id = ?2
 order by ordinal
