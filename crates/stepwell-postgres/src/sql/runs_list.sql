-- Lists runs of a part of the index of all runs in its order, and reads at most $3 rows of it. The row at which reading ends
-- is always returned, so that the caller knows where. `listing.rs` puts other indexes and the other order into this
-- text. The `offset 0` makes the server look up each row by its key, even without statistics.
select r.id, r.workflow, r.definition, r.revision, r.version, r.fence, r.owner, r.status, r.places, r.wake_at, r.inbox_seq,
       r.inbox_len, r.chain_base, r.chain_bytes, null::bytea, r.parent_run, r.parent_activation, r.parent_child, r.root,
       r.created_at, r.updated_at, r.error,
       (select d.version from definitions d where d.tenant = $1 and d.hash = r.definition), r.matches, r.place, r.ordered_by
  from (select i.id, i.workflow, i.definition, i.revision, i.version, i.fence, i.owner, i.status, i.places, i.wake_at,
               i.inbox_seq, i.inbox_len, i.chain_base, i.chain_bytes, i.parent_run, i.parent_activation, i.parent_child,
               i.root, i.created_at, i.updated_at, i.error,
               row_number() over (order by i.id desc) as place, null::text as ordered_by,
               coalesce(($2::text is null or i.workflow = $2)
               and ($7::text is null or not starts_with(i.workflow, $7))
               and ($8::text[] is null or i.status = any ($8))
               and ($9::uuid is null or i.parent_run = $9)
               and ($10::uuid is null or i.root = $10)
               and ($11::bytea is null or i.definition = $11)
               and ($12::bigint is null
                    or i.definition = any (array(select d.hash from definitions d
                                                  where d.tenant = $1 and d.workflow = $2 and d.version = $12)))
               and ($13::text is null or i.error >= $13)
               and ($14::text is null or i.error <= $14)
               and ($15::text is null or i.error < $15)
               and ($16::bigint is null or i.created_at >= $16)
               and ($17::bigint is null or i.created_at < $17)
               and ($18::bigint is null or i.updated_at >= $18)
               and ($19::bigint is null or i.updated_at < $19)
               and not exists (
                   select 1
                     from unnest($20::text[], $21::text[], $22::double precision[], $23::boolean[], $24::text[])
                          as w (name, as_text, as_number, as_boolean, operator)
                    where not exists (select 1 from shadows o
                                       where o.tenant = $1 and o.run = i.id and o.name = w.name and o.workflow = i.workflow
                                         and case w.operator
                                             when '=' then o.as_text = w.as_text or o.as_number = w.as_number or o.as_boolean = w.as_boolean
                                             when '<' then o.as_text < w.as_text or o.as_number < w.as_number
                                             when '<=' then o.as_text <= w.as_text or o.as_number <= w.as_number
                                             when '>' then o.as_text > w.as_text or o.as_number > w.as_number
                                             when '>=' then o.as_text >= w.as_text or o.as_number >= w.as_number end offset 0)),
               false) as matches
          from runs i
         where i.tenant = $1 and i.id >= $5 and i.id <= $6
         order by i.id desc
         limit $3) r
 where r.matches or r.place = $3
 order by r.id desc
 limit $4
