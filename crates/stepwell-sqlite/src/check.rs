//! Checks a database: its integrity, its content and its size.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use stepwell_store::{SchemaVersion, StoreError};

use crate::background::Stop;
use crate::error::{OpenError, store_error};
use crate::guard::TABLES;
use crate::migrate;
use crate::names::{file_error, real, sibling};
use crate::reader::ReadError;
use crate::source::{Source, Unopened};
use crate::store::SqliteStore;
use crate::sum::{self, Kind};

/// The disk usage of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Size of the database file in bytes.
    pub file_bytes: u64,
    /// Size of the write-ahead log in bytes. It is reused from its beginning, so it rarely gets shorter.
    pub log_bytes: u64,
    /// Size of one page in bytes.
    pub page_bytes: u64,
    /// Pages of the database, including those that are only in the write-ahead log.
    pub pages: u64,
    /// Pages that are empty. They are reused before the file grows.
    pub free_pages: u64,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// Problems that were found, with at most a hundred damaged places. Empty if the database is sound.
    pub problems: Vec<String>,
    /// Tables, views, indexes and triggers that Stepwell did not create: the program's own, or views of its workflows.
    pub foreign: Vec<String>,
    /// Schema version; `None` if this program does not know it.
    pub schema: Option<SchemaVersion>,
    /// Number of rows in each of Stepwell's tables, for those that can be counted.
    pub rows: BTreeMap<String, u64>,
    pub sizes: Sizes,
}

impl CheckReport {
    /// Returns true if no problem was found.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

impl SqliteStore {
    /// Reads the whole database and reports its problems, while the store is in use. Changes nothing. Dropping the
    /// future cancels the check.
    pub async fn check(&self) -> Result<CheckReport, OpenError> {
        self.trusted()?;
        self.background.run(inspect).await
    }

    /// Returns the disk usage of the database. Reads very little, so it is fast.
    pub async fn sizes(&self) -> Result<Sizes, StoreError> {
        let path = self.path.clone();
        self.read(move |connection| sizes(connection, &path)).await
    }
}

/// Checks a database file or a backup like [`SqliteStore::check`], without an open store.
///
/// Another process may have the database open meanwhile. Changes nothing. Blocks the calling thread until the check is
/// finished.
pub fn check(path: impl AsRef<Path>) -> Result<CheckReport, OpenError> {
    let path = &real(path.as_ref());
    let mut problems = Vec::new();
    let source = match Unopened::inspect(path) {
        Err(OpenError::InUse { .. }) => Source::database(path)?,
        Err(error) => return Err(error),
        Ok(mut found) => match found.kind {
            Kind::Other => return Err(file_error(path, "this is not a SQLite database: check the path")),
            Kind::Database => {
                drop(found);
                Source::database(path)?
            }
            Kind::Cut => {
                problems.push("the file is truncated".to_owned());
                Source::backup(path)?
            }
            Kind::Backup => {
                let checksum_matches = sum::checksum_matches(&mut found.file);
                if !checksum_matches
                    .map_err(|error| file_error(path, &format!("cannot read the file: {error}")))?
                {
                    problems.push("the backup was changed: its checksum does not match".to_owned());
                }
                Source::backup(path)?
            }
        },
    };
    let mut report = inspect(source, &Stop::default())?;
    report.problems.splice(0..0, problems);
    Ok(report)
}

fn inspect(mut source: Source, stop: &Stop) -> Result<CheckReport, OpenError> {
    let failed = |error: rusqlite::Error| OpenError::Store(store_error(&error));
    interrupt_when_cancelled(&mut source.connection, stop).map_err(failed)?;
    // One transaction, so that everything is read from the same state.
    let reading = source.connection.unchecked_transaction().map_err(failed)?;
    let mut problems = Vec::new();
    let damage = noted(damage(&reading, "integrity_check"), &mut problems)?.unwrap_or_default();
    problems.extend(damage);
    let dangling = noted(dangling(&reading), &mut problems)?.unwrap_or_default();
    problems.extend(dangling);
    let schema = match migrate::found(&reading) {
        Err(StoreError::Schema(why)) => {
            problems.push(why);
            None
        }
        Err(StoreError::Corrupt(_)) => None,
        other => Some(other?),
    };
    let there = noted(migrate::objects(&reading), &mut problems)?.unwrap_or_default();
    let ours = migrate::objects_of(schema).map_err(failed)?;
    for (name, object) in &ours {
        match there.get(name) {
            None => problems.push(format!("the {} `{name}` is missing", object.kind)),
            Some(found) if found != object => {
                problems.push(format!("the {} `{name}` differs from Stepwell's schema", object.kind));
            }
            Some(_) => {}
        }
    }
    let foreign = there.iter().filter(|(name, _)| !ours.contains_key(*name));
    let foreign = foreign.map(|(name, object)| format!("{} {name}", object.kind)).collect();
    let mut rows = BTreeMap::new();
    for table in TABLES.iter().filter(|table| there.contains_key(**table)) {
        let count = reading.query_row(&format!("select count(*) from {table}"), [], |row| row.get(0));
        rows.extend(noted(count, &mut problems)?.map(|count: i64| ((*table).to_owned(), count as u64)));
    }
    let sizes = sizes(&reading, &source.path).map_err(StoreError::from)?;
    Ok(CheckReport { problems, foreign, schema, rows, sizes })
}

/// Records damage as a problem and returns `None` for it. Any other failure is an error.
fn noted<T>(result: rusqlite::Result<T>, problems: &mut Vec<String>) -> Result<Option<T>, StoreError> {
    match result.map_err(|error| store_error(&error)) {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::Corrupt(why)) => {
            problems.push(why);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Runs one of SQLite's own checks, such as `integrity_check`, and returns the damage it finds.
pub(crate) fn damage(connection: &Connection, check: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(&format!("pragma {check}"))?;
    let said = statement.query_map([], |row| row.get::<_, String>(0))?;
    let said = said.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(said.into_iter().filter(|line| line != "ok").collect())
}

/// Returns violated foreign keys, at most a hundred. Stepwell's tables have no foreign keys; the program's own may.
fn dangling(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("pragma foreign_key_check")?;
    let found = statement.query_map([], |row| {
        let (table, parent): (String, String) = (row.get(0)?, row.get(2)?);
        Ok(format!("a row of `{table}` refers to a missing row of `{parent}`"))
    })?;
    found.take(100).collect()
}

/// Makes a connection abort its statements once the work is cancelled.
pub(crate) fn interrupt_when_cancelled(connection: &mut Connection, stop: &Stop) -> rusqlite::Result<()> {
    let stop = stop.clone();
    connection.progress_handler(10_000, Some(move || stop.is_cancelled()))
}

fn sizes(connection: &Connection, path: &Path) -> Result<Sizes, ReadError> {
    let number = |pragma: &str| {
        let number: i64 = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
        Ok::<_, rusqlite::Error>(number as u64)
    };
    let unreadable = |error: std::io::Error| {
        let what = format!("cannot read the size of {}: {error}", path.display());
        StoreError::Unavailable(what)
    };
    Ok(Sizes {
        file_bytes: std::fs::metadata(path).map_err(unreadable)?.len(),
        log_bytes: std::fs::metadata(sibling(path, "-wal")).map_or(0, |log| log.len()),
        page_bytes: number("page_size")?,
        pages: number("page_count")?,
        free_pages: number("freelist_count")?,
    })
}
