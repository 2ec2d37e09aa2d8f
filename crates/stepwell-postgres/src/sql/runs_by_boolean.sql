-- Runs of a workflow one of whose shadow columns holds this boolean, newest first, by its index; the other columns, status and
-- parent are filters on the way. Where to go on is a place in that index, and each run is looked up by its id, also by a
-- server that has not counted the runs: the offset sees to that.
select r.id, r.workflow, r.definition, r.revision, r.version, r.fence, r.owner, r.status, r.places, r.wake_at, r.inbox_seq,
       r.inbox_len, r.chain_base, r.chain_bytes, r.attempt, r.parent_run, r.parent_activation, r.parent_child, r.root,
       r.created_at, r.updated_at
  from shadows s cross join lateral (select * from runs o where o.tenant = $1 and o.id = s.run offset 0) r
 where s.tenant = $1 and s.workflow = $3 and s.name = $7 and s.as_boolean = $8 and (s.as_boolean, s.run) < ($8, $2)
   and r.workflow = $3
   and ($4::text is null or r.status = $4) and ($5::uuid is null or r.parent_run = $5)
   and not exists (
       select 1
         from unnest($9::text[], $10::text[], $11::double precision[], $12::boolean[]) as w (name, as_text, as_number, as_boolean)
        where not exists (select 1 from shadows o
                           where o.tenant = $1 and o.run = s.run and o.name = w.name and o.workflow = $3
                             and (o.as_text = w.as_text or o.as_number = w.as_number or o.as_boolean = w.as_boolean) offset 0))
 order by s.run desc
 limit $6
