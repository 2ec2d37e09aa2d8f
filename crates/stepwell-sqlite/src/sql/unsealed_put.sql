-- A commit whose rows in the audit trail are to be sealed.
insert into unsealed (tenant, commit_id) values (?1, ?2)
