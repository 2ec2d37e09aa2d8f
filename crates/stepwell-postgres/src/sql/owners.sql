-- The owners of a tenant's runs that are not among the living.
select distinct owner from runs where tenant = $1 and owner is not null and owner <> all ($2)
