-- Every process is dead. Not a tenant's rows.
update processes set lives_until = ?1
