-- Deletes messages that their runs have taken.
delete from inbox where tenant = $1 and run = any ($2)
   and (run, seq) in (select u.run, u.seq from unnest($2::uuid[], $3::bigint[]) as u (run, seq))
