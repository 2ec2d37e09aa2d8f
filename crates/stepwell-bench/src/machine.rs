//! Memory, processor time and database sizes of this process.

use std::path::Path;

use rusqlite::Connection;

/// Returns the resident memory of this process in MiB.
pub(crate) fn resident_mb() -> Result<f64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line =
        status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS in /proc/self/status")?;
    let kb: f64 =
        line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).ok_or("VmRSS is not a number")?;
    Ok((kb / 1_024.0 * 10.0).round() / 10.0)
}

/// Clock ticks per second in `/proc`: Linux reports processor time in this unit on every machine.
const TICKS: f64 = 100.0;

/// Returns the processor time of this process in seconds, user and system mode together.
pub(crate) fn cpu_seconds() -> Result<f64, String> {
    let stat = std::fs::read_to_string("/proc/self/stat").map_err(|error| error.to_string())?;
    // The second field is a name in parentheses that may contain spaces; the times are fields 14 and 15.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split_whitespace();
    let times: Vec<f64> = fields.skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    match times[..] {
        [user, system] => Ok((user + system) / TICKS),
        _ => Err(format!("no processor times in /proc/self/stat: {stat}")),
    }
}

/// Returns the size of all tables and indexes of a schema in bytes.
pub(crate) async fn relations(connection: &str, schema: &str) -> Result<u64, String> {
    let failed = |error: tokio_postgres::Error| error.to_string();
    let (client, driver) =
        tokio_postgres::connect(connection, tokio_postgres::NoTls).await.map_err(failed)?;
    tokio::spawn(driver);
    let sizes = "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
                   from pg_class c join pg_namespace n on n.oid = c.relnamespace
                  where n.nspname = $1 and c.relkind = 'r'";
    let row = client.query_one(sizes, &[&schema]).await.map_err(failed)?;
    Ok(row.get::<_, i64>(0) as u64)
}

/// Returns the size of the used pages of an SQLite file in bytes, after a checkpoint of its write-ahead log.
pub(crate) fn pages_in_use(path: &Path) -> Result<u64, String> {
    let read = || -> rusqlite::Result<u64> {
        let connection = Connection::open(path)?;
        connection.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))?;
        let pragma =
            |name: &str| connection.query_row(&format!("pragma {name}"), [], |row| row.get::<_, i64>(0));
        let used = pragma("page_count")? - pragma("freelist_count")?;
        Ok((used * pragma("page_size")?) as u64)
    };
    read().map_err(|error| error.to_string())
}
