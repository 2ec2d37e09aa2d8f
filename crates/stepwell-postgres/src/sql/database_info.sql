-- Returns the role and schema of the connection, whether the role bypasses row-level security or has the rights of the
-- tables' owner, and whether Citus is installed. Reads no tenant data.
select current_user::text, coalesce(current_schema(), '')::text, u.rolsuper or u.rolbypassrls,
       exists (select 1 from pg_class c where c.oid = to_regclass('runs') and pg_has_role(u.oid, c.relowner, 'usage')),
       exists (select 1 from pg_extension x where x.extname = 'citus')
  from pg_roles u
 where u.rolname = current_user
