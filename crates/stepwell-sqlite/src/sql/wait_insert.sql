-- A wait opens; one that was open for the same activation is replaced.
insert or replace into waits (tenant, run, activation, place, since, until, detail, topic)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
