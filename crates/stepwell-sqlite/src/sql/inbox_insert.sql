-- Inserts a message under the number that its run's row assigned.
insert into inbox (tenant, run, seq, topic, body, received_at, expires_at, counts)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
