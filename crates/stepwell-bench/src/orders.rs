//! A throwaway PostgreSQL server for a client that is not ours: it says where the server is, and obeys the orders that come
//! line by line on its standard input. It ends, with the server, where the orders do.

use std::io::BufRead;

use serde_json::json;
use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::ground::Ground;

use crate::child::say;

/// Ends the session of somebody who works as the engine.
const END_ONE: &str = "select pg_terminate_backend(pid) from pg_stat_activity
 where usename = 'stepwell_engine' order by random() limit 1";

pub(crate) fn run() -> Result<(), String> {
    let runtime = crate::runtime()?;
    let mut cluster = Cluster::own(&[("shared_buffers", "64MB"), ("max_connections", "100")])?;
    let ground = runtime.block_on(Ground::new(&cluster))?;
    let place = json!({
        "engine": ground.engine(), "owner": ground.owner(), "schema": ground.schema(),
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
                let ended = runtime.block_on(end_one(ground.admin()))?;
                say(if ended { "ended" } else { "nobody" })?;
            }
            other => return Err(format!("`{other}` is no order: `kill` and `end one` are")),
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
