//! The status of a database for operators: server, schema, size and number of rows.

use std::collections::BTreeMap;

use stepwell_store::SchemaVersion;

use crate::connection::{Connections, Mode, Visibility};
use crate::rows::{self, Read};
use crate::{migrate, statements as sql};

/// The status of a database as reported by its server, without counting rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseStatus {
    /// Version of the PostgreSQL server.
    pub server: String,
    /// Version of Stepwell's schema.
    pub schema: SchemaVersion,
    /// Size of the whole database in bytes, including data of other programs.
    pub database_bytes: u64,
    /// Estimated number of rows in each of Stepwell's tables, from the server's statistics. `None` until the server has
    /// collected them, which it does by itself, and always `None` with Citus.
    pub rows: BTreeMap<String, Option<u64>>,
    /// The Citus extension is installed.
    pub has_citus: bool,
}

pub(crate) async fn status(on: &Connections, schema: SchemaVersion) -> Read<DatabaseStatus> {
    let tables: Vec<&str> = migrate::tables().collect();
    let found = on.one(Visibility::None, Mode::Reads, sql::database_status, &[&tables]).await?;
    let mut status = DatabaseStatus {
        server: String::new(),
        schema,
        database_bytes: 0,
        rows: BTreeMap::new(),
        has_citus: false,
    };
    for row in &found {
        status.server = rows::get(row, 0)?;
        status.database_bytes = rows::get::<i64>(row, 1)? as u64;
        status.has_citus = rows::get(row, 2)?;
        let counted = rows::get::<Option<f64>>(row, 4)?.filter(|rows| *rows >= 0.0 && !status.has_citus);
        status.rows.insert(rows::get(row, 3)?, counted.map(|rows| rows as u64));
    }
    Ok(status)
}
