-- Opens a wait. Replaces an open wait of the same activation.
insert or replace into waits (tenant, run, activation, place, since, until, detail, topic, due)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
