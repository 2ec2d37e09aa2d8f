-- Messages come in, at the places their runs' rows gave them.
insert into inbox (tenant, run, seq, topic, body, received_at, expires_at, counts)
select $1, u.*
  from unnest($2::uuid[], $3::bigint[], $4::text[], $5::bytea[], $6::bigint[], $7::bigint[], $8::boolean[]) as u
