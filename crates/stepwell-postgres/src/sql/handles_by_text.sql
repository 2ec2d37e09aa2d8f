-- Flows of a workflow that rest behind a handle and one of whose shadow columns holds this text, by its index, in the order
-- of run and handle; the other columns, who began them and the run are filters on the way. Where to go on is a place in that
-- index, and each flow's handles are looked up by its id, also by a server that has not counted them: the offset sees to that.
select h.handle, h.kind, h.run, h.workflow, h.definition, h.state, h.expires_at, h.owner, h.fence, h.deliver_at, h.delivery,
       h.created_at, h.created_by, h.updated_at, h.updated_by, h.commit_id
  from shadows s cross join lateral (select * from handles o where o.tenant = $1 and o.run = s.run offset 0) h
 where s.tenant = $1 and s.workflow = $4 and s.name = $8 and s.as_text = $9 and (s.as_text, s.run) >= ($9, $2)
   and (s.run, h.handle) > ($2, $3) and h.kind = 'flow' and h.workflow = $4
   and ($5::text is null or h.created_by = $5) and ($6::uuid is null or s.run = $6)
   and not exists (
       select 1
         from unnest($10::text[], $11::text[], $12::double precision[], $13::boolean[]) as w (name, as_text, as_number, as_boolean)
        where not exists (select 1 from shadows o
                           where o.tenant = $1 and o.run = s.run and o.name = w.name and o.workflow = $4
                             and (o.as_text = w.as_text or o.as_number = w.as_number or o.as_boolean = w.as_boolean) offset 0))
 order by s.run, h.handle
 limit $7
