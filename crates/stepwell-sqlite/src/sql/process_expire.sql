-- Ends the leases of all processes. Writes no tenant data.
update processes set lease_until = ?1
