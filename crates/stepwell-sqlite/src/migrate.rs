//! Brings a database's schema up to date: numbered migrations, forward only, each applied once and never changed.

use std::collections::BTreeMap;

use rusqlite::{Connection, TransactionBehavior, params};
use sha2::{Digest, Sha256};
use stepwell_store::{SchemaVersion, StoreError};

use crate::error::store_error;

/// A step from one schema to the next.
struct Migration {
    version: u32,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] =
    &[Migration { version: 1, name: "foundation", sql: include_str!("../migrations/0001_foundation.sql") }];

const LEDGER: &str = "create table if not exists stepwell_migrations (
    version integer not null primary key, name text not null, checksum blob not null) strict";

/// Applies the missing migrations in one transaction.
pub(crate) fn migrate(connection: &mut Connection) -> Result<SchemaVersion, StoreError> {
    apply(connection, MIGRATIONS)
}

/// Returns the schema version of a database without changing it. Fails if this program does not know the schema.
pub(crate) fn found(connection: &Connection) -> Result<SchemaVersion, StoreError> {
    let failed = |error: rusqlite::Error| store_error(&error);
    let applied = match connection.table_exists(None, "stepwell_migrations").map_err(failed)? {
        true => applied(connection).map_err(failed)?,
        false => Vec::new(),
    };
    let Some((newest, _)) = applied.last() else {
        let why = "this is not a Stepwell database, because it has no schema version: check the path";
        return Err(StoreError::Schema(why.to_owned()));
    };
    check_known(&applied, MIGRATIONS)?;
    Ok(SchemaVersion(*newest))
}

/// A table, index, view or trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) kind: String,
    sql: String,
}

/// Returns all objects of a database by name, except SQLite's internal ones.
pub(crate) fn objects(connection: &Connection) -> rusqlite::Result<BTreeMap<String, Object>> {
    let sql = "select name, type, sql from sqlite_schema where sql is not null and name not like 'sqlite~_%' escape '~'";
    let mut statement = connection.prepare(sql)?;
    let rows =
        statement.query_map([], |row| Ok((row.get(0)?, Object { kind: row.get(1)?, sql: row.get(2)? })))?;
    rows.collect()
}

/// Returns the objects that Stepwell creates for a schema version; empty for an unknown schema.
pub(crate) fn objects_of(schema: Option<SchemaVersion>) -> rusqlite::Result<BTreeMap<String, Object>> {
    let Some(SchemaVersion(newest)) = schema else { return Ok(BTreeMap::new()) };
    let connection = Connection::open_in_memory()?;
    connection.execute_batch(LEDGER)?;
    for migration in MIGRATIONS.iter().filter(|migration| migration.version <= newest) {
        connection.execute_batch(migration.sql)?;
    }
    objects(&connection)
}

fn apply(connection: &mut Connection, migrations: &[Migration]) -> Result<SchemaVersion, StoreError> {
    let failed = |error: rusqlite::Error| store_error(&error);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    transaction.execute_batch(LEDGER).map_err(failed)?;
    let applied = applied(&transaction).map_err(failed)?;
    check_known(&applied, migrations)?;
    for migration in &migrations[applied.len()..] {
        transaction.execute_batch(migration.sql).map_err(|error| {
            StoreError::Schema(format!(
                "migration {} ({}) failed: {error}",
                migration.version, migration.name
            ))
        })?;
        let row = params![migration.version, migration.name, checksum(migration.sql)];
        transaction
            .execute("insert into stepwell_migrations (version, name, checksum) values (?1, ?2, ?3)", row)
            .map_err(failed)?;
    }
    transaction.commit().map_err(failed)?;
    Ok(SchemaVersion(migrations.last().map_or(0, |migration| migration.version)))
}

fn applied(connection: &Connection) -> rusqlite::Result<Vec<(u32, Vec<u8>)>> {
    let mut statement =
        connection.prepare("select version, checksum from stepwell_migrations order by version")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// Checks that the applied migrations are those of this program, in the same order and with the same content.
fn check_known(applied: &[(u32, Vec<u8>)], migrations: &[Migration]) -> Result<(), StoreError> {
    for (index, (version, sum)) in applied.iter().enumerate() {
        let Some(known) = migrations.get(index).filter(|known| known.version == *version) else {
            let newest = migrations.last().map_or(0, |migration| migration.version);
            return Err(StoreError::Schema(format!(
                "the database has schema version {version}, but this program knows only up to {newest}: use a newer Stepwell"
            )));
        };
        if checksum(known.sql) != *sum {
            return Err(StoreError::Schema(format!(
                "migration {version} ({}) differs from the one the database was created with: use the Stepwell that created it, or an empty database",
                known.name
            )));
        }
    }
    Ok(())
}

fn checksum(sql: &str) -> Vec<u8> {
    Sha256::digest(sql.as_bytes()).to_vec()
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::{MIGRATIONS, Migration, apply};

    fn objects(connection: &Connection) -> Vec<(String, String)> {
        let sql = "select name, sql from sqlite_schema where sql is not null and name not like 'stepwell_%' order by name";
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?))).unwrap();
        let folded =
            |(name, sql): (String, String)| (name, sql.split_whitespace().collect::<Vec<_>>().join(" "));
        rows.map(|row| folded(row.unwrap())).collect()
    }

    #[test]
    fn migrations_produce_the_schema() {
        let mut migrated = Connection::open_in_memory().unwrap();
        apply(&mut migrated, MIGRATIONS).unwrap();
        let whole = Connection::open_in_memory().unwrap();
        whole.execute_batch(include_str!("../schema.sql")).unwrap();
        assert_eq!(objects(&migrated), objects(&whole));
        assert!(objects(&whole).len() > 20);
    }

    #[test]
    fn newer_or_changed_schema_is_refused() {
        let mut connection = Connection::open_in_memory().unwrap();
        let one = Migration { version: 1, name: "one", sql: "create table a (x integer) strict" };
        let two = Migration { version: 2, name: "two", sql: "create table b (x integer) strict" };
        assert_eq!(apply(&mut connection, &[one, two]).unwrap().0, 2);
        let one = || Migration { version: 1, name: "one", sql: "create table a (x integer) strict" };
        let two = || Migration { version: 2, name: "two", sql: "create table b (x integer) strict" };
        assert_eq!(apply(&mut connection, &[one(), two()]).unwrap().0, 2);
        let newer = apply(&mut connection, &[one()]).unwrap_err().to_string();
        assert!(newer.contains("schema version 2"), "{newer}");
        let changed = Migration { sql: "create table b (y integer) strict", ..two() };
        let changed = apply(&mut connection, &[one(), changed]).unwrap_err().to_string();
        assert!(changed.contains("migration 2 (two)"), "{changed}");
    }

    #[test]
    fn failed_migration_leaves_nothing_behind() {
        let mut connection = Connection::open_in_memory().unwrap();
        let good = Migration { version: 1, name: "good", sql: "create table a (x integer) strict" };
        let bad = Migration { version: 2, name: "bad", sql: "create table b (x integer) strict; nonsense" };
        assert!(apply(&mut connection, &[good, bad]).is_err());
        assert_eq!(objects(&connection), []);
    }
}
