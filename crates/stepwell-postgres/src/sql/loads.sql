-- Returns runs, each with the stored states that its state is built from and with its inbox.
select r.id, r.workflow, r.definition, r.revision, r.version, r.fence, r.owner, r.status, r.places, r.wake_at,
       r.inbox_seq, r.inbox_len, r.chain_base, r.chain_bytes, r.ledger, r.parent_run, r.parent_activation,
       r.parent_child, r.root, r.created_at, r.updated_at, r.error, c.bodies,
       m.seqs, m.topics, m.bodies, m.received, m.expires
  from runs r
 cross join lateral (select array_agg(k.body order by k.version) as bodies from checkpoints k
                      where k.tenant = $1 and k.run = r.id and k.version between r.chain_base and r.version) c
 cross join lateral (select array_agg(i.seq order by i.seq) as seqs, array_agg(i.topic order by i.seq) as topics,
                            array_agg(i.body order by i.seq) as bodies,
                            array_agg(i.received_at order by i.seq) as received,
                            array_agg(i.expires_at order by i.seq) as expires
                       from inbox i where i.tenant = $1 and i.run = r.id) m
 where r.tenant = $1 and r.id = any ($2)
