//! What an operator asks of a database first: which server, which schema, how large, how full.

use std::collections::BTreeMap;

use stepwell_store::SchemaVersion;

use crate::connection::{Connections, Mode, Sees};
use crate::rows::{self, Read};
use crate::{migrate, statements as sql};

/// What a database is, as its server says; nothing is counted for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The server's version.
    pub server: String,
    /// The schema's.
    pub schema: SchemaVersion,
    /// The size of the whole database, with what else is in it.
    pub database_bytes: u64,
    /// About how many rows each of Stepwell's tables has. `None` until the server has counted them once, which it does by
    /// itself, and where tenants are spread over nodes.
    pub rows: BTreeMap<String, Option<u64>>,
    /// Citus is there.
    pub has_citus: bool,
}

pub(crate) async fn status(on: &Connections, schema: SchemaVersion) -> Read<Status> {
    let tables: Vec<&str> = migrate::tables().collect();
    let found = on.one(Sees::None, Mode::Reads, sql::database_status, &[&tables]).await?;
    let mut status =
        Status { server: String::new(), schema, database_bytes: 0, rows: BTreeMap::new(), has_citus: false };
    for row in &found {
        status.server = rows::get(row, 0)?;
        status.database_bytes = rows::get::<i64>(row, 1)? as u64;
        status.has_citus = rows::get(row, 2)?;
        let counted = rows::get::<Option<f64>>(row, 4)?.filter(|rows| *rows >= 0.0 && !status.has_citus);
        status.rows.insert(rows::get(row, 3)?, counted.map(|rows| rows as u64));
    }
    Ok(status)
}
