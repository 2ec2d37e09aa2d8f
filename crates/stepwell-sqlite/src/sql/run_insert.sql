-- Inserts a run. If the id exists, nothing is written and no row is counted.
insert into runs (tenant, id, workflow, definition, revision, version, fence, owner, status, places, wake_at,
                  inbox_seq, inbox_len, chain_base, chain_bytes, ledger, parent_run, parent_activation,
                  parent_child, root, created_at, updated_at, unordered, error)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24)
on conflict (tenant, id) do nothing
