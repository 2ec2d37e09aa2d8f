-- Reads a part of the index of all runs in its order. The last but one column is 1 if the run matches the filter. The
-- caller stops after a number of rows. `listing.rs` puts other indexes and the other order into this text.
select i.id, i.workflow, i.definition, i.revision, i.version, i.fence, i.owner, i.status, i.places, i.wake_at, i.inbox_seq,
       i.inbox_len, i.chain_base, i.chain_bytes, null, i.parent_run, i.parent_activation, i.parent_child, i.root,
       i.created_at, i.updated_at, i.error,
       (?2 is null or i.workflow = ?2)
       and (?10 is null or substr(i.workflow, 1, length(?10)) <> ?10)
       and (?11 is null or i.status in (select value from json_each(?11)))
       and (?12 is null or i.parent_run = ?12)
       and (?13 is null or i.root = ?13)
       and (?14 is null or i.definition = ?14)
       and (?15 is null or i.definition in (select d.hash from definitions d
                                             where d.tenant = ?1 and d.workflow = ?2 and d.version = ?15))
       and (?16 is null or i.error >= ?16)
       and (?17 is null or i.error <= ?17)
       and (?18 is null or i.error < ?18)
       and (?19 is null or i.created_at >= ?19)
       and (?20 is null or i.created_at < ?20)
       and (?21 is null or i.updated_at >= ?21)
       and (?22 is null or i.updated_at < ?22) as matches,
       null as ordered_by
  from runs i indexed by runs_by_id
 where i.tenant = ?1 and i.id >= ?3 and i.id <= ?4
 order by i.id desc
