-- Who is asking, where its tables are, whether the policies hold for it, and whether tenants are spread over nodes.
-- Nobody's rows.
select current_user::text, coalesce(current_schema(), '')::text, u.rolsuper or u.rolbypassrls,
       exists (select 1 from pg_class c where c.oid = to_regclass('runs') and c.relowner = u.oid),
       exists (select 1 from pg_extension x where x.extname = 'citus')
  from pg_roles u
 where u.rolname = current_user
