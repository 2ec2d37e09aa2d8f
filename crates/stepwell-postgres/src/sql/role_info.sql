-- Returns whether a role is the current role, bypasses row-level security, or inherits the rights of the current role.
-- Reads no tenant data.
select u.rolname = current_user, u.rolsuper or u.rolbypassrls, pg_has_role(u.oid, current_user::text, 'usage')
  from pg_roles u
 where u.rolname = $1
