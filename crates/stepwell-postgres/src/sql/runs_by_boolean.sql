-- Finds runs of a workflow, newest first, by the index of a shadow column with this boolean. Other columns, status and
-- parent are filters. The listing continues from a position in that index. The `offset 0` makes the server look up
-- each run by its id, even without statistics.
select r.id, r.workflow, r.definition, r.revision, r.version, r.fence, r.owner, r.status, r.places, r.wake_at, r.inbox_seq,
       r.inbox_len, r.chain_base, r.chain_bytes, r.ledger, r.parent_run, r.parent_activation, r.parent_child, r.root,
       r.created_at, r.updated_at
  from shadows s cross join lateral (select * from runs o where o.tenant = $1 and o.id = s.run offset 0) r
 where s.tenant = $1 and s.workflow = $3 and s.name = $7 and s.as_boolean = $8 and (s.as_boolean, s.run) < ($8, $2)
   and r.workflow = $3
   and ($4::text is null or r.status = $4) and ($5::uuid is null or r.parent_run = $5)
   and not exists (
       select 1
         from unnest($9::text[], $10::text[], $11::double precision[], $12::boolean[], $13::text[])
              as w (name, as_text, as_number, as_boolean, operator)
        where not exists (select 1 from shadows o
                           where o.tenant = $1 and o.run = s.run and o.name = w.name and o.workflow = $3
                             and case w.operator
                                 when '=' then o.as_text = w.as_text or o.as_number = w.as_number or o.as_boolean = w.as_boolean
                                 when '<' then o.as_text < w.as_text or o.as_number < w.as_number
                                 when '<=' then o.as_text <= w.as_text or o.as_number <= w.as_number
                                 when '>' then o.as_text > w.as_text or o.as_number > w.as_number
                                 when '>=' then o.as_text >= w.as_text or o.as_number >= w.as_number end offset 0))
 order by s.run desc
 limit $6
