-- Returns the owners of a tenant's runs that are not in the list of alive processes.
select distinct owner from runs where tenant = $1 and owner is not null and owner <> all ($2)
