//! The `db-control` command: runs a temporary PostgreSQL server for an external client. Prints the connection strings and
//! obeys the commands on its standard input, one per line. Exits, with the server, at the end of the input.

use std::io::BufRead;

use serde_json::json;
use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::test_schema::TestSchema;

use crate::child::say;

/// Terminates a random session of the engine's database role.
const END_ONE: &str = "select pg_terminate_backend(pid) from pg_stat_activity
 where usename = 'stepwell_engine' order by random() limit 1";

pub(crate) fn run() -> Result<(), String> {
    let runtime = crate::runtime()?;
    let mut cluster = Cluster::own(&[("shared_buffers", "64MB"), ("max_connections", "100")])?;
    let test_schema = runtime.block_on(TestSchema::new(&cluster))?;
    let place = json!({
        "engine": test_schema.engine(), "owner": test_schema.owner(), "schema": test_schema.schema(),
    });
    say(&place.to_string())?;
    for order in std::io::stdin().lock().lines() {
        match order.map_err(|error| error.to_string())?.as_str() {
            "kill" => {
                cluster.kill()?;
                cluster.restart()?;
                say("killed")?;
            }
            "end one" => {
                let ended = runtime.block_on(end_one(test_schema.admin()))?;
                say(if ended { "ended" } else { "none" })?;
            }
            other => return Err(format!("unknown order `{other}`; use `kill` or `end one`")),
        }
    }
    Ok(())
}

async fn end_one(admin: &str) -> Result<bool, String> {
    let told = |error: tokio_postgres::Error| error.to_string();
    let (client, connection) = tokio_postgres::connect(admin, tokio_postgres::NoTls).await.map_err(told)?;
    let connection = tokio::spawn(connection);
    let ended = client.query(END_ONE, &[]).await.map_err(told);
    drop(client);
    let _ = connection.await;
    Ok(!ended?.is_empty())
}
