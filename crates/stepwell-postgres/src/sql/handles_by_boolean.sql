-- Finds flows of a workflow, kept behind handles, by the index of a shadow column with this boolean, in the order of
-- run and handle. Other columns, creator and run are filters. The listing continues from a position in that index. The
-- `offset 0` makes the server look up the handles of each flow by its id, even without statistics.
select h.handle, h.kind, h.run, h.workflow, h.definition, h.state, h.expires_at, h.owner, h.fence, h.deliver_at, h.delivery,
       h.created_at, h.created_by, h.updated_at, h.updated_by, h.commit_id
  from shadows s cross join lateral (select * from handles o where o.tenant = $1 and o.run = s.run offset 0) h
 where s.tenant = $1 and s.workflow = $4 and s.name = $8 and s.as_boolean = $9 and (s.as_boolean, s.run) >= ($9, $2)
   and (s.run, h.handle) > ($2, $3) and h.kind = 'flow' and h.workflow = $4
   and ($5::text is null or h.created_by = $5) and ($6::uuid is null or s.run = $6)
   and not exists (
       select 1
         from unnest($10::text[], $11::text[], $12::double precision[], $13::boolean[], $14::text[])
              as w (name, as_text, as_number, as_boolean, operator)
        where not exists (select 1 from shadows o
                           where o.tenant = $1 and o.run = s.run and o.name = w.name and o.workflow = $4
                             and case w.operator
                                 when '=' then o.as_text = w.as_text or o.as_number = w.as_number or o.as_boolean = w.as_boolean
                                 when '<' then o.as_text < w.as_text or o.as_number < w.as_number
                                 when '<=' then o.as_text <= w.as_text or o.as_number <= w.as_number
                                 when '>' then o.as_text > w.as_text or o.as_number > w.as_number
                                 when '>=' then o.as_text >= w.as_text or o.as_number >= w.as_number end offset 0))
 order by s.run, h.handle
 limit $7
