//! Looks at a database: whether it hangs together, what is in it, and how large it is.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use stepwell_store::{SchemaVersion, StoreError};

use crate::aside::Stop;
use crate::error::{OpenError, store_error};
use crate::guard::TABLES;
use crate::migrate;
use crate::names::{beside, real, wrong};
use crate::reader::ReadError;
use crate::source::{Source, Unopened};
use crate::store::SqliteStore;
use crate::sum::{self, Kind};

/// How much room a database takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// The size of its file.
    pub file_bytes: u64,
    /// The size of the log beside it; it is used again from its beginning, and seldom gets shorter.
    pub log_bytes: u64,
    /// The size of a page.
    pub page_bytes: u64,
    /// Pages in the database, with what is in the log.
    pub pages: u64,
    /// Pages of these that are empty, and used before the file grows.
    pub free_pages: u64,
}

/// What a look at a database found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// What is wrong with it; empty if nothing is. At most a hundred places of damage.
    pub problems: Vec<String>,
    /// Tables, views, indexes and triggers that are not Stepwell's: the program's own, or views of its workflows.
    pub foreign: Vec<String>,
    /// Its schema, if it is one that this program knows.
    pub schema: Option<SchemaVersion>,
    /// Rows of each of Stepwell's tables that can be read.
    pub rows: BTreeMap<String, u64>,
    /// How much room it takes.
    pub sizes: Sizes,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

impl SqliteStore {
    /// Reads the whole database and says what is wrong with it, while it is in use. It changes nothing. Whoever drops the
    /// future gives it up.
    pub async fn check(&self) -> Result<CheckReport, OpenError> {
        self.trusted()?;
        self.aside.run(look).await
    }

    /// How much room the database takes. This reads next to nothing.
    pub async fn sizes(&self) -> Result<Sizes, StoreError> {
        let path = self.path.clone();
        self.read(move |connection| sizes(connection, &path)).await
    }
}

/// The same as [`SqliteStore::check`] for a database that this process has not open as a store, whether another has or
/// not, and for a backup. It changes nothing, and blocks its thread until it is done.
pub fn check(path: impl AsRef<Path>) -> Result<CheckReport, OpenError> {
    let path = &real(path.as_ref());
    let mut problems = Vec::new();
    let source = match Unopened::look(path) {
        Err(OpenError::InUse { .. }) => Source::database(path)?,
        Err(error) => return Err(error),
        Ok(mut found) => match found.kind {
            Kind::Other => return Err(wrong(path, "it is not a SQLite database: look for the right file")),
            Kind::Database => {
                drop(found);
                Source::database(path)?
            }
            Kind::Cut => {
                problems.push("the end of the file is missing".to_owned());
                Source::backup(path)?
            }
            Kind::Backup => {
                let fits = sum::fits(&mut found.file);
                if !fits.map_err(|error| wrong(path, &format!("it cannot be read: {error}")))? {
                    problems.push("it is not what was backed up, by the sum at its end".to_owned());
                }
                Source::backup(path)?
            }
        },
    };
    let mut report = look(source, &Stop::default())?;
    report.problems.splice(0..0, problems);
    Ok(report)
}

fn look(mut source: Source, stop: &Stop) -> Result<CheckReport, OpenError> {
    let failed = |error: rusqlite::Error| OpenError::Store(store_error(&error));
    stop_when_said(&mut source.connection, stop).map_err(failed)?;
    // All of it is of one instant.
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
                problems.push(format!("the {} `{name}` is not as Stepwell makes it", object.kind));
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

/// What cannot be read because it is damaged is a problem; anything else that goes wrong is an error.
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

/// What a check of SQLite's finds damaged.
pub(crate) fn damage(connection: &Connection, check: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(&format!("pragma {check}"))?;
    let said = statement.query_map([], |row| row.get::<_, String>(0))?;
    let said = said.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(said.into_iter().filter(|line| line != "ok").collect())
}

/// Rows that refer to others which are not there: Stepwell's tables have no such references, the program's own may.
fn dangling(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("pragma foreign_key_check")?;
    let found = statement.query_map([], |row| {
        let (table, parent): (String, String) = (row.get(0)?, row.get(2)?);
        Ok(format!("a row of `{table}` refers to a row of `{parent}` that is not there"))
    })?;
    found.take(100).collect()
}

/// Ends whatever a connection is at when that is no longer wanted.
pub(crate) fn stop_when_said(connection: &mut Connection, stop: &Stop) -> rusqlite::Result<()> {
    let stop = stop.clone();
    connection.progress_handler(10_000, Some(move || stop.is_said()))
}

fn sizes(connection: &Connection, path: &Path) -> Result<Sizes, ReadError> {
    let number = |pragma: &str| {
        let number: i64 = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
        Ok::<_, rusqlite::Error>(number as u64)
    };
    let unreadable = |error: std::io::Error| {
        let what = format!("the size of {} cannot be read: {error}", path.display());
        StoreError::Unavailable(what)
    };
    Ok(Sizes {
        file_bytes: std::fs::metadata(path).map_err(unreadable)?.len(),
        log_bytes: std::fs::metadata(beside(path, "-wal")).map_or(0, |log| log.len()),
        page_bytes: number("page_size")?,
        pages: number("page_count")?,
        free_pages: number("freelist_count")?,
    })
}
