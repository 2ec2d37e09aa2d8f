-- Lists the messages of a run in the order of arrival.
select seq, topic, body, received_at, expires_at from inbox where tenant = ?1 and run = ?2 order by seq
