-- Adds a commit to the list of those whose audit rows must be sealed.
insert into unsealed (tenant, commit_id) values (?1, ?2)
