-- Lists the rows of the audit trail that name a run in the order of commit id and ordinal, from after a position.
select commit_id, ordinal, at, operation, subject, actor, run, detail
  from audit
 where tenant = $1 and run = $2 and (commit_id, ordinal) > ($3, $4)
 order by commit_id, ordinal
 limit $5
