-- A tenant that writes something is known from then on.
insert into tenants (tenant) values ($1) on conflict (tenant) do nothing
