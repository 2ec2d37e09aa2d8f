-- Records a tenant when it writes its first data.
insert into tenants (tenant) values ($1) on conflict (tenant) do nothing
