-- Lists the audit trail in the order of commit id and ordinal, from after a position.
select commit_id, ordinal, at, operation, subject, actor, run, detail
  from audit
 where tenant = $1 and (commit_id, ordinal) > ($2, $3)
 order by commit_id, ordinal
 limit $4
