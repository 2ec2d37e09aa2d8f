-- Cuts the audit trail at a seal, with the rights of the tables' owner.
select cut_audit($1, $2, $3)
